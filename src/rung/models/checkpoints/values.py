"""Define what readers of quantized checkpoints share: stored tensors as they lie in files, and what a weight is made
of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.value import FrozenDict, Value
from rung.formats import table

if TYPE_CHECKING:
    import numpy as np

    from rung.formats import Encoded

#: Scales in safetensors' names of types -> in those of ``rung.formats.families.grouped``.
FLOATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}

#: The method of rung's own folders, whose weights ``own.gather`` finds: their shapes are in no header.
OWN = "rung"

#: Types of the groups of columns.
INDICES = ("I32", "I64")


@dataclass(frozen=True)
class Header(Value):
    """One stored tensor, without its values: its name, shape, and type as safetensors names it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class StoredWeight(Value):
    """A weight of ``shape`` as rung holds it: ``format`` is a printed name; ``settings`` are what ``read`` asks for."""

    shape: tuple[int, ...]
    format: str
    settings: FrozenDict[Any]


@dataclass(frozen=True, eq=False)
class Raw:
    """The values of a stored tensor: numbers as numpy has them, floats of 16 and 8 bits as unsigned integers."""

    dtype: str
    values: np.ndarray[Any, Any]

    def floats(self) -> np.ndarray[Any, Any]:
        """The values as float32; powers of two (ue8m0, as bytes or as what they are) are raised."""
        import numpy as np

        from rung.formats.families import grouped

        if self.dtype in ("U8", "F8_E8M0"):
            result: np.ndarray[Any, Any] = np.ldexp(np.float32(1), self.values.astype(np.int32) - 127).astype(
                np.float32
            )
            return result
        if self.dtype == "F16":
            return self.values.view(np.float16).astype(np.float32)
        return grouped.widen(self.values, FLOATS[self.dtype])


#: Columns of a block where a scale is a whole row's: long rows and short ones then have one format.
WHOLE_ROW = 256
#: How numpy sees the values of safetensors' types; floats of 16 and 8 bits as unsigned integers.
_NUMPY = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U16": "<u2", "U32": "<u4"}
_NUMPY |= {"F16": "<u2", "BF16": "<u2", "U8": "u1", "BOOL": "u1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1"}


def raw_of(dtype: str, shape: tuple[int, ...], data: np.ndarray[Any, Any]) -> Raw:
    """The values of a stored tensor from its bytes; a view. Raises ``BadFile`` for a type that no method uses."""
    if dtype not in _NUMPY:
        raise BadFile(f"A quantized weight has a part of {dtype}, which no method uses")
    return Raw(dtype, data.view(_NUMPY[dtype]).reshape(shape))


Headers = Mapping[str, Header]
#: The values of a small part, read now.
Peek = Callable[[str], Raw]


class Method(Protocol):
    """How one quantizer stores its weights; a module of this package."""

    #: What the names of its tensors end with -> the part of a weight that they are.
    SUFFIXES: Mapping[str, str]
    #: The part without which there is no quantized weight.
    KEY: str

    @staticmethod
    def stored_weight(config: Mapping[str, Any], name: str, parts: Headers, peek: Peek) -> StoredWeight | None:
        """How the weight is held; None for one that is stored as it is. Raises ``BadFile`` for contradictions, and
        ``UnknownArchitecture`` for a variant that rung does not read."""

    @staticmethod
    def read(stored: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
        """The weight [rows, columns], every value as the method's own package decodes it. Raises ``BadFile``."""


def contradiction(name: str, *facts: str) -> BadFile:
    """The error for tensors that are not what the quantization config says."""
    return BadFile(f"{name} contradicts the quantization config of its model", facts, _WAYS)


_WAYS = ("hf download ORG/REPO --force-download: one of the two was changed, or belongs to another model",)


def unread(what: str) -> UnknownArchitecture:
    """The error for a variant of a method that rung does not read."""
    return UnknownArchitecture(f"quantization_config: {what}", (), OTHER_COPY)


#: What helps where rung does not read how a checkpoint is quantized.
OTHER_COPY = ("rung run ORG/REPO   # the unquantized or a GGUF version of the model",)


def need(name: str, parts: Headers, *names: str) -> None:
    """Raises ``BadFile`` where a part is missing."""
    missing = [part for part in names if part not in parts]
    if missing:
        have = ", ".join(header.name for header in parts.values())
        raise BadFile(f"{name} lacks {' and '.join(missing)}", [f"there is {have}"], _WAYS, code="model-incomplete")


def shaped(name: str, header: Header, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Raises ``BadFile`` for a part of another shape or type."""
    if header.shape != shape or header.dtype not in dtypes:
        raise contradiction(
            name,
            f"{header.name} is {list(header.shape)} of {header.dtype}",
            f"expected: {list(shape)} of {' or '.join(dtypes)}",
        )


def whole(config: Mapping[str, Any], key: str, choices: tuple[int, ...], default: object = None) -> int:
    """A number of bits of a quantization config. Raises ``BadFile``, ``UnknownArchitecture`` where it is none of
    ``choices``."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 16:
        raise BadFile(f"quantization_config: {key} is {str(value)[:40]!r}, no number of bits")
    if value not in choices:
        raise unread(f"{key} is {value}, and rung reads {', '.join(map(str, choices))}")
    return value


def group_size(config: Mapping[str, Any], columns: int, key: str = "group_size") -> int:
    """Columns that share a scale: a positive number, or the row for -1 and null. Raises ``BadFile``."""
    value = config.get(key, -1)
    if value is None or value == -1:
        return columns
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadFile(f"quantization_config: {key} is {str(value)[:40]!r}, not a number of columns")
    return value


def format_of(bits: int, group: int, scale: str, symmetric: bool, ordered: bool, columns: int) -> str:
    """The format that holds such a weight without loss.

    Codes of 4 and 8 bits around the middle with f16 scales are q4_0 and q8_0, which rung computes fast and writes.
    """
    if symmetric and not ordered and scale == "f16" and bits in (4, 8) and group % 32 == 0:
        return {4: "q4_0", 8: "q8_0"}[bits]
    block = math.gcd(columns, WHOLE_ROW) if group == columns else group
    return table.grouped({2: "u2", 3: "u4", 4: "u4", 8: "u8"}[bits], block, scale, ordered).name


def words_for(count: int, bits: int) -> int:
    """Words of 32 bits that so many codes need."""
    return -(-count * bits // 32)
