"""Headers of safetensors files, one or shards (https://huggingface.co/docs/safetensors: 8 bytes, JSON, tensors)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile, ModelNotFound
from rung.core.text import count as counted
from rung.core.text import quoted, size
from rung.models.files.file_sniffing import PICKLE_SUFFIXES, describe, foreign, unsafe
from rung.models.files.jsonfile import LIMIT, parse_object, read_bounded
from rung.models.files.tensors import FileTensor, check_places, truncated, unsound

_FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
#: Bits of an element, for the check of sizes; from the reference implementation's table of types.
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "C64": 64,
}  # fmt: skip
_KIND = "safetensors"
_MOST_DIMENSIONS = 16


def read_header(path: Path) -> tuple[FileTensor, ...]:
    """The tensors of a safetensors file, checked against its size; no weight is read.

    Raises ``BadFile`` (``UnsafeFile`` for a pickle) that says what is wrong, and with which tensor.
    """
    try:
        with open(path, "rb") as file:
            length = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            count = int.from_bytes(prefix, "little")
            text = file.read(56)
            if text[:1] != b"{" or describe(prefix + text) not in ("a safetensors file", ""):
                raise foreign(path, "a safetensors file")
            if count > length - 8:
                raise truncated(path.name, _KIND, f"its header ends at byte {count + 8:,}, the file at {length:,}")
            if count > LIMIT:
                raise unsound(path.name, _KIND, f"its header is {size(count)} long; rung reads up to {size(LIMIT)}")
            file.seek(8)
            header = parse_object(file.read(count), f"the header of {path.name}")
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}", code="file-unreadable") from error
    header.pop("__metadata__", None)
    tensors = tuple(_tensor(path.name, name, entry, 8 + count) for name, entry in header.items())
    check_places(tensors, path.name, _KIND, length)
    return tensors


def _tensor(file: str, name: str, entry: Any, start: int) -> FileTensor:
    def bad(what: str) -> BadFile:
        return unsound(file, _KIND, f"tensor {name[:120]} {what}")

    if not isinstance(entry, dict):
        raise bad("is not described by an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise bad(f"has the unknown dtype {str(dtype)[:40]}")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or not all(map(_is_count, shape)):
        raise bad(f"has the shape {str(shape)[:80]}, which is none")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise bad(f"has the offsets {str(offsets)[:80]}, which are none")
    begin, end = offsets
    if (math.prod(shape) * _BITS[dtype] + 7) // 8 != end - begin:
        raise bad(f"has {end - begin:,} bytes at {begin:,}, its shape {shape} of {dtype} needs another size")
    return FileTensor(name, tuple(shape), _FORMATS.get(dtype, dtype), dtype in _FORMATS, start + begin, end - begin)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**60


def head(tensors: Sequence[tuple[str, str, tuple[int, ...], int]]) -> tuple[bytes, list[int]]:
    """The bytes before the weights, and where in the file each tensor (name, dtype, shape, bytes) begins.

    Tensors lie without gaps in the given order; who wants them aligned gives the widest dtypes first.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets, at = [], 0
    for name, dtype, shape, length in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        offsets.append(at)
        at += length
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, [8 + len(text) + offset for offset in offsets]


#: What the names of weight files begin with: of models of transformers.
STEM = "model"
INDEX = ".safetensors.index.json"
_MOST_SHARDS = 1024
LONGEST_INDEX = 16 * 2**20
_CONTAINERS = 8


def weight_files(folder: Path, stem: str = STEM) -> dict[Path, tuple[FileTensor, ...]]:
    """The safetensors files of a folder with their tensors; no name is there twice. ``stem`` begins their names.

    Raises ``ModelNotFound`` that names missing shards, ``UnsafeFile`` where there are only pickles, ``BadFile``.
    """
    whole, index = folder / f"{stem}.safetensors", folder / f"{stem}{INDEX}"
    if whole.is_file():
        return {whole: read_header(whole)}
    if not index.is_file():
        raise _nothing(folder, stem)
    mapping = weight_map(index)
    shards = sorted(set(mapping.values()))
    if len(shards) > _MOST_SHARDS:
        raise BadFile(f"{index.name} of {folder.name} names {len(shards):,} shards")
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise ModelNotFound(
            f"{folder.name} has {counted(len(shards), 'shard')}, and {counted(len(missing), 'shard')} cannot be found",
            [f"missing: {name}" for name in missing[:20]],
            [f"hf download ORG/REPO {missing[0]}"],
            code="model-incomplete",
        )
    files = {folder / shard: read_header(folder / shard) for shard in shards}
    _check(mapping, files, index.name)
    return files


def read_index(path: Path) -> dict[str, Any]:
    """An index of shards, longer than other JSON where experts are stored one by one (DeepSeek-V3: 9 MB).

    What makes parsed JSON large are containers, and an index has two. Raises ``BadFile``.
    """
    data = read_bounded(path, LONGEST_INDEX)
    if len(data) > LIMIT and (b"[" in data or data.count(b"{") > _CONTAINERS):
        raise BadFile(f"{path.name} is {size(len(data))} long and no index of tensors and file names")
    return parse_object(data, path.name, LONGEST_INDEX)


def weight_map(index: Path) -> dict[str, str]:
    """The shard of each tensor, as an index says. Raises ``BadFile``."""
    mapping = read_index(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping or not all(map(_is_plain, mapping.values())):
        raise BadFile(f"{index.name} of {index.parent.name} has no weight_map of tensors and file names")
    return mapping


def _is_plain(name: object) -> bool:
    """Return whether a shard's name is that of a safetensors file in the folder itself."""
    return isinstance(name, str) and name.endswith(".safetensors") and not set(name) & set("/\\\0")


def _check(mapping: dict[str, str], files: dict[Path, tuple[FileTensor, ...]], index: str) -> None:
    shard_of: dict[str, str] = {}
    for path, tensors in files.items():
        for tensor in tensors:
            if tensor.name in shard_of:
                raise BadFile(f"The tensor {tensor.name} is in two shards: {shard_of[tensor.name]} and {path.name}")
            shard_of[tensor.name] = path.name
    for name, shard in mapping.items():
        if shard_of.get(name) != shard:
            raise BadFile(f"{shard} should hold the tensor {name[:120]}, says {index}, and does not")


def _nothing(folder: Path, stem: str) -> Exception:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES) and name != "training_args.bin"]
    if "adapter_config.json" in names:
        return BadFile(
            f"{folder.name} is an adapter (LoRA), which is a change to a model and not one",
            ways_out=[f"rung run MODEL --adapter {quoted(folder)}"],
        )
    if pickles:
        return unsafe(folder / pickles[0])
    asks = [f"rung check {quoted(folder)}   # needs no weights"] if "config.json" in names else []
    return ModelNotFound(
        f"{folder.name} has no weights",
        [f"neither {stem}.safetensors nor {stem}{INDEX} is there" if stem else "no *.safetensors is there"],
        ["hf download ORG/REPO --include '*.safetensors'", *asks],
        code="model-incomplete",
    )
