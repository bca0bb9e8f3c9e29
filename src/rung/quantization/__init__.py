"""Quantize within an error budget: statistics of a model on text, rounding by them, and the choice of formats."""
