"""Weights in the layouts that the CPU kernels read, and the exact way back."""
