"""Configurations that say that their checkpoint is quantised: what of it is stored how.

https://huggingface.co/docs/transformers/quantization/fp8 and /mxfp4; the checkpoints of DeepSeek-V3 (fp8 in blocks of
128 x 128 with f32 scales; embedding, head, norms and routers as they were) and of gpt-oss (experts in mxfp4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models.card import Tensor
from rung.models.outlines.parts import tensor_bytes
from rung.models.outlines.values import TABLES
from rung.models.settings import Settings

_WHOLE = (*TABLES, "head", "router", "shared_router")


def stored(tensors: tuple[Tensor, ...], config: Settings) -> tuple[Tensor, ...]:
    """The tensors as the checkpoint stores them. Raises ``UnknownArchitecture`` for other ways of quantising."""
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
    raise UnknownArchitecture(
        f"{config.where} is quantised" + (f" with {method[:40]}" if method else ""),
        ["from a configuration alone rung knows how fp8 (in blocks) and mxfp4 checkpoints store their weights"],
        ["name the folder or the repository with its safetensors, or the unquantised version of the model"],
    )


def _last(tensor: Tensor) -> str:
    return tensor.role.rsplit(".", 1)[-1]


def _mxfp4(tensor: Tensor, where: str) -> Tensor:
    """Experts [count, in, out] are stored [count, out, in], in blocks of 32 along ``in``."""
    if _last(tensor) not in ("experts_gate_up", "experts_down"):
        return tensor
    count, inner, outer = tensor.shape
    if inner % 32:
        raise BadFile(f"{where}: mxfp4 cannot store {tensor.name}: its blocks of 32 do not divide rows of {inner}")
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
