"""How each kind of file stores a tensor: GGUF, folders of plain weights, of rung, bitsandbytes, GPTQ and
compressed-tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rung import formats
from rung.conversion.gguf_keys import architecture_of, config_of
from rung.conversion.job import Entry, Step
from rung.core.errors import UnknownArchitecture
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.codec import Array
from rung.formats.families import legacy
from rung.formats.families.codebook4 import CODEBOOKS, DYNAMIC
from rung.formats.table import NESTED_BLOCK
from rung.models import architectures
from rung.models.card import ModelCard, Tensor
from rung.models.checkpoints.rung_folder import DTYPES as PARTS
from rung.models.roles import layer_of
from rung.models.settings import Settings

_GGUF = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
_FOLDER = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
#: Rows of these rotate, and stand in another order in GGUF files of Llama.
_ROTATED = ("q", "k", "q_bias", "k_bias")


def gguf_names(card: ModelCard) -> dict[str, str]:
    """The name in a GGUF file of each of the card's tensors, by role."""
    return _named(card, _GGUF, architecture_of(card).gguf_names, "blk")


def folder_names(card: ModelCard, config: Settings | None = None) -> dict[str, str]:
    """The name in a folder of each of the card's tensors, by role; ``config`` is the new one of a GGUF file.

    Raises ``UnknownArchitecture`` for tensors that transformers stores in another way (q, k and v fused).
    """
    if config is None:
        return {tensor.role: tensor.name for tensor in card.tensors}
    return _named(card, _FOLDER, architectures.MODEL_TYPES[card.decoder.model_type].names(config), "model.layers")


def _named(card: ModelCard, outside: Mapping[str, str], inside: Mapping[str, str], layers: str) -> dict[str, str]:
    by_role = {role: name for name, role in inside.items()}
    found = {}
    for tensor in card.tensors:
        role = tensor.role.rpartition(".")[2]
        layer = layer_of(tensor.role)
        if layer is None:
            found[tensor.role] = outside[role]
        elif role in by_role:
            found[tensor.role] = f"{layers}.{layer}.{by_role[role]}"
        else:
            raise UnknownArchitecture(f"{card.name}: the new file has no place for {tensor.name}")
    return found


def aliases(card: ModelCard, tensor: Tensor) -> tuple[str, ...]:
    """All names that a person may give a tensor: its role, its name in GGUF and in a folder; of a tied head both."""
    config = config_of(card) if card.kind == "folder" else Settings({"attention_bias": True, "mlp_bias": True}, "")
    roles = [tensor.role] + (["head"] if tensor.role == "embed" and card.decoder.tied_head else [])
    found = [*roles, tensor.name]
    for role in roles:
        layer, last = layer_of(role), role.rpartition(".")[2]
        if layer is None:
            found += [_GGUF[role], _FOLDER[role]]
            continue
        gguf = {r: name for name, r in architecture_of(card).gguf_names.items()}
        folder = {r: name for name, r in architectures.MODEL_TYPES[card.decoder.model_type].names(config).items()}
        found += [f"blk.{layer}.{gguf[last]}"] if last in gguf else []
        found += [f"model.layers.{layer}.{folder[last]}"] if last in folder else []
    return tuple(name.removesuffix(".weight") for name in found)


def heads_of(card: ModelCard, tensor: Tensor) -> int:
    """The heads whose rows stand in another order in the other kind of file; 0 where none do."""
    role = tensor.role.rpartition(".")[2]
    if architecture_of(card).gguf != "llama" or role not in _ROTATED:
        return 0
    return card.decoder.heads if role.startswith("q") else card.decoder.kv_heads


def shift_of(card: ModelCard, tensor: Tensor) -> float:
    """Return the number to add to a norm in the other kind of file: Gemma's folders store it less one."""
    role = tensor.role.rpartition(".")[2]
    if not card.decoder.model_type.startswith("gemma") or not role.endswith("norm"):
        return 0.0
    return 1.0 if card.kind == "folder" else -1.0


#: The float formats as safetensors calls them, and the bytes of the dtypes of the parts of others.
DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
_WIDTHS = {"U8": 1, "I8": 1, "F16": 2, "I32": 4, "F32": 4, "I64": 8}
#: The formats that GPTQ and compressed-tensors store to the bit, with their bits: symmetric, a scale for 32 columns.
PACKED_BITS = {"q4_0": 4, "q8_0": 8}
#: Columns that share a scale there.
PACKED_GROUP = 32
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


class Gptq(Plain):
    """Hold what GPTQ's packages save of a symmetric layer, in the first version of the layout (arXiv:2210.17323).

    ``qweight`` int32 [in bits / 32, out], ``qzeros`` int32 [groups, out bits / 32] with zero points less one,
    ``scales`` f16 [groups, out] and ``g_idx`` int32 [in], the group of each column.
    """

    def entries(self, step: Step) -> tuple[Entry, ...]:
        """The codes, the zero points, the scales and the groups."""
        if lossless(step.format):
            return super().entries(step)
        (rows, columns), bits = step.matrix, PACKED_BITS[step.format.name]
        stem, groups = step.name.removesuffix("weight"), columns // PACKED_GROUP
        return (
            _entry(stem + "qweight", "I32", (columns * bits // 32, rows)),
            _entry(stem + "qzeros", "I32", (groups, rows * bits // 32)),
            _entry(stem + "scales", "F16", (groups, rows)),
            _entry(stem + "g_idx", "I32", (columns,)),
        )

    def arrays(self, step: Step, encoded: Encoded) -> Iterable[Array]:
        """The contents of the entries."""
        if lossless(step.format):
            return (encoded.parts["data"],)
        (rows, columns), bits = step.matrix, PACKED_BITS[step.format.name]
        codes, scales = _codes_and_scales(encoded)
        zeros = np.full((columns // PACKED_GROUP, rows), 2 ** (bits - 1) - 1, np.uint8)
        groups = np.arange(columns, dtype=np.int32) // PACKED_GROUP
        return _words(codes, bits).T, _words(zeros, bits), scales.T, groups


class CompressedTensors(Plain):
    """Hold what compressed-tensors saves as ``pack-quantized``: ``weight_packed`` int32 [out, in bits / 32],
    ``weight_scale`` f16 [out, groups], ``weight_shape`` int64 [2]."""

    def entries(self, step: Step) -> tuple[Entry, ...]:
        """The codes, the scales and the shape."""
        if lossless(step.format):
            return super().entries(step)
        rows, columns = step.matrix
        return (
            _entry(f"{step.name}_packed", "I32", (rows, columns * PACKED_BITS[step.format.name] // 32)),
            _entry(f"{step.name}_scale", "F16", (rows, columns // PACKED_GROUP)),
            _entry(f"{step.name}_shape", "I64", (2,)),
        )

    def arrays(self, step: Step, encoded: Encoded) -> Iterable[Array]:
        """The contents of the entries."""
        if lossless(step.format):
            return (encoded.parts["data"],)
        codes, scales = _codes_and_scales(encoded)
        return _words(codes, PACKED_BITS[step.format.name]), scales, np.array(step.matrix, np.int64)


def _codes_and_scales(encoded: Encoded) -> tuple[Array, Array]:
    """Return the codes uint8 [rows, columns] of q4_0 or q8_0, counted from 0, and the scales f16 [rows, groups]."""
    rows, columns = encoded.shape
    layout = legacy.Q4_0_LAYOUT if encoded.format.name == "q4_0" else legacy.Q8_0_LAYOUT
    blocks = np.ascontiguousarray(encoded.parts["data"]).view(np.uint8).reshape(-1).view(layout)
    if encoded.format.name == "q4_0":
        codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
    else:
        codes = np.ascontiguousarray(blocks["qs"]).view(np.uint8) ^ np.uint8(128)
    scales: Array = np.ascontiguousarray(blocks["d"]).view(np.float16).reshape(rows, -1)
    return codes.reshape(rows, columns), scales


def _words(codes: Array, bits: int) -> Array:
    """Return codes uint8 [n, count] as little-endian streams of bits, int32 [n, count bits / 32]."""
    packed = codes if bits == 8 else codes[:, ::2] | (codes[:, 1::2] << np.uint8(4))
    words: Array = np.ascontiguousarray(packed).view("<i4")
    return words


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
