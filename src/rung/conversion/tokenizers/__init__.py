"""Tokenizers carried from one file format to another."""
