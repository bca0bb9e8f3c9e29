"""How weights are stored: the formats as values (``table``), and their codecs, which alone import numpy.

>>> get("Q4_K").bytes((4096, 4096)) == 4096 * 4096 // 256 * 144
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rung.formats.table import FORMATS, get, gguf_number, gguf_type, next_better, part_name, parts, short_name

if TYPE_CHECKING:
    from rung.formats.codec import Encoded, sqnr
    from rung.formats.coding import convert, decode, encode, layout, weighs
    from rung.formats.stacking import alike, common, stacked, stacked_format

__all__ = [
    "FORMATS",
    "Encoded",
    "alike",
    "common",
    "convert",
    "decode",
    "encode",
    "get",
    "gguf_number",
    "gguf_type",
    "layout",
    "next_better",
    "part_name",
    "parts",
    "short_name",
    "sqnr",
    "stacked",
    "stacked_format",
    "weighs",
]

#: Where the names are that are loaded when they are first used.
_LATER = {
    "Encoded": "codec",
    "sqnr": "quality",
    **dict.fromkeys(("convert", "decode", "encode", "layout", "weighs"), "coding"),
    **dict.fromkeys(("alike", "common", "stacked", "stacked_format"), "stacking"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
