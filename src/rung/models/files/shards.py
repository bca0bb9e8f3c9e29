"""The weight files of a Hugging Face folder: one safetensors file, or shards and their index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rung.core.errors import BadFile, ModelNotFound
from rung.core.text import count as counted
from rung.core.text import quoted, size
from rung.models.files.file_sniffing import PICKLE_SUFFIXES, unsafe
from rung.models.files.jsonfile import LIMIT, parse_object, read_bounded
from rung.models.files.safetensors import read_header
from rung.models.files.tensors import FileTensor

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
