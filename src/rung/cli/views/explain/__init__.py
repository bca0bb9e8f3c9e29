"""Answers of ``rung explain`` as text and HTML."""
