"""Products with weights in the memory of a GPU, and such weights as floats, on torch's tensors.

Where tensors lie in the processor's memory, the kernels run there (``fibers``).
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rung.formats import Encoded
from rung.formats.families import iq
from rung.formats.families.codebook4 import DYNAMIC
from rung.formats.families.microscale import HALF_E4M3
from rung.kernels.cpu.pack.layouts import divides
from rung.kernels.cuda import driver, fibers
from rung.kernels.cuda.block_readers import BLOCKS, GRIDS
from rung.kernels.cuda.driver import Argument
from rung.kernels.cuda.readers import STORED, Layout, stored
from rung.kernels.cuda.source import (
    COUNTS,
    MOST_ROWS,
    THREADS,
    Source,
    activation_bytes,
    byte_product,
    bytes_of_rows,
    count_of,
    counts,
    decoding,
    product,
    tile_of,
)
from rung.kernels.gpu.dtypes import DTYPE_NAME
from rung.kernels.gpu.stored import Stored, rows_of_slab
from rung.kernels.webgpu.layouts import FLOATS, UNIT
from rung.kernels.webgpu.packing import pack

#: Weights that are packed at once: each is in the host's memory twice then.
_PACKING = threading.Semaphore(1)


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight [rows, columns] on one device: its layout, and four sections, which are codes, high bits or a table of
    scales, scales, and scales of blocks. A layout leaves some of them empty."""

    shape: tuple[int, int]
    layout: Layout
    sections: tuple[Tensor, Tensor, Tensor, Tensor]

    def __post_init__(self) -> None:
        aligned = tuple(each if each.data_ptr() % 16 == 0 else each.clone() for each in self.sections)
        object.__setattr__(self, "sections", aligned)

    @property
    def units(self) -> int:
        """Units of 32 columns."""
        return self.shape[1] // UNIT


@dataclass(frozen=True, eq=False)
class Packed:
    """A weight on a GPU, the dtype that many rows are multiplied in, and what the weight was made of: a part of a
    mapped file, which takes no memory."""

    weight: Weight
    dtype: torch.dtype
    source: Encoded = field(repr=False)


#: Weights by the state that they are of.
_OF_STORED: weakref.WeakKeyDictionary[Stored, dict[torch.device, Weight]] = weakref.WeakKeyDictionary()


def of_parts(encoded: Encoded, parts: dict[str, Tensor]) -> Weight:
    """Return a weight that is read as it is stored; ``parts`` are those of ``encoded``, on their device."""
    codes, layout = parts["data"], stored(encoded.format)
    nothing = codes[:0]
    if layout.base.codes in FLOATS:
        return Weight(encoded.shape, layout, (codes, nothing, nothing, nothing))
    if layout.blocks:
        table = _table(layout.blocks, codes.device)
        return Weight(encoded.shape, layout, (codes, nothing if table is None else table, codes, nothing))
    if not encoded.format.nested:
        scales = parts["absmax"] if "absmax" in parts else parts["scale"]
        return Weight(encoded.shape, layout, (codes, nothing, scales, nothing))
    table = torch.cat([torch.from_numpy(DYNAMIC).to(codes.device), parts["nested_offset"].reshape(1)])
    return Weight(encoded.shape, layout, (codes, table, parts["absmax"], parts["nested_absmax"]))


@functools.cache
def _table(name: str, device: torch.device) -> Tensor | None:
    """Return the table that blocks of a type index, on a device: a grid as signed bytes, or scales; or None."""
    if name == "nvfp4":
        return torch.from_numpy(HALF_E4M3).to(device)
    if name not in GRIDS:
        return None
    grid, factor = GRIDS[name]
    return torch.from_numpy((iq.grid(grid) * factor).astype(np.int8)).to(device)


def reads(encoded: Encoded) -> bool:
    """Return whether kernels read rows of a weight as it is stored: units of 32 columns, in their own order."""
    format = encoded.format
    known = format.name.split(":")[0] in (*STORED, *BLOCKS, *FLOATS)
    return known and format.layout != "ordered" and divides(format, encoded.shape[1])


def of_stored(state: Stored, device: torch.device) -> Weight:
    """Return a weight that is read as it is stored, on a device; made once."""
    known = _OF_STORED.setdefault(state, {})
    if device not in known:
        known[device] = of_parts(state.encoded, state.on(device))
    return known[device]


def packed(encoded: Encoded, device: torch.device) -> Weight:
    """Return a weight in a layout of ``kernels.webgpu``, on a device."""
    from rung.kernels.isa.products import packs_signed_bytes

    with _PACKING:
        base, sections = pack(encoded, packs_signed_bytes())
        codes, highs, scales, heads = (torch.from_numpy(part.view(np.int32)).to(device) for part in sections)
    return Weight(encoded.shape, Layout(base), (codes, highs, scales, heads))


def linear(weight: Weight, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x W^T [M, rows] in the dtype of x [M, columns], any floats, on the device of the weight.

    More than 16 rows are torch's own product in ``dtype``, with slabs of the weight that one kernel decodes.
    """
    if x.shape[0] <= MOST_ROWS:
        return multiply(weight, x if x.dtype in DTYPE_NAME else x.to(torch.float32)).to(x.dtype)
    (rows, columns), inputs = weight.shape, x.to(dtype)
    y, step = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device), rows_of_slab(columns)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        y[:, first:last] = torch.nn.functional.linear(inputs, decode(weight, first, last, dtype))
    return y


def multiply(weight: Weight, x: Tensor) -> Tensor:
    """Return x W^T [M, rows] in the dtype of x [M, columns] (f32, f16 or bf16), a few rows of it, on the device of the
    weight. Each row is computed alone: what is beside it changes no bit of it."""
    many, (rows, columns) = x.shape[0], weight.shape
    y = torch.empty(many, rows, dtype=x.dtype, device=x.device)
    if not many:
        return y
    count = count_of(weight.layout, many)
    padded = -(-many // count) * count
    source = product(weight.layout, DTYPE_NAME[x.dtype], count)
    inputs = x.detach() if x.stride(1) == 1 and _aligned(x) else x.detach().contiguous()
    activations = torch.empty(
        padded, activation_bytes(weight.layout.looks_up, columns), dtype=torch.uint8, device=x.device
    )
    sizes = (ctypes.c_longlong(inputs.stride(0)), ctypes.c_int(weight.units), ctypes.c_int(many))
    _launch(x.device, source, "activations", (-(-weight.units * 8 // THREADS), padded), [inputs, activations], sizes)
    sizes_of = (ctypes.c_int(rows), ctypes.c_int(weight.units), ctypes.c_int(many))
    grid = (-(-rows // tile_of(count)), padded // count)
    _launch(x.device, source, "multiply", grid, [*weight.sections, activations, y], sizes_of)
    return y


def quantized_rows(x: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return int8 like x [M, columns] (f32, f16 or bf16), the largest magnitude f32 [M] of each row, and whether a
    column has one that is not below the threshold, bool [columns]: such are no part of their rows. 0 for none."""
    inputs = x.detach() if x.stride(1) == 1 else x.detach().contiguous()
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    peaks = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    outliers = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
    sizes = (ctypes.c_longlong(inputs.stride(0)), ctypes.c_int(x.shape[1]), ctypes.c_float(threshold))
    source = bytes_of_rows(DTYPE_NAME[x.dtype])
    _launch(x.device, source, "quantize_rows", (x.shape[0], 1), [inputs, codes, peaks, outliers], sizes)
    return codes, peaks, outliers


def multiply_bytes(
    a: Tensor,
    b: Tensor,
    scales: tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return int8 a [M, K] times int8 b [N, K]: int32 [M, N], exact; with the largest magnitudes f32 [M] and [N] that
    127 stands for, and a bias [N], the product in f32, f16 or bf16. K is a multiple of 16."""
    (many, columns), rows = a.shape, b.shape[0]
    count = next((each for each in COUNTS if each >= many), COUNTS[-1])
    source, grid = byte_product(DTYPE_NAME[dtype], count), (-(-rows // tile_of(count)), -(-many // count))
    operands = [
        each.contiguous() if _aligned(each) else each.clone(memory_format=torch.contiguous_format) for each in (a, b)
    ]
    sizes = tuple(map(ctypes.c_int, (rows, columns // 16, many)))
    if scales is None:
        y = torch.empty(many, rows, dtype=torch.int32, device=a.device)
        _launch(a.device, source, "sum_bytes", grid, [*operands, y], sizes)
        return y
    y = torch.empty(many, rows, dtype=dtype, device=a.device)
    wide = [each.contiguous() for each in scales]
    kept = None if bias is None else bias.float().contiguous()
    address = ctypes.c_void_p(None if kept is None else kept.data_ptr())
    _launch(a.device, source, "multiply_bytes", grid, [*operands, y, *wide], (address, *sizes))
    return y


def most_rows(weight: Weight) -> int:
    """Return the rows of activations that read the weight once."""
    return counts(weight.layout)[-1]


def decode(weight: Weight, first: int, last: int, dtype: torch.dtype) -> Tensor:
    """Return the rows [first, last) in f32, f16 or bf16: what the format stands for, rounded once."""
    codes = weight.sections[0]
    y = torch.empty(last - first, weight.shape[1], dtype=dtype, device=codes.device)
    blocks = -(-(last - first) * weight.units // THREADS)
    sizes = tuple(map(ctypes.c_int, (first, last, weight.units)))
    if blocks:
        source = decoding(weight.layout, DTYPE_NAME[dtype])
        _launch(codes.device, source, "decode", (blocks, 1), [*weight.sections, y], sizes)
    return y


def _aligned(x: Tensor) -> bool:
    """Return whether four numbers of each row, 16 of int8, can be loaded at once."""
    vector = 16 if x.dtype == torch.int8 else 4 * x.element_size()
    return x.data_ptr() % vector == 0 and x.stride(0) * x.element_size() % vector == 0


def _launch(
    device: torch.device,
    source: Source,
    kernel: str,
    grid: tuple[int, int],
    tensors: Sequence[Tensor],
    sizes: Sequence[Argument],
) -> None:
    launch(device, source, kernel, grid, (*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), *sizes))


def launch(
    device: torch.device, source: Source, kernel: str, grid: tuple[int, int], arguments: Sequence[Argument]
) -> None:
    """Launch a kernel where tensors of a device lie."""
    if device.type == "cpu":
        fibers.launch(source, kernel, grid, arguments)
    else:
        driver.launch(device, source, kernel, grid, arguments)
