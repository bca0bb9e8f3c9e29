"""Read a log: its lines, languages, names and programs; hide what is private."""
