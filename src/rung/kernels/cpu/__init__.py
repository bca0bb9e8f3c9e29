"""Numba kernels for CPUs and the private weight packings they read; ``target.configure`` comes first."""
