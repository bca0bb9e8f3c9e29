"""How each kind of file stores a tensor: GGUF, folders of plain weights, of rung and of bitsandbytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from rung import formats
from rung.conversion.job import Entry, Step
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.codec import Array
from rung.formats.families.codebook4 import CODEBOOKS, DYNAMIC
from rung.formats.table import NESTED_BLOCK
from rung.models.checkpoints.rung_folder import DTYPES as PARTS

#: The float formats as safetensors calls them, and the bytes of the dtypes of the parts of others.
DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
_WIDTHS = {"U8": 1, "I8": 1, "I32": 4, "F32": 4}
_TORCH = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def lossless(format: Format) -> bool:
    """Return whether it is a float that safetensors has a dtype for."""
    return format.name in DTYPES


class Gguf:
    """A tensor as one tensor."""

    def entries(self, step: Step) -> tuple[Entry, ...]:
        """One entry."""
        return (Entry(step.name, step.format.name, step.tensor.shape, step.format.bytes(step.tensor.shape)),)

    def arrays(self, step: Step, encoded: Encoded) -> Iterable[Array]:
        """Its blocks."""
        return (encoded.parts["data"],)


class Plain:
    """Floats as safetensors stores them."""

    def entries(self, step: Step) -> tuple[Entry, ...]:
        """One entry for floats; what else there is the other styles say."""
        assert lossless(step.format), f"a plain folder holds floats, not {step.format.name}"
        shape = step.tensor.shape
        return (Entry(step.name, DTYPES[step.format.name], shape, step.format.bytes(shape)),)

    def arrays(self, step: Step, encoded: Encoded) -> Iterable[Array]:
        """The floats."""
        return (encoded.parts["data"],)


class Rung(Plain):
    """The parts of a quantized layer, as ``rung.nn`` names them in a state dictionary."""

    def entries(self, step: Step) -> tuple[Entry, ...]:
        """An entry for each part."""
        if lossless(step.format):
            return super().entries(step)
        stem = step.name.removesuffix(".weight") + ".stored."
        return tuple(
            _entry(stem + formats.part_name(step.format, part), PARTS[dtype], shape)
            for part, (shape, dtype) in formats.parts(step.format, step.matrix).items()
        )

    def arrays(self, step: Step, encoded: Encoded) -> Iterable[Array]:
        """The parts."""
        return encoded.parts.values()


class Bitsandbytes(Plain):
    """Hold what ``bitsandbytes`` saves of its ``Linear4bit`` and ``Linear8bitLt`` (version 0.4x and 0.5x)."""

    def entries(self, step: Step) -> tuple[Entry, ...]:
        """The codes, their scales, and for 4 bits the code book and a JSON text that describes them."""
        if lossless(step.format):
            return super().entries(step)
        parts = formats.parts(step.format, step.matrix)
        if step.format.name == "int8":
            stem = step.name.removesuffix("weight")
            return (
                _entry(step.name, "I8", parts["data"][0]),
                _entry(stem + "SCB", "F32", parts["scale"][0]),
                _entry(stem + "weight_format", "U8", ()),
            )
        kind = step.format.name.split(":")[0]
        found = [
            _entry(step.name, "U8", (*parts["data"][0], 1)),
            _entry(f"{step.name}.absmax", PARTS[parts["absmax"][1]], parts["absmax"][0]),
            _entry(f"{step.name}.quant_map", "F32", (16,)),
        ]
        if step.format.nested:
            found.append(_entry(f"{step.name}.nested_absmax", "F32", parts["nested_absmax"][0]))
            found.append(_entry(f"{step.name}.nested_quant_map", "F32", (256,)))
        found.append(_entry(f"{step.name}.quant_state.bitsandbytes__{kind}", "U8", (len(_state(step, 0.0)),)))
        return tuple(found)

    def arrays(self, step: Step, encoded: Encoded) -> Iterable[Array]:
        """The contents of the entries."""
        parts = encoded.parts
        if lossless(step.format):
            return (parts["data"],)
        if step.format.name == "int8":
            # bitsandbytes keeps the largest magnitude of a row; 0 is its layout "row"
            return parts["data"], parts["scale"] * np.float32(127), np.zeros((), np.uint8)
        found = [parts["data"], parts["absmax"], CODEBOOKS[step.format.name.split(":")[0]]]
        offset = 0.0
        if step.format.nested:
            found += [parts["nested_absmax"], DYNAMIC]
            offset = float(parts["nested_offset"][0])
        return (*found, np.frombuffer(_state(step, offset), np.uint8))


def _state(step: Step, offset: float) -> bytes:
    """``QuantState.as_dict(packed=True)`` of bitsandbytes; blanks at the end, so that every offset takes as much."""
    state: dict[str, Any] = {
        "quant_type": step.format.name.split(":")[0],
        "blocksize": step.format.block,
        "dtype": _TORCH.get(step.tensor.format, "bfloat16"),
        "shape": list(step.matrix),
    }
    if step.format.nested:
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": offset}
    text = json.dumps(state).encode()
    return text.ljust(256 if step.format.nested else len(text))


def _entry(name: str, dtype: str, shape: tuple[int, ...]) -> Entry:
    count = 1
    for length in shape:
        count *= length
    return Entry(name, dtype, shape, count * _WIDTHS[dtype])
