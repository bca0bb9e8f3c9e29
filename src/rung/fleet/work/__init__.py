"""Work that nobody waits for, over the nodes of a fleet: batches of prompts, and models that are stored smaller.

Nodes take the next piece when they have done one, so that each does as much as it is fast. What is done is written down
by the command that was given, in the files in which it would be without a fleet: the same command goes on after a stop.
"""
