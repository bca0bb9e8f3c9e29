"""nf4 and fp4 in the layout of bitsandbytes: 4-bit indices into a codebook, one scale a block of the flattened tensor.

The codebook of nf4 is that of QLoRA (arXiv:2305.14314, appendix E); fp4 is a float of 1 sign, 2 exponent and 1
mantissa bits, divided by its largest value 12. Nested scales are stored in 8 bits, as offsets from their mean in
blocks of 256, with the dynamic codebook of arXiv:1511.04561.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rung.core.types import Format
from rung.formats.codec import PIECE, Array, Codec, Codes, Encoded, Floats, Source, columns, peaks
from rung.formats.table import NESTED_BLOCK

#: All block sizes are multiples of this many weights.
_GROUP = 64
#: bitsandbytes looks 8-bit codes up on a CPU in a table of that many steps between -1 and 1: below 1.5e-5 of the
#: largest they are not the nearest.
_STEPS = 65536

NF4: Floats = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
FP4: Floats = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32) / np.float32(12)
CODEBOOKS = {"nf4": NF4, "fp4": FP4}


def _dynamic_codebook() -> Floats:
    """The 256 sorted values of the nested scales: 7 decades of linear fractions, twice as many in each next one."""
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = _evenly(2**exponent + 1)
        means = (edges[:-1] + edges[1:]) / np.float32(2)
        values += [*(np.float32(10.0 ** (exponent - 6)) * means), *(np.float32(-(10.0 ** (exponent - 6))) * means)]
    return np.sort(np.array(values, np.float32))


def _evenly(count: int) -> Floats:
    """0.1 ... 1 in even steps, float32 [count], rounded as torch.linspace does: bitsandbytes' table comes from it.

    The first half is counted from below, the second from above, with a float32 step and one rounding at the end.
    """
    first, index = np.float32(0.1), np.arange(count)
    step = np.float64((np.float32(1) - first) / np.float32(count - 1))
    edges = np.where(index < count // 2, first + step * index, 1 - step * (count - 1 - index))
    return edges.astype(np.float32)


DYNAMIC: Floats = _dynamic_codebook()


def middles(codebook: Floats) -> Floats:
    """Return the midpoints between neighboring values of a sorted codebook."""
    return (codebook[:-1] + codebook[1:]) / np.float32(2)


@dataclass(frozen=True)
class CodebookCodec(Codec):
    """Blocks of the flattened tensor; the last one may be short, and the last byte may hold one weight only."""

    format: Format

    @property
    def codebook(self) -> Floats:
        """The 16 values of the indices, float32."""
        return CODEBOOKS[self.format.name.split(":")[0]]

    def encode(self, source: Source) -> dict[str, Array]:
        """The parts ``data`` and ``absmax``, with ``nested_absmax`` and ``nested_offset`` when nested."""
        block = self.format.block
        data = np.zeros(-(-source.size // 2), np.uint8)
        absmax = np.zeros(-(-source.size // block), np.float32)

        def pack(first: int, piece: Floats) -> None:
            blocks = -(-len(piece) // block)
            padded = np.zeros(blocks * block, np.float32)
            padded[: len(piece)] = piece
            weights = columns(padded.reshape(-1, _GROUP), _GROUP)
            peak = peaks(weights.min(axis=0), weights.max(axis=0)).reshape(blocks, -1).max(axis=1)
            absmax[first // block :][:blocks] = peak
            factor = np.float32(1) / np.maximum(peak, np.float32(1e-38))
            weights *= np.repeat(factor, block // _GROUP)
            codes = self._nearest(weights)
            packed = ((codes[::2] << 4) | codes[1::2]).T.reshape(-1)
            data[first // 2 :][: -(-len(piece) // 2)] = packed[: -(-len(piece) // 2)]

        source.each(PIECE, pack)
        return {"data": data, "absmax": absmax} if not self.format.nested else {"data": data, **nest(absmax)}

    def _nearest(self, weights: Floats) -> Codes:
        """Indices of the values nearest to ``weights`` in -1 ... 1; the smaller value of two equally near ones."""
        order = np.argsort(self.codebook, kind="stable").astype(np.uint8)
        rank = np.zeros(weights.shape, np.uint8)
        for middle in middles(self.codebook[order]):
            rank += (weights > middle).view(np.uint8)
        return rank if self.format.name.startswith("nf4") else order[rank]

    def decode(self, encoded: Encoded, first: int, out: Floats) -> None:
        """Writes the weights from ``first`` on of the flattened tensor to ``out`` [n]."""
        block, last = self.format.block, first + len(out)
        start, end = first // block, -(-last // block)
        packed = encoded.parts["data"][start * block // 2 : -(-min(end * block, last + last % 2) // 2)]
        whole = np.empty((end - start, block), np.float32)
        flat = whole.reshape(-1)
        # One look-up gives both weights of a byte.
        np.take(self.pairs(), packed, out=flat[: 2 * len(packed)].view(np.uint64), mode="clip")
        flat[2 * len(packed) :] = 0
        whole *= scales(encoded, start, end)[:, None]
        out[:] = flat[first - start * block :][: len(out)]

    def pairs(self) -> npt.NDArray[np.uint64]:
        """The two float32 that each byte stands for, side by side in 64 bits."""
        byte = np.arange(256)
        return np.stack([self.codebook[byte >> 4], self.codebook[byte & 15]], axis=1).view(np.uint64)[:, 0]


def nest(absmax: Floats) -> dict[str, Array]:
    """The parts that store block scales [blocks] in 8 bits."""
    with np.errstate(over="ignore"):
        offset = _sum(absmax) / np.float32(max(len(absmax), 1))
    if not np.isfinite(offset):  # the sum is above what float32 holds, the mean is not
        offset = np.float32(absmax.mean(dtype=np.float64))
    padded = np.zeros((-(-len(absmax) // NESTED_BLOCK), NESTED_BLOCK), np.float32)
    padded.reshape(-1)[: len(absmax)] = absmax - offset
    peak = np.abs(padded).max(axis=1, initial=0.0)
    padded *= np.float32(1) / np.maximum(peak, np.float32(1e-38))[:, None]
    codes = _looked_up()[((padded + 1) * np.float32((_STEPS - 1) / 2) + np.float32(0.5)).astype(np.int32)]
    codes[peak == 0] = 0
    return {"absmax": codes.reshape(-1)[: len(absmax)], "nested_absmax": peak, "nested_offset": offset.reshape(1)}


@functools.cache
def _looked_up() -> Codes:
    """The code of each of ``_STEPS`` values from -1 to 1."""
    steps = np.float32(2) * np.arange(_STEPS, dtype=np.float32) / np.float32(_STEPS - 1) - np.float32(1)
    return np.searchsorted(middles(DYNAMIC), steps).astype(np.uint8)


def _sum(values: Floats) -> np.float32:
    """The sum in the order of torch on a CPU with one thread, to the bit (aten/src/ATen/native/cpu/SumKernel.cpp).

    Eight lanes, four rows of them beside each other; from 32,768 values on torch's own order depends on its threads.
    """
    lanes = 8 if len(values) >= 8 else 1
    rows = values[: len(values) // lanes * lanes].reshape(-1, lanes)
    whole = len(rows) // 4 * 4
    first, *others = _cascade(rows[:whole].reshape(-1, 4 * lanes)).reshape(4, lanes)
    summed = _in_order(np.stack([first, *rows[whole:], *others]))
    return np.float32(_in_order(np.concatenate([values[rows.size :], summed])))


def _cascade(rows: Floats) -> Floats:
    """The sum of rows [n, lanes]: each level adds up as many sums of the level below as the first one does rows."""
    step = 1 << max(4, (len(rows) - 1).bit_length() // 4)
    left = []
    for _ in range(3):
        whole, lanes = len(rows) // step, rows.shape[1]
        left.append(_in_order(rows[whole * step :]))
        rows = _in_order(rows[: whole * step].reshape(whole, step, lanes).swapaxes(0, 1))
    return _in_order(np.stack([*left, _in_order(rows)]))


def _in_order(rows: Floats) -> Floats:
    """The sum of rows [n, ...], one after the other."""
    total = np.zeros(rows.shape[1:], np.float32)
    for row in rows:
        total += row
    return total


def scales(encoded: Encoded, first: int = 0, last: int | None = None) -> Floats:
    """The scales float32 of the blocks [first, last) of a weight in nf4 or fp4, nested or not."""
    absmax = encoded.parts["absmax"]
    last = len(absmax) if last is None else last
    if not encoded.format.nested:
        return absmax[first:last]
    outer = encoded.parts["nested_absmax"][np.arange(first, last) // NESTED_BLOCK]
    return DYNAMIC[absmax[first:last]] * outer + encoded.parts["nested_offset"]
