"""One file with a model and the program that runs it: what ``rung bundle`` writes, and how such a file starts."""
