"""Whole tokens by kernels in CUDA C."""
