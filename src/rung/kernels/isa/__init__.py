"""SIMD instructions for Numba by name, one module per instruction set; each has the same vector types.

Numba's environment is set here, because every kernel imports this package before it imports Numba's decorators.
"""

from rung.kernels.cpu.target import configure

configure()
