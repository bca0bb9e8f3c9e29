"""nf4 and fp4 for ``torch.ops.bitsandbytes``: codes and scales to the bit, products with the weight as it is stored.

Products take activations as they are given, and sum in float32 on a CPU.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from rung import formats
from rung.core.errors import CannotEncode, UsageError
from rung.formats.codec import Encoded, Source
from rung.formats.families.codebook4 import CODEBOOKS, CodebookCodec
from rung.formats.table import BLOCKS
from rung.hub.bitsandbytes.blocks import PIECE, dequantize_blockwise, nearest
from rung.kernels.cpu.pack.decoding import decode
from rung.kernels.gpu.dtypes import DTYPE_NAME
from rung.kernels.gpu.stored import rows_of_slab
from rung.nn.quantized import binding
from rung.nn.stepping import BLOCK


def quantize_4bit(a: Tensor, blocksize: int, quant_type: str, quant_storage: torch.dtype) -> tuple[Tensor, Tensor]:
    """Any floats -> codes [bytes, 1] in the storage dtype and absmax f32 [blocks]; the last block may be short."""
    flat, first = a.reshape(-1), 0
    found: list[tuple[Tensor, Tensor]] = []
    if flat.device.type == "cpu" and blocksize in BLOCKS:
        with contextlib.suppress(CannotEncode):  # NaN and Inf are left to the other way, as there
            first = len(flat) // blocksize * blocksize
            found.append(_encoded(flat[:first], blocksize, quant_type))
    values, order = (each.to(a.device) for each in _sorted(quant_type))
    for start in range(first if found else 0, len(flat), PIECE):
        indices, absmax = nearest(flat[start : start + PIECE], blocksize, values)
        if len(indices) % 2:
            indices = torch.cat([indices, indices.new_full((1,), int(values.eq(0).nonzero()[0]))])
        found.append((order[indices[::2]] << 4 | order[indices[1::2]], absmax))
    codes, scales = (torch.cat(each) for each in zip(*found, strict=True))
    return codes.view(quant_storage)[:, None], scales


def _encoded(flat: Tensor, blocksize: int, quant_type: str) -> tuple[Tensor, Tensor]:
    """Whole blocks by rung's codec, a piece at a time."""

    def read(first: int, last: int) -> Any:
        return np.ascontiguousarray(flat[first:last].float().numpy())

    source = Source("A", (len(flat) // blocksize, blocksize), read, torch.get_num_threads())
    parts = CodebookCodec(formats.get(f"{quant_type}:{blocksize}")).encode(source)
    return torch.from_numpy(parts["data"]), torch.from_numpy(parts["absmax"])


@functools.cache
def _sorted(quant_type: str) -> tuple[Tensor, Tensor]:
    """The values of a codebook in order, and their codes; the first of equal ones first."""
    values, order = torch.sort(torch.from_numpy(CODEBOOKS[quant_type]), stable=True)
    return values, order.to(torch.uint8)


def dequantize_4bit(
    a: Tensor, absmax: Tensor, blocksize: int, quant_type: str, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Codes in any storage dtype -> ``shape`` in ``dtype``."""
    count, codes = math.prod(shape), _bytes(a)
    if codes.device.type == "cpu" and blocksize in BLOCKS and count:
        stored = Encoded(
            formats.get(f"{quant_type}:{blocksize}"),
            (1, count),
            {"data": codes.numpy(), "absmax": absmax.float().numpy()},
        )
        return torch.from_numpy(decode(stored, None, torch.get_num_threads())).view(*shape).to(dtype)
    if codes.device.type == "cuda" and dtype in DTYPE_NAME and _divides(blocksize, shape[-1]):
        whole = (count // shape[-1], shape[-1])
        bound = _bound(a, whole, [absmax], absmax.float, blocksize, quant_type)
        return binding.decoded(bound, absmax.new_empty(0, dtype=dtype), 0, whole[0]).view(*shape)
    values = torch.from_numpy(CODEBOOKS[quant_type]).to(codes.device)
    decoded = values[torch.stack([codes >> 4, codes & 15], dim=1).view(-1)[:count].int()]
    return (decoded * absmax.float().repeat_interleave(blocksize)[:count]).view(*shape).to(dtype)


def _bytes(codes: Tensor) -> Tensor:
    return codes.detach().contiguous().view(-1).view(torch.uint8)


def gemm_4bit(
    a: Tensor,
    b: Tensor,
    shape: Sequence[int],
    absmax: Tensor,
    blocksize: int,
    quant_type: str,
    bias: Tensor | None = None,
    absmax_8bit: Tensor | None = None,
    absmax_code: Tensor | None = None,
    absmax_offset: Tensor | None = None,
) -> Tensor:
    """a [..., K] times the weight [N, K]: [..., N] in the dtype of a. Scales may be nested, in blocks of 256."""
    scales = [each for each in (absmax, absmax_8bit, absmax_offset) if each is not None]

    def plain() -> Tensor:
        if absmax_8bit is None or absmax_code is None or absmax_offset is None:
            return absmax.float()
        return dequantize_blockwise(absmax_8bit, absmax, absmax_code, BLOCK, torch.float32) + absmax_offset

    y = _product(a, b, shape, scales, plain, blocksize, quant_type)
    return y if bias is None else y + bias


def gemv_4bit(a: Tensor, b: Tensor, shape: Sequence[int], absmax: Tensor, code: Tensor, blocksize: int) -> Tensor:
    """The same for any number of rows, by the codebook; the weight is rounded to the dtype of a, as bitsandbytes' is.

    Its layers call ``gemm_4bit``. Raises ``UsageError`` for a weight that was repacked.
    """
    if absmax.dim() > 1:
        raise UsageError(
            "This weight is in bitsandbytes' own packing for AVX512_BF16",
            ["it was repacked in place before rung was installed; only its layer can have it back"],
            ["call rung.hub.bitsandbytes.install() before the first evaluation"],
        )
    quant_type = "fp4" if code[1] > 0 else "nf4"
    if a.dtype == torch.float32:
        return _product(a, b, shape, [absmax], absmax.float, blocksize, quant_type)
    rows, columns = shape
    if not _divides(blocksize, columns):
        weight = dequantize_4bit(b, absmax, blocksize, quant_type, shape, a.dtype)
        return linear(a.float(), weight.float()).to(a.dtype)
    bound, step = _bound(b, (rows, columns), [absmax], absmax.float, blocksize, quant_type), rows_of_slab(columns)
    slabs = [(first, min(first + step, rows)) for first in range(0, rows, step)]
    return torch.cat([linear(a.float(), binding.decoded(bound, a, *slab).float()) for slab in slabs], -1).to(a.dtype)


def _product(
    a: Tensor,
    b: Tensor,
    shape: Sequence[int],
    scales: list[Tensor],
    plain: Callable[[], Tensor],
    blocksize: int,
    quant_type: str,
) -> Tensor:
    rows, columns = shape
    dtype = a.dtype if binding.multiplies(a.device, a.dtype) else torch.float32
    x = a.detach().reshape(-1, columns).to(dtype)
    if not _divides(blocksize, columns) or not len(x):
        y = linear(x, dequantize_4bit(b, plain(), blocksize, quant_type, shape, dtype))
    else:
        y = binding.linear(_bound(b, (rows, columns), scales, plain, blocksize, quant_type), x)(x)
    return y.to(a.dtype).view(*a.shape[:-1], rows)


def _divides(blocksize: int, columns: int) -> bool:
    """Return whether a format of rung's has such blocks in rows of that many columns."""
    return blocksize in BLOCKS and columns % blocksize == 0


def _bound(
    b: Tensor,
    shape: tuple[int, int],
    scales: list[Tensor],
    plain: Callable[[], Tensor],
    blocksize: int,
    quant_type: str,
) -> binding.State:
    """The weight as rungs see it, for as long as its codes live."""
    owner = b if b._base is None else b._base
    format = formats.get(f"{quant_type}:{blocksize}")
    return binding.foreign(owner, [b, *scales], lambda: _parts(b, plain()), format, shape)


def _parts(b: Tensor, absmax: Tensor) -> dict[str, Tensor]:
    return {"data": _bytes(b), "absmax": absmax.detach().contiguous()}
