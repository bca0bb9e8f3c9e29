"""Keys and values of a sequence that kernels have written, and attention over them in float64; needs no torch."""

from __future__ import annotations

import numpy as np

from rung import formats
from rung.kernels.cpu.decode.attention import attend_rows
from rung.kernels.cpu.decode.cache_layout import score_floats
from rung.kernels.cpu.decode.rope_and_store import StoreWord, rope_and_store_kv
from rung.kernels.cpu.decode.step_program import cache_words, floats
from rung.kernels.cpu.thread_pool import run

KV_HEADS, SCALE = 2, 0.11
#: Types of numbers, and of blocks whose heads are rotated once more.
_FLOATS, _ROTATED = {"f32": np.float32, "f16": np.float16}, ("q5_1", "q4_0")
#: Bytes of 16 values.
_SIXTEENTHS = {"f32": 64, "f16": 32, "q8_0": 17, "q5_1": 12, "q4_0": 9}


def q8_0(rows):
    """Codes [rows, size] and scales [rows, size / 32] of float32 rows, as the format stores them."""
    blocks = formats.encode(np.ascontiguousarray(rows), formats.get("q8_0"), "").parts["data"]
    blocks = blocks.reshape(len(rows), -1, 34)
    return blocks[..., 2:].view(np.int8).reshape(len(rows), -1), blocks[..., :2].copy().view(np.float16)[..., 0]


def decoded(rows):
    codes, scales = q8_0(rows)
    return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1)


def rotation(size):
    """A Hadamard matrix of 1 and -1 [size, size] over its size's root, in parts of the largest power of two."""
    part = size & -size
    signs = [[(-1) ** (row & column).bit_count() for column in range(part)] for row in range(part)]
    return np.kron(np.eye(size // part), np.array(signs) / np.sqrt(part))


class Stored:
    """Random keys and values of one sequence that the kernel of a ``format`` has written, in blocks in turned order.

    What has not been written is garbage: bytes of all ones, which are NaN as float16.
    """

    def __init__(self, count, size, block, window=None, softcap=0.0, seed=0, format="q8_0"):
        random = np.random.default_rng([seed, count, size])
        self.count, self.size, self.block, self.window, self.softcap = count, size, block, window or 0, softcap
        self.keys, self.values = random.standard_normal((2, count, KV_HEADS, size)).astype(np.float32)
        self.keys *= np.exp(random.standard_normal((count, KV_HEADS, 1))).astype(np.float32)
        self.format = format
        head = block * size * _SIXTEENTHS[format] // 16
        self.memory = np.full((-(-count // block), 2, KV_HEADS, head), 255, np.uint8)
        self.table = np.array([part.ctypes.data for part in self.memory[::-1]], np.int64)
        self.floats = np.array([1e-5, SCALE, softcap], np.float32)
        self.words = cache_words(
            (block, 0, KV_HEADS * head, head, _row(size, format)), format, size, window, self.floats
        )
        self.write(0, count)

    def write(self, first, last):
        """Write the positions from first to last, on two threads."""
        keys, values = self.keys[first:last].copy(), self.values[first:last].copy()
        queries, half = np.zeros_like(keys), np.zeros(16, np.float32)
        rows = np.array([(at, self.table.ctypes.data) for at in range(first, last)], np.int64)
        words = [0] * len(StoreWord)
        words[StoreWord.TOKENS : StoreWord.Q] = last - first, KV_HEADS, 1
        words[StoreWord.Q : StoreWord.Q_APART] = (each.ctypes.data for each in (queries, keys, values))
        words[StoreWord.Q_APART : StoreWord.Q_NORM] = [keys.strides[0]] * 3
        words[StoreWord.COSINE : StoreWord.HALF] = half.ctypes.data, half.ctypes.data
        words[StoreWord.ROWS], words[StoreWord.CACHE] = rows.ctypes.data, self.words.ctypes.data
        run(rope_and_store_kv[self.format].address, words, 2)

    def attend(self, queries, position, step, head):
        """Attend with the kernel: queries [rows, size], the first of which sees the positions up to ``position``."""
        queries = self.turned(queries)
        out, scores = np.full_like(queries, 7), floats(score_floats(self.count, self.size))
        scores[:] = np.nan
        run = np.array([0, len(queries), position, self.table.ctypes.data], np.int64)
        attend_rows[self.format].call(
            *(queries.ctypes.data, queries.strides[0], out.ctypes.data, out.strides[0], len(queries), position, step),
            *(self.table.ctypes.data, head, self.words.ctypes.data, scores.ctypes.data, run.ctypes.data, head),
        )
        return out

    def turned(self, queries):
        """Queries as they are when keys and values have been written."""
        return (queries @ rotation(self.size)).astype(np.float32) if self.format in _ROTATED else queries

    def decoded(self, head):
        """Keys and values [count, size] of a head as they are stored, in q5_1 and q4_0 rotated."""
        if self.format in _FLOATS:
            return [part[:, head].astype(_FLOATS[self.format]).astype(np.float64) for part in (self.keys, self.values)]
        if self.format == "q8_0":
            return [decoded(part[:, head]) for part in (self.keys, self.values)]
        if self.format == "q5_1":
            return self.decoded_fives(head)
        keys, values = [], []
        for at in range(self.count):
            key, value = self.memory[::-1][at // self.block][:, head]
            units = key.reshape(self.block // 16, self.size // 32, 288)[at % self.block // 16]
            codes = units[:, 32:].reshape(-1, 4, 16, 4)[:, :, at % 16].reshape(-1, 16)
            keys.append(from_nibbles(codes, units[:, :32].copy().view(np.float16)[:, at % 16]))
            codes = value[at % self.block * self.size // 2 :][: self.size // 2].reshape(-1, 16)
            scales = value[self.block * self.size // 2 :].view(np.float16).reshape(-1, self.block)
            values.append(from_nibbles(codes, scales[:, at % self.block]))
        return np.array(keys), np.array(values)

    def decoded_fives(self, head):
        """The same of q5_1."""
        keys, values = [], []
        for at in range(self.count):
            key, value = self.memory[::-1][at // self.block][:, head]
            units = key.reshape(self.block // 16, self.size // 32, 384)[at % self.block // 16]
            scales, minima = (units[:, first : first + 32].copy().view(np.float16)[:, at % 16] for first in (0, 32))
            codes = units[:, 64:320].reshape(-1, 4, 16, 4)[:, :, at % 16].reshape(-1, 16)
            fifth = np.unpackbits(units[:, 320:].reshape(-1, 16, 4)[:, at % 16], axis=1, bitorder="little")
            fifth = fifth.reshape(-1, 4, 8).transpose(0, 2, 1).reshape(-1, 32)
            keys.append(from_fives(codes, fifth, scales, minima))
            units = value[: self.block * self.size * 5 // 8].reshape(self.block, -1, 20)[at % self.block]
            halves = value[self.block * self.size * 5 // 8 :].view(np.float16).reshape(2, -1, self.block)
            fifth = np.unpackbits(units[:, 16:], axis=1, bitorder="little")
            values.append(from_fives(units[:, :16], fifth, *halves[:, :, at % self.block]))
        return np.array(keys), np.array(values)

    def expected(self, query, position, head, stored=None):
        """The same of one query in float64: of the keys and values that are stored, and the query as it is rounded.

        ``stored`` is what ``decoded`` gives of the head, which takes longest.
        """
        first = max(0, position + 1 - self.window) if self.window else 0
        keys, values = stored or self.decoded(head)
        keys, values = keys[first : position + 1], values[first : position + 1]
        if self.format in _ROTATED:
            query, values = self.turned(query), values @ rotation(self.size)
        scores = keys @ (query if self.format in _FLOATS else rounded(query)) * SCALE
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        weights = np.exp(scores - scores.max())
        return weights @ values / weights.sum()


def rounded(query):
    """A query in 255 levels of its largest magnitude among 32 values."""
    units = query.reshape(-1, 32).astype(np.float64)
    scale = np.abs(units).max(axis=1, keepdims=True) / 127
    return (np.rint(units / np.where(scale == 0, 1, scale)) * scale).reshape(-1)


def from_nibbles(codes, scales):
    """The values of bytes [units, 16] of two codes each, those of the low nibbles first: float64."""
    both = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float64) - 8
    return (both * scales[:, None].astype(np.float64)).reshape(-1)


def from_fives(codes, fifth, scales, minima):
    """The same of nibbles with fifth bits [units, 32] and minima, which are taken away."""
    whole = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float64) + 16 * fifth
    return (whole * scales[:, None].astype(np.float64) - minima[:, None].astype(np.float64)).reshape(-1)


def _row(size, format):
    """Bytes between positions: of numbers those of one, of blocks what the layout says."""
    return size * np.dtype(_FLOATS[format]).itemsize if format in _FLOATS else size


def near(found, expected):
    """Return whether results are those of float64, but for the rounding of scores and weights."""
    return np.allclose(found, expected, rtol=1e-4, atol=2e-5 * max(1, np.abs(expected).max()))
