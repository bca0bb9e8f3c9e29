"""Arguments of kernels as C passes them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

#: An address, a 64-bit number, an int, a float, or a struct of such.
Argument = ctypes.c_void_p | ctypes.c_longlong | ctypes.c_int | ctypes.c_float | ctypes.Structure


def pointers(arguments: Sequence[Argument]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of the arguments, which must outlive them."""
    return (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
