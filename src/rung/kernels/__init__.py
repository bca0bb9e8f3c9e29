"""Compiled kernels, shared by the rungs of all ops: named instructions (simd), Numba (cpu), torch tensors (gpu)."""
