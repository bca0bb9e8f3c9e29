"""Importance data of llama.cpp (``llama-imatrix``): how large the inputs are that each column of a weight meets.

Two kinds of file: GGUF with the tensors ``NAME.in_sum2`` and ``NAME.counts``, and the older ``.dat``, records of a
name, a count of calls, and sums of squares. What is used is the mean square of each input.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rung import formats
from rung.core.errors import BadFile
from rung.formats.codec import Floats
from rung.models.files import gguf
from rung.models.files.file_sniffing import head
from rung.models.files.gguf import read_header
from rung.models.files.jsonfile import read_bounded

_SUMS, _COUNTS = ".in_sum2", ".counts"
_LARGEST = 2**30
_LONGEST_NAME = 256


def read(path: Path) -> dict[str, Floats]:
    """Importance float32 [columns] by the names that tensors have in GGUF files. Raises ``BadFile``."""
    found = _of_gguf(path) if head(path).startswith(b"GGUF") else _of_dat(read_bounded(path, _LARGEST), path.name)
    for name, values in found.items():
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise BadFile(f"{path.name}: the importance of {name} holds what is no square")
    return found


def write(path: Path, moments: Mapping[str, Floats], tokens: int, length: int, source: str) -> None:
    """Write mean squares float32 [columns] by names of GGUF files, in the older form for a name that ends in ``.dat``.

    ``tokens`` were read in windows of ``length``; ``source`` names the text.
    """
    data = _as_dat if path.suffix == ".dat" else _as_gguf
    path.write_bytes(data(moments, tokens, length, source))


def _as_gguf(moments: Mapping[str, Floats], tokens: int, length: int, source: str) -> bytes:
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": [source],
        "imatrix.chunk_count": tokens // length,
        "imatrix.chunk_size": length,
    }
    f32, arrays = formats.get("f32"), dict[str, Floats]()
    for name, values in moments.items():
        arrays[name + _SUMS] = (values * np.float32(tokens)).reshape(1, -1)
        arrays[name + _COUNTS] = np.full((1, 1), tokens, np.float32)
    pairs = [gguf.pair(key, value) for key, value in metadata.items()]
    head, places = gguf.head(pairs, [(name, array.shape, f32) for name, array in arrays.items()])
    content = bytearray(head)
    for offset, array in zip(places, arrays.values(), strict=True):
        content += bytes(offset - len(content)) + array.astype("<f4").tobytes()
    return bytes(content) + bytes(-len(content) % gguf.TENSOR_ALIGNMENT)


def _as_dat(moments: Mapping[str, Floats], tokens: int, length: int, source: str) -> bytes:
    calls = max(tokens // length, 1)
    content = struct.pack("<i", len(moments))
    for name, values in moments.items():
        text = name.encode()
        content += struct.pack("<i", len(text)) + text + struct.pack("<ii", calls, len(values))
        content += (values * np.float32(calls)).astype("<f4").tobytes()
    text = source.encode()
    return content + struct.pack("<ii", calls, len(text)) + text


def by_role(found: Mapping[str, Floats], names: Mapping[str, str], columns: Mapping[str, int]) -> dict[str, Floats]:
    """Importance by the roles of a model with these GGUF ``names`` and rows of so many ``columns``.

    Raises ``BadFile`` for data of another model.
    """
    importance = {}
    for role, name in names.items():
        if name not in found:
            continue
        if len(found[name]) != columns[role]:
            raise BadFile(
                f"The importance data are of another model: {name} has {columns[role]:,} columns,"
                f" and they {len(found[name]):,}",
                code="made-for-another-model",
            )
        importance[role] = found[name]
    if not importance:
        raise BadFile(
            "The importance data are of another model: none of its names is there", code="made-for-another-model"
        )
    return importance


def _of_gguf(path: Path) -> dict[str, Floats]:
    header = read_header(path)
    data = {}
    with open(path, "rb") as file:
        for stored in header.tensors:
            if stored.format != "f32":
                raise BadFile(f"{path.name}: {stored.name} is {stored.format}, and importance data are f32")
            file.seek(stored.offset)
            data[stored.name] = np.frombuffer(file.read(stored.bytes), "<f4").reshape(stored.shape)
    found = {}
    for name, sums in data.items():
        counts = data.get(name.removesuffix(_SUMS) + _COUNTS)
        if name.endswith(_SUMS) and counts is not None and sums.size == sums.shape[-1]:
            found[name.removesuffix(_SUMS)] = sums.reshape(-1) / np.maximum(counts.reshape(-1)[0], np.float32(1))
    if not found:
        raise BadFile(f"{path.name} holds no importance data", ["llama-imatrix writes them"])
    return found


def _of_dat(data: bytes, name: str) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    try:
        (count,) = struct.unpack_from("<i", data)
        at = 4
        for _ in range(count):
            (length,) = struct.unpack_from("<i", data, at)
            if not 0 < length <= _LONGEST_NAME:
                raise ValueError(f"a name of {length} bytes")
            tensor = data[at + 4 : at + 4 + length].decode("utf-8")
            at += 4 + length
            calls, values = struct.unpack_from("<ii", data, at)
            if values <= 0 or at + 8 + 4 * values > len(data):
                raise ValueError(f"{tensor} ends after the file")
            found[tensor] = (np.frombuffer(data, "<f4", values, at + 8) / max(calls, 1)).astype(np.float32)
            at += 8 + 4 * values
    except (struct.error, ValueError) as error:
        raise BadFile(f"{name} holds no importance data: {error}", ["llama-imatrix writes them"]) from error
    if not found:
        raise BadFile(f"{name} holds no importance data", ["llama-imatrix writes them"])
    return found
