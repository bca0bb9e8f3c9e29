"""Arguments of the kernels of a whole token, the structs of ``step_source`` and ``attention_source``."""

from __future__ import annotations

import ctypes

_ADDRESS, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_float


class Part(ctypes.Structure):
    """A weight of a product: its sections, a bias of its rows or none, its rows, and where these begin in it."""

    _fields_ = (
        *((name, _ADDRESS) for name in ("codes", "highs", "scales", "heads", "bias")),
        ("rows", _INT),
        ("first", _INT),
    )


class Product(ctypes.Structure):
    """A product with activations ``x``, or ``wide`` in float32: see the kernels for what they take of it.

    What they make of their result is ``quantized``, int8, and ``floats``, float32; None for what no product takes. Of
    several rows of activations ``hidden`` are ``apart`` float32 from each other, and ``y`` has rows of ``width``, sums
    that are added to ``hidden`` rows of ``size``.
    """

    _fields_ = (
        ("parts", Part * 3),
        *((name, _ADDRESS) for name in ("x", "wide", "y", "hidden", "post", "norm", "quantized", "floats", "counters")),
        *((name, _INT) for name in ("units", "blocks", "size", "apart", "width")),
        ("epsilon", _FLOAT),
    )


class Attend(ctypes.Structure):
    """Attention of a layer: q, k and v, the norms of q and k, a rotation, and where the layer lies in the cache.

    ``info`` has the position, and from ``table`` on the numbers of the blocks that the sequence has. ``left`` is where
    blocks of a head leave their sums, each head has one of the ``counters``. Rows of activations have ``turn`` and
    ``info`` so many float32 ``apart``, and -1 for a position where they are none.
    """

    _fields_ = (
        *(
            (name, _ADDRESS)
            for name in ("qkv", "q_norm", "k_norm", "turn", "keys", "values", "info", "quantized", "floats")
        ),
        *((name, _ADDRESS) for name in ("left", "counters")),
        ("block_bytes", _LONG),
        *((name, _INT) for name in ("head", "row", "heads", "kv_heads", "half", "window", "table", "block")),
        ("most_parts", _INT),
        ("apart", _INT),
        *((name, _FLOAT) for name in ("scale", "softcap", "epsilon")),
    )
