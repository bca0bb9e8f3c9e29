"""Hold what is to be written: the tensors one after the other, how each is stored, and the files they lie in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rung import formats
from rung.conversion.resumable_writer import Planned
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.codec import Array, Floats
from rung.models.adapters.adapter import LowRank
from rung.models.card import ModelCard, Tensor
from rung.models.files import gguf, safetensors

#: Bytes of weights in one file of a folder, as transformers divides them.
SHARD = 5 * 10**9
_WIDTH = {"I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: ``dtype`` is that of safetensors, or the name of a format of GGUF."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Step:
    """One tensor of the source: its name in the result, and the format it gets.

    ``heads``: the rows of that many heads change their order, for a rotation of neighboring dimensions (a GGUF file
    of Llama) when ``interleave``, else for one of halves; 0 where they stay. ``shift`` is added to every weight.
    ``reason`` says why the format is not the one that was asked for. ``changes`` are those of adapters, which are added
    first, and ``whole`` are weights that take the place of the source's.
    """

    tensor: Tensor
    name: str
    format: Format
    heads: int = 0
    interleave: bool = False
    shift: float = 0.0
    reason: str = ""
    changes: tuple[LowRank, ...] = ()
    whole: Floats | None = None

    @property
    def merges(self) -> bool:
        """Return whether the weights are others than those of the source."""
        return bool(self.changes) or self.whole is not None

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns; a norm or a bias is one row."""
        rows, columns = (1, *self.tensor.shape)[-2:]
        return rows, columns


class Style(Protocol):
    """How a kind of file stores a tensor."""

    def entries(self, step: Step) -> tuple[Entry, ...]:
        """Return the entries that are stored for a step."""
        ...

    def arrays(self, step: Step, encoded: Encoded) -> Iterable[Array]:
        """The contents of its entries, in their order."""
        ...


class Rounder(Protocol):
    """Rounds weights by what is known of the model; see ``rung.quantization.budget.Rounder``."""

    @property
    def digest(self) -> str:
        """Return a digest of everything that the results depend on."""
        ...

    def takes(self, role: str, fmt: Format) -> bool:
        """Return whether a tensor can be rounded to a format."""
        ...

    def encode(self, role: str, before: Encoded, fmt: Format, name: str) -> Encoded:
        """Return a weight in a format."""
        ...


@dataclass(frozen=True)
class Job:
    """A result to be written. ``constants`` are tensors that are not in the source; ``pairs`` the metadata of GGUF.

    ``importance`` float32 [columns], by roles, is what the columns of a tensor count. ``small`` are further files of a
    folder. ``single``: one GGUF file, else a folder. ``notes`` is what a person
    should know. ``rounder`` encodes the matrices that it takes.
    """

    card: ModelCard
    steps: tuple[Step, ...]
    style: Style
    single: bool
    constants: tuple[tuple[Entry, bytes], ...] = ()
    pairs: tuple[bytes, ...] = ()
    small: dict[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    importance: dict[str, Floats] = field(default_factory=dict)
    rounder: Rounder | None = None

    def layout(self) -> tuple[tuple[Planned, ...], dict[str, tuple[int, int]]]:
        """The files, and where each entry lies: its file and its first byte there."""
        entries = [entry for entry, _ in self.constants]
        entries += [entry for step in self.steps for entry in self.style.entries(step)]
        return _gguf_layout(entries, self.pairs) if self.single else folder_layout(entries)

    @property
    def file_bytes(self) -> int:
        """Return the bytes of the files that hold the weights."""
        return sum(file.length for file in self.layout()[0])

    @property
    def weight_bytes(self) -> int:
        """Bytes of the tensors that are read."""
        return sum(step.tensor.bytes for step in self.steps)


def _gguf_layout(
    entries: Sequence[Entry], pairs: Sequence[bytes]
) -> tuple[tuple[Planned, ...], dict[str, tuple[int, int]]]:
    tensors = [(entry.name, entry.shape, formats.get(entry.dtype)) for entry in entries]
    head, offsets = gguf.head(pairs, tensors)
    end = offsets[-1] + entries[-1].bytes
    length = -(-end // gguf.TENSOR_ALIGNMENT) * gguf.TENSOR_ALIGNMENT
    places = {entry.name: (0, offset) for entry, offset in zip(entries, offsets, strict=True)}
    return (Planned("", head, length),), places


def folder_layout(entries: Sequence[Entry]) -> tuple[tuple[Planned, ...], dict[str, tuple[int, int]]]:
    """Where the entries of a folder lie: in files of at most ``SHARD`` bytes, with an index when there are several.

    Wide dtypes come first, so all are aligned.
    """
    shards: list[list[Entry]] = [[]]
    for entry in entries:
        if shards[-1] and sum(other.bytes for other in shards[-1]) + entry.bytes > SHARD:
            shards.append([])
        shards[-1].append(entry)
    files, places = [], dict[str, tuple[int, int]]()
    for number, shard in enumerate(shards):
        shard.sort(key=lambda entry: -_WIDTH[entry.dtype])
        head, offsets = safetensors.head([(e.name, e.dtype, e.shape, e.bytes) for e in shard])
        files.append(Planned(shard_name(number, len(shards)), head, len(head) + sum(e.bytes for e in shard)))
        places |= {entry.name: (number, offset) for entry, offset in zip(shard, offsets, strict=True)}
    return tuple(files), places


def shard_name(number: int, count: int) -> str:
    """The name of a file of weights as transformers gives it."""
    return "model.safetensors" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def index_of(files: Sequence[Planned], places: Mapping[str, tuple[int, int]]) -> dict[str, bytes]:
    """The index of a folder with several files of weights, by its name; nothing for one file."""
    if len(files) == 1:
        return {}
    index = {
        "metadata": {"total_size": sum(file.length - len(file.head) for file in files)},
        "weight_map": {name: files[file].name for name, (file, _) in sorted(places.items())},
    }
    return {"model.safetensors.index.json": json.dumps(index, indent=2).encode()}
