"""Compute what a probe computes on a device. These modules run in a child process: see ``rung.run.probe``."""
