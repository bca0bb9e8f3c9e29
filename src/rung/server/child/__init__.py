"""Run a model in a process of its own: requests in, pieces of answers out."""
