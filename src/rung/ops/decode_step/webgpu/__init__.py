"""Whole tokens through WebGPU: ``program`` is a model on a GPU, ``step`` the rung."""
