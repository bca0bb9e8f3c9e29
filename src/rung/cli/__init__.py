"""The command line: one file per command, none of which imports torch before it must."""

#: The words of the command that runs, for pages that say what made them; empty in a program that imports rung.
typed: tuple[str, ...] = ()
