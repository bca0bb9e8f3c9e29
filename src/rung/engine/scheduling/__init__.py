"""Sequences over one pool of keys and values: who is computed when, and what they share."""
