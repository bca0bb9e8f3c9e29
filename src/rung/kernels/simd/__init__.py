"""SIMD instructions for Numba by name, one module per instruction set; each has the same vector types."""
