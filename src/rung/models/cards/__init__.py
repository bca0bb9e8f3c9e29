"""Model cards read from files, folders and networks."""
