"""Measure what ``rung quantize`` makes of an error budget, beside llama.cpp, on models with real weights."""
