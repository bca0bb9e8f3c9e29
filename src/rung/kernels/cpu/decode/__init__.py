"""Whole tokens as one program, and the parts between its products."""
