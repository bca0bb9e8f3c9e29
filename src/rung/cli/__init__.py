"""The command line: one file per command, none of which imports torch before it must."""
