"""Read what stands before the weights in a GGUF file, version 3, little-endian; ``gguf`` reads it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from rung import formats
from rung.core.types import Format

#: Bytes that every tensor begins at a multiple of.
ALIGNMENT = 32
_U32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I32 = 4, 6, 7, 8, 9, 10, 5


def pair(key: str, value: Any) -> bytes:
    """A key and its value: bool, int (u32, or u64 where it needs it), float (f32), str, or a list of one of them.

    Lists of int are i32: these are the types that llama.cpp asks for.
    """
    return _text(key) + _value(value)


def head(pairs: Iterable[bytes], tensors: Sequence[tuple[str, tuple[int, ...], Format]]) -> tuple[bytes, list[int]]:
    """The bytes before the weights, and where in the file each tensor (name, shape row major, format) begins.

    ``pairs`` come from ``pair`` or ``gguf.raw_pairs``.
    """
    listed = list(pairs)
    infos, offsets, at = [], [], 0
    for name, shape, format in tensors:
        number = formats.gguf_number(format)
        assert number is not None, f"GGUF has no {format.name}"
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos.append(_text(name) + dimensions + struct.pack("<IQ", number, at))
        offsets.append(at)
        at += -(-format.bytes(shape) // ALIGNMENT) * ALIGNMENT
    result = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(listed)) + b"".join(listed) + b"".join(infos)
    result += bytes(-len(result) % ALIGNMENT)
    return result, [len(result) + offset for offset in offsets]


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind = _kind(value[0], _I32) if value else _I32
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_bare(item, kind) for item in value)
    kind = _kind(value, _U32 if not isinstance(value, int) or value < 2**32 else _U64)
    return struct.pack("<I", kind) + _bare(value, kind)


def _kind(value: Any, whole: int) -> int:
    return {bool: _BOOL, int: whole, float: _F32, str: _STRING}[type(value)]


def _bare(value: Any, kind: int) -> bytes:
    if kind == _STRING:
        return _text(value)
    return struct.pack({_U32: "<I", _F32: "<f", _BOOL: "<?", _U64: "<Q", _I32: "<i"}[kind], value)
