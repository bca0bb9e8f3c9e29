"""Measure what ``rung calibrate`` measures on a GPU: whatever torch computes on beside the processor.

There a launch goes into a queue, and what was launched before is computed meanwhile: a token takes as long as all
launches or as all bytes, whichever is longer (``rung.planning.speed``). So both are measured apart, in the rungs that
``rung run`` binds there. Many tiny products in a row take the time of their launches, matrices of usual size that of
their bytes or, with many rows, their operations; one query over a long cache that of its bytes. What the tokens of a
narrow decoder take beside their products are the launches of its layers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from rung import formats
from rung.core.types import Device, Format
from rung.engine.calibration import transformers
from rung.engine.calibration.models import Size, decoder, encoded, plan, reading
from rung.engine.decoder import Decoder
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.kernels.webgpu.layouts import gpu_bytes
from rung.models.decoder_memory import CHUNK
from rung.planning.weight_plan import climb_linear, compute_dtype
from rung.run.binding import Binder, Linear
from rung.run.journal import Journal
from rung.run.torch_device import torch_name

#: Next to nothing but launches, and layers of usual size.
_NARROW, _WIDE = Size(256, 256, 24, head_dim=64), Size(4096, 14336, 2, kv_heads=8, group=4)
#: Of a product that is nothing but launches, [out, in], and how many wait in the queue at once.
_TINY, _QUEUED = (256, 256), 64
#: Of products of usual size: 66 MB in q4_0 and 235 MB in 16 bits, beside what they are decoded to.
_LARGE = ((14336, 4096), (4096, 14336))
#: Caches that are read: so many tokens of so many values in all their heads, 48 MB in each of some layers.
_DEPTH, _VALUES, _LAYERS = 3072, 4096, 4
_HEADS = tuple((head_dim, group) for head_dim in (64, 128) for group in (1, 2, 4, 8))
#: Calls that are timed at least, after one that is not, and seconds.
_TURNS, _SECONDS = 5, 0.3
#: The format of what is measured for something else than a format.
_PLAIN = "q8_0"
#: Beside the formats that are asked for: a plan in it computes in another dtype than theirs.
_EXACT = "f32"

Undisturbed = Callable[[Callable[[], float]], float]


class Round:
    """One time through everything that is measured on a device."""

    def __init__(
        self,
        device: Device,
        threads: int,
        notify: Callable[[str], None],
        names: Sequence[str],
        borrowed: bool,
        undisturbed: Undisturbed,
    ) -> None:
        self.device, self.threads, self.notify, self.borrowed = device, threads, notify, borrowed
        self.names, self.undisturbed = _with_exact(names), undisturbed
        self.torch_device = torch.device(torch_name(device.id))
        self.binder = Binder(device, Journal(), dtype=compute_dtype(device, False), threads=threads)

    def seconds(self) -> dict[str, float]:
        """Return the rates of products, attention, a token and a chunk of a prompt, by what was measured."""
        self.notify("layers")
        with decoder(self.device, self.threads, _PLAIN, _NARROW) as model:
            found = {"token": self.median_seconds(partial(_token, model))}
        with decoder(self.device, self.threads, _PLAIN, _WIDE) as model:
            found["chunk"] = self.median_seconds(partial(_chunk, model))
        for name in self.names:
            self.notify(name)
            found |= self.product_rates(name)
        for head_dim, group in _HEADS:
            self.notify("context")
            found[f"cache {head_dim} {group}"] = self._attention(_VALUES // head_dim, head_dim, group, 1)
        found["attention"] = self._attention(_WIDE.kv_heads, _WIDE.head_dim, _WIDE.group, CHUNK)
        if self.borrowed:
            self.notify("transformers")
            found |= transformers.seconds(self.device, self.undisturbed)
        return found

    def product_rates(self, name: str) -> dict[str, float]:
        """Return the rates of a tiny product, and of the large ones together with one row of activations and with those
        of a chunk."""
        tiny = [self.binder.linear(encoded(name, *_TINY))] * _QUEUED
        large = [self.binder.linear(encoded(name, *shape)) for shape in _LARGE]
        return {
            f"{name} tiny": self.median_seconds(partial(_multiply, tiny, self._inputs(1))) / _QUEUED,
            name: self.median_seconds(partial(_multiply, large, self._inputs(1))),
            f"{name} many": self.median_seconds(partial(_multiply, large, self._inputs(CHUNK))),
        }

    def _inputs(self, rows: int) -> dict[int, Tensor]:
        """Activations, by their columns."""
        return {columns: torch.randn(rows, columns, device=self.torch_device) for _, columns in (_TINY, *_LARGE)}

    def _attention(self, kv_heads: int, head_dim: int, group: int, queries: int) -> float:
        """Return the seconds of some queries over the caches of all layers, ``_DEPTH`` tokens and themselves in
        each."""
        attend = self.binder.attention(kv_heads * group, kv_heads, head_dim, "f16", window=None, softcap=None)
        q = torch.randn(queries, kv_heads * group, head_dim, device=self.torch_device)
        shape = (2 * _LAYERS, kv_heads, _DEPTH + queries, head_dim)
        cache = torch.zeros(shape, dtype=torch.float16, device=self.torch_device).transpose(1, 2)

        def work() -> None:
            for keys, values in zip(cache[::2], cache[1::2], strict=True):
                attend(q, keys, values, start=_DEPTH, scale=head_dim**-0.5, window=None, softcap=None)

        return self.median_seconds(work)

    def median_seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds of a call and of all that it launches, the median of some."""

        def measure() -> float:
            turns: list[float] = []
            while len(turns) < _TURNS or sum(turns) < _SECONDS:
                started = time.perf_counter()
                work()
                synchronize(self.torch_device)
                turns.append(time.perf_counter() - started)
            return statistics.median(turns)

        with torch.inference_mode():
            work()  # everything is there then that it needs
            synchronize(self.torch_device)
            return self.undisturbed(measure)


def rates(seconds: Mapping[str, float], device: Device, threads: int, names: Sequence[str]) -> dict[str, float]:
    """Rates from seconds; what products launch is taken off what a layer of the narrow decoder takes."""
    found = {}
    for name in _with_exact(names):
        rung = _rung(name, device)
        bytes_of = gpu_bytes if rung.startswith("cuda.rows ") else Format.bytes
        found[f"launch {rung}"] = seconds[f"{name} tiny"]
        found[rung] = sum(bytes_of(formats.get(name), shape) for shape in _LARGE) / seconds[name]
        found[f"{rung} many"] = 2 * CHUNK * sum(out * columns for out, columns in _LARGE) / seconds[f"{name} many"]
    for head_dim, group in _HEADS:
        read = 2 * _LAYERS * _VALUES * (_DEPTH + 1) * 2
        found[f"cache {head_dim} {group}"] = read / seconds[f"cache {head_dim} {group}"]
    attended_keys = CHUNK * (_DEPTH + CHUNK / 2)  # each sees half of the others
    attended = 4 * attended_keys * _LAYERS * _WIDE.kv_heads * _WIDE.group * _WIDE.head_dim
    found["attention many"] = attention = attended / seconds["attention"]
    launched = found[f"launch {_rung(_PLAIN, device)}"] * _matrices(device, threads)
    found["layer gpu"] = max(seconds["token"] - launched, seconds["token"] / 10) / _NARROW.layers
    chunk, many = reading(_PLAIN, _WIDE, device, threads), found[f"{_rung(_PLAIN, device)} many"]
    remaining = seconds["chunk"] - chunk.multiplied / many - chunk.attended / attention
    found["values many"] = chunk.values / max(remaining, seconds["chunk"] / 50)
    if "dense" in seconds:
        found |= transformers.rates(seconds, many, attention)
    return found


def _with_exact(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, _EXACT)))


def _rung(name: str, device: Device) -> str:
    """The rung that a plan has for the large products, with the format."""
    rung = climb_linear(device, formats.get(name), compute_dtype(device, False), _LARGE[0], True).rung
    assert rung is not None, "ref takes every format"
    return f"{rung.name} {formats.get(name).name}"


def _matrices(device: Device, threads: int) -> float:
    """Return the seconds of the narrow decoder, which a token is multiplied with."""
    return sum(group.matrices for group in plan(device, threads, _PLAIN, _NARROW)[1].groups)


def _multiply(linears: Sequence[Linear], inputs: Mapping[int, Tensor]) -> None:
    for linear in linears:
        linear(inputs[linear.shape[1]])


def _token(model: SequenceReader[Decoder]) -> None:
    model.cache.truncate(0)
    model.step(1)


def _chunk(model: SequenceReader[Decoder]) -> None:
    model.cache.truncate(0)
    model.prefill([1] * CHUNK)


def synchronize(device: torch.device) -> None:
    """Wait until everything that was launched there is computed."""
    if device.type == "mps":  # there is one of them, which takes no name
        torch.mps.synchronize()
    elif device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
