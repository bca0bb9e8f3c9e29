"""Thin adapters to other people's programs; each is imported only with the package that it adapts."""
