"""Answers of ``rung check`` as text, HTML and in notebooks."""
