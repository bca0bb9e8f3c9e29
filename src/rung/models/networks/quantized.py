"""Configurations that say that their checkpoint is quantized: what of it is stored how.

https://huggingface.co/docs/transformers/quantization/fp8 and /mxfp4; the checkpoints of DeepSeek-V3 (fp8 in blocks of
128 x 128 with f32 scales; embedding, head, norms and routers as they were) and of gpt-oss (experts in mxfp4); rung's
own folders of models that write text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.types import EMPTY
from rung.formats.choice import Choice
from rung.models.card import Source, Tensor
from rung.models.checkpoints import OWN, StoredWeight, rung_folder
from rung.models.networks.parts import tensor_bytes
from rung.models.networks.values import GENERATES, TABLES
from rung.models.settings import Settings

_WHOLE = (*TABLES, "head", "router", "shared_router")
#: What no layer of rung's holds.
_PLAIN = ("router", "shared_router", "conv", "table")


def stored(tensors: tuple[Tensor, ...], config: Settings, role: str) -> tuple[Tensor, ...]:
    """The tensors of a component of that role as the checkpoint stores them.

    Raises ``UnknownArchitecture`` for other ways of quantizing, ``BadFile`` for values that cannot be.
    """
    found = config.raw("quantization_config") or config.raw("compression_config")
    if not found:
        return tensors
    if not isinstance(found, Mapping):
        raise config.bad("quantization_config", found, "an object")
    method = str(found.get("quant_method", ""))
    if method == "mxfp4":
        return tuple(_mxfp4(tensor, config.where) for tensor in tensors)
    if method == "fp8":
        block = found.get("weight_block_size")
        if not (isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
            raise config.bad("weight_block_size", block, "two whole numbers")
        return tuple(part for tensor in tensors for part in _fp8(tensor, block[0], block[1]))
    if method == OWN and role in GENERATES:
        return _own(tensors, rung_folder.quantization_choice(found, config.where))
    raise UnknownArchitecture(
        f"{config.where} is quantized" + (f" with {method[:40]}" if method else ""),
        ["from a configuration alone rung knows how fp8 (in blocks), mxfp4 and its own checkpoints are stored"],
        ["rung plan FOLDER   # where transformers builds the network", "name the unquantized version of the model"],
        code="quantization-unknown",
    )


def _last(tensor: Tensor) -> str:
    return tensor.role.rsplit(".", 1)[-1]


def _mxfp4(tensor: Tensor, where: str) -> Tensor:
    """Experts [count, in, out] are stored [count, out, in], in blocks of 32 along ``in``."""
    if _last(tensor) not in ("experts_gate_up", "experts_down"):
        return tensor
    count, inner, outer = tensor.shape
    if inner % 32:
        raise BadFile(
            f"{where}: mxfp4 cannot store {tensor.name}: its blocks of 32 do not divide rows of {inner}",
            code="format-does-not-suit",
        )
    shape = (count, outer, inner)
    return replace(tensor, shape=shape, format="mxfp4", bytes=tensor_bytes("mxfp4", shape))


def _fp8(tensor: Tensor, rows: int, columns: int) -> tuple[Tensor, ...]:
    if len(tensor.shape) < 2 or _last(tensor) in _WHOLE:
        return (tensor,)
    *stack, outer, inner = tensor.shape
    scales = (*stack, -(-outer // rows), -(-inner // columns))
    return (
        replace(tensor, format="F8_E4M3", bytes=tensor_bytes("F8_E4M3", tensor.shape)),
        Tensor(f"{tensor.role}_scale", f"{tensor.name}_scale_inv", scales, "f32", 0, 0, tensor_bytes("f32", scales)),
    )


def _own(tensors: tuple[Tensor, ...], choice: Choice) -> tuple[Tensor, ...]:
    """Each matrix in the format that its layer was given."""
    matrices = (tensor for tensor in tensors if 2 <= len(tensor.shape) <= 3 and _last(tensor) not in _PLAIN)
    layers = {tensor.name: _layer(tensor) for tensor in matrices}
    names = set(layers.values())
    weights = []
    for tensor in tensors:
        layer = layers.get(tensor.name)
        chosen = layer and choice.of((layer,), _last(tensor) in (*TABLES, "head"), names)
        if chosen and chosen.divides(tensor.shape[-1]):
            size = math.prod(tensor.shape[:-2]) * chosen.bytes(tensor.shape[-2:])
            source = Source(OWN, StoredWeight(tensor.shape, chosen.name, EMPTY), ())
            tensor = replace(tensor, format=chosen.name, bytes=size, source=source)
        weights.append(tensor)
    return tuple(weights)


def _layer(tensor: Tensor) -> str:
    """The name of the layer that a weight is of; two tensors are one layer of experts."""
    return tensor.name.removesuffix(".weight") if len(tensor.shape) == 2 else tensor.name.rpartition(".")[0]
