"""Input of commands: standard input, files of text, logs."""
