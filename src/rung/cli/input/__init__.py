"""What commands read: standard input, files of text, logs."""
