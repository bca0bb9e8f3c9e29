"""Fleets of namespaces of this machine: what they lose, and how fast they are together."""
