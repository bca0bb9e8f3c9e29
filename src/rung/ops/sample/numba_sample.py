"""Sampling on a CPU by a compiled kernel: a thread takes a row at a time."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.formats.codec import Floats
from rung.kernels.cpu.sample.choose import choose_rows, room
from rung.kernels.cpu.sample.record import ERRORS, REACH, ROW
from rung.kernels.cpu.thread_pool import run
from rung.ops.token_choice import Chosen, Row, chosen

_PACKED = struct.Struct("<" + "".join({"i": "q", "u": "Q", "f": "d"}[ROW[name].kind] for name in ROW.names or ()))
#: The fields of a row that the kernel writes, and those that are empty before.
_WRITTEN = struct.Struct("<qqqqdq")
_NOTHING = (-1, 0, 0.0, 0)
_NO_TOPS = np.empty(0, np.int64)
_WORDS = struct.Struct("<6q")
#: Logits that a thread should have to look at, or it costs more to wake than it saves; where masses of all are summed
#: up, that costs as much as looking at so many times as many.
_ENOUGH, _ALL = 1 << 22, 8


class _Buffers(threading.local):
    """Memory that the kernel reads and writes: of each calling thread its own, since several may call at once."""

    def __init__(self) -> None:
        self._scratch, self.records, self.words = np.empty(0, np.uint8), bytearray(), bytearray(_WORDS.size)
        self.fit(1, 0, 0)

    def fit(self, rows: int, vocabulary: int, threads: int) -> int:
        """Make room; return the address of the words."""
        space = room(vocabulary)
        if len(self.records) < rows * ROW.itemsize or len(self._scratch) < threads * space:
            self._scratch = np.empty(max(threads * space, len(self._scratch)), np.uint8)
            self.records = bytearray(max(rows * ROW.itemsize, len(self.records)))
            arrays = (np.frombuffer(self.words, np.uint8), np.frombuffer(self.records, np.uint8), self._scratch)
            self._places = [each.ctypes.data for each in arrays]
        words, records, scratch = self._places
        _WORDS.pack_into(self.words, 0, 0, rows, vocabulary, records, scratch, space)
        return words


class _State:
    """How many threads, and the buffers."""

    def __init__(self, threads: int) -> None:
        self.threads, self.buffers = threads, _Buffers()


class Sample:
    """See ``rung.ops.sample``."""

    def prepare(self, *, threads: int) -> _State:
        """Remember the threads."""
        return _State(threads)

    def apply(self, state: _State, logits: Floats, rows: Sequence[Row]) -> list[Chosen]:
        """f32 [rows, vocabulary] -> what is chosen of each."""
        _check(logits, rows)
        vocabulary, buffers = logits.shape[1], state.buffers
        work = vocabulary * sum(1 if not row.inverse or row.top_k else _ALL for row in rows)
        threads = max(1, min(state.threads, len(rows), work // _ENOUGH))
        words = buffers.fit(len(rows), vocabulary, threads)
        at, apart = logits.ctypes.data, logits.strides[0]
        tops = [np.empty(min(row.top_logprobs, vocabulary), np.int64) if row.top_logprobs else _NO_TOPS for row in rows]
        for index, row in enumerate(rows):
            _PACKED.pack_into(buffers.records, index * ROW.itemsize, *_record(row, at + index * apart, tops[index]))
        if threads == 1:  # waking nobody
            choose_rows.call(words, 0, 1)
        else:
            run(choose_rows.address, _WORDS.unpack(buffers.words), threads)
        return [_chosen(buffers.records, index, logits[index], top) for index, top in enumerate(tops)]


def _chosen(records: bytearray, index: int, logits: Floats, top: npt.NDArray[np.int64]) -> Chosen:
    at = (index + 1) * ROW.itemsize - _WRITTEN.size
    likely, _, token, error, highest, total = _WRITTEN.unpack_from(records, at)
    if error:
        return Chosen(error=ERRORS[error])
    return chosen(logits, token, highest, total, top[:likely].tolist() if likely >= 0 else None)


def _check(logits: Floats, rows: Sequence[Row]) -> None:
    """Raise ``ValueError`` for what the kernel would read wrongly."""
    if logits.dtype != np.float32 or logits.ndim != 2 or len(rows) != len(logits):
        raise ValueError(f"logits are {logits.dtype} {logits.shape}, not float32 [{len(rows)}, vocabulary]")
    if not logits.shape[1] or (logits.shape[1] > 1 and logits.strides[1] != 4):
        raise ValueError("a row of logits must lie in one piece and have a token")
    for row in rows:
        if row.mask is not None and 64 * len(row.mask) < logits.shape[1]:
            raise ValueError(f"a mask of {len(row.mask)} words is too short for {logits.shape[1]} tokens")


def _record(row: Row, logits: int, top: npt.NDArray[np.int64]) -> tuple[Any, ...]:
    """Return the fields of ``ROW``."""
    alone = row.min_p > 0 and row.top_p >= 1 and row.typical_p >= 1  # no sum over tokens that min-p takes away
    reach = min(REACH, 1 - math.log(row.min_p)) if alone else REACH
    return (
        *(logits, row.inverse, reach),
        *(row.top_k, row.top_p, row.min_p, row.typical_p),
        *(row.repeat_penalty, row.presence_penalty, row.frequency_penalty),
        *(_address(row.previous), _address(row.counts), len(row.previous)),
        *(_address(row.bias_ids), _address(row.bias), len(row.bias_ids)),
        *(0 if row.mask is None else _address(row.mask), row.random),
        *(-1 if row.top_logprobs is None else len(top), _address(top)),
        *_NOTHING,
    )


def _address(array: npt.NDArray[Any]) -> int:
    return array.ctypes.data if len(array) else 0


RUNG = Sample()
