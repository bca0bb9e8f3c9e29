"""``rung calibrate``: how fast a device really decodes and reads, format by format, kept for the plans made here.

What is measured of a GPU stands in ``calibrate_gpu``. Of a processor it is what ``rung run`` does, through the same
plan, binding and decoder: whole tokens of models of random weights that no cache holds. Narrow models give the seconds
of a layer, wide ones the bytes a second of a format, long contexts those of the cache. Of a prompt the products are
timed alone, and what lies between them is the rest. On a virtual machine others take processors and memory away for
seconds at a time: what was measured while that happened is measured again, and everything in three rounds, of which the
middle one counts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rung.core.types import Device
from rung.engine import planning
from rung.engine.calibration import gpu, transformers
from rung.engine.calibration.models import Size, card, decoder, plan, reading
from rung.engine.decoder import Decoder
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.models.decoder_memory import CHUNK
from rung.planning.speed import step_of

#: What is measured: the formats that files are most often stored in, and those that rung stores a folder in.
FORMATS = ("q4_0", "q4_k", "q5_k", "q6_k", "q8_0", "int8", "nf4", "bf16", "f16")
#: Tokens that are timed one by one, after one that is not, and for how many seconds at least: memory that others read
#: too is a fifth faster or slower from one second to the next.
_TOKENS, _SECONDS = 24, 0.5
#: So many chunks of a prompt.
_CHUNKS = 3
#: So often what others have disturbed is measured: when more than this share of a processor was taken away.
_TRIES, _STOLEN = 4, 0.05
#: Next to nothing but layers, formats in matrices of usual size, and (a cache of 200 MB at that depth) attention.
_NARROW, _WEIGHTS = Size(128, 256, 24), Size(1024, 4096, 6, kv_heads=8)
#: Bytes that a token reads at least where the rate of a format is measured. A cache of 32 MB holds a part of less:
#: 56 MB in q4_0 came at 47 GB/s, files of 180 MB and more at 26 to 40.
_READ_BYTES = 192 << 20
_DEPTH = 3072
_CACHES = {
    f"{head_dim} {group}": Size(128, 256, 12, head_dim, 1024 // head_dim, group, _DEPTH + CHUNK)
    for head_dim in (64, 128)
    for group in (1, 2, 4, 8)
}
#: The one that prompts are read over, too.
_READ = "64 1"
#: The format of what is measured for something else than a format.
_PLAIN = "q8_0"


def calibrate(
    device: Device,
    threads: int,
    notify: Callable[[str], None] = lambda text: None,
    names: Sequence[str] = FORMATS,
    rounds: int = 3,
    borrowed: bool = True,
) -> dict[str, float]:
    """The rates of a device, named as ``rung.planning.speed`` reads them, of some formats.

    ``borrowed``: networks that transformers builds, too, where it is installed. ``notify`` hears what is
    being measured. All of it takes two or three minutes on an idle processor; on a busy one the rates are those of a
    busy one.
    """
    torch.set_num_threads(threads)
    names = tuple(dict.fromkeys((_PLAIN, *names)))
    borrowed = borrowed and transformers.can_measure()
    if device.kind == "cpu":
        measure, rates = _Round(device, threads, notify, names, borrowed).seconds, rates_of
    else:
        there = gpu.Round(device, threads, notify, names, borrowed, undisturbed)
        measure, rates = there.seconds, gpu.rates
    found = [measure() for _ in range(rounds)]
    seconds = {name: statistics.median(each[name] for each in found) for name in found[0]}
    apart = statistics.median(max(abs(each[name] / seconds[name] - 1) for each in found) for name in seconds)
    return rates(seconds, device, threads, names) | {"spread": max(apart, 1e-3)}


def undisturbed(measure: Callable[[], float]) -> float:
    """Return a time of ``measure`` during which the hypervisor stole none, else the shortest of several."""
    found = []
    for _ in range(_TRIES):
        before, started = planning.stolen(), time.perf_counter()
        seconds = measure()
        found.append(((planning.stolen() - before) / (time.perf_counter() - started), seconds))
        if found[-1][0] <= _STOLEN:
            break
    return min(found)[1]


class _Round:
    """One time through everything that is measured."""

    def __init__(
        self, device: Device, threads: int, notify: Callable[[str], None], names: Sequence[str], borrowed: bool
    ) -> None:
        self.device, self.threads, self.notify, self.names, self.borrowed = device, threads, notify, names, borrowed

    def seconds(self) -> dict[str, float]:
        """Return the rates of a token and of a chunk of a prompt, by what was measured."""
        self.notify("layers")
        with decoder(self.device, self.threads, _PLAIN, _NARROW) as model:
            found = {"narrow": _token(model, 0)}
        for name in self.names:
            self.notify(name)
            with decoder(self.device, self.threads, name, weights_of(name)) as model:
                found |= {name: _token(model, 0), f"{name} products": _products(model)}
                if name == _PLAIN:
                    found["read"] = _chunk(model, 0)
        for name, size in _CACHES.items():
            self.notify("context")
            with decoder(self.device, self.threads, _PLAIN, size) as model:
                found[f"near {name}"], found[f"deep {name}"] = (_token(model, depth) for depth in (0, _DEPTH))
                if name == _READ:
                    found["near many"], found["deep many"] = (_chunk(model, depth) for depth in (0, _DEPTH))
        if self.borrowed:
            self.notify("transformers")
            found |= transformers.seconds(self.device, undisturbed)
        return found


def rates_of(seconds: Mapping[str, float], device: Device, threads: int, names: Sequence[str]) -> dict[str, float]:
    """Return rates from seconds: what a layer takes is taken off before weights and caches are divided by the rest."""
    layer = seconds["narrow"] / _NARROW.layers
    found = {f"layer {step_of(plan(device, threads, _PLAIN, _NARROW)[1].groups)}": layer}
    for name, size in _CACHES.items():
        read = 2 * size.layers * size.kv_heads * size.head_dim * _DEPTH * 2
        found[f"cache {name}"] = read / _rest(seconds[f"deep {name}"], seconds[f"near {name}"])
    size = _CACHES[_READ]
    deeper = 4 * CHUNK * _DEPTH * size.layers * size.kv_heads * size.head_dim
    found["attention many"] = attention = deeper / _rest(seconds["deep many"], seconds["near many"])
    chunks = {name: reading(name, weights_of(name), device, threads) for name in names}
    chunk = chunks[_PLAIN]
    remaining = seconds["read"] - seconds[f"{_PLAIN} products"] - chunk.attended / attention
    found["values many"] = chunk.values / max(remaining, seconds["read"] / 50)  # mostly a tenth
    for name, chunk in chunks.items():
        found[chunk.rung] = chunk.weights_bytes / _rest(seconds[name], weights_of(name).layers * layer)
        found[f"{chunk.rung} many"] = chunk.multiplied / seconds[f"{name} products"]
    if "dense" in seconds:
        many = found[f"{chunks[_PLAIN].rung} many"]
        found |= transformers.rates(seconds, many, attention)
    return found


def weights_of(name: str) -> Size:
    """Return the model that a format is measured with: so many layers that no cache holds much of it."""
    layer = sum(tensor.bytes for tensor in card(name, replace(_WEIGHTS, layers=1)).tensors)
    return replace(_WEIGHTS, layers=max(_WEIGHTS.layers, math.ceil(_READ_BYTES / layer)))


def _rest(whole: float, part: float) -> float:
    """Return ``whole`` less ``part``, in seconds, at least a tenth of the whole: noise makes no rate negative."""
    return max(whole - part, whole / 10)


def _token(model: SequenceReader[Decoder], depth: int) -> float:
    """Seconds of one token after ``depth`` others, the median of many."""

    def measure() -> float:
        turns: list[float] = []
        while len(turns) <= _TOKENS or sum(turns) < _SECONDS:
            model.cache.truncate(0)
            model.cache.advance([1] * depth)
            started = time.perf_counter()
            model.step(1)
            turns.append(time.perf_counter() - started)
        return statistics.median(turns[1:])

    return undisturbed(measure)


def _chunk(model: SequenceReader[Decoder], depth: int) -> float:
    """Seconds of a chunk of a prompt after ``depth`` tokens, the median of some."""

    def measure(count: int = CHUNK) -> float:
        model.cache.truncate(0)
        model.cache.advance([1] * depth)
        started = time.perf_counter()
        model.prefill([1] * count)
        return time.perf_counter() - started

    measure(16)  # everything is there then that prompts need
    return statistics.median(undisturbed(measure) for _ in range(_CHUNKS))


def _products(model: SequenceReader[Decoder]) -> float:
    """Seconds of all products of a chunk of a prompt, without what lies between them, the median of some."""
    biased = [
        one
        for layer in model.backend.weights.layers
        for one in (*layer.inputs, *layer.widen, layer.output, layer.narrow)
    ]
    linears: list[Any] = [one.linear for one in biased]
    inputs = {columns: torch.randn(CHUNK, columns) for columns in {linear.shape[1] for linear in linears}}

    def measure() -> float:
        started = time.perf_counter()
        for linear in linears:
            linear(inputs[linear.shape[1]])
        return time.perf_counter() - started

    with torch.inference_mode():
        measure()  # everything is there then that products need
        return statistics.median(undisturbed(measure) for _ in range(_CHUNKS))
