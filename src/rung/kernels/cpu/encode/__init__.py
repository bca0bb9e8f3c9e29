"""Weights encoded into stored formats by compiled kernels."""
