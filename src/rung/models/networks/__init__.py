"""Outlines of networks from their headers: which tensors they store, and how large they are."""
