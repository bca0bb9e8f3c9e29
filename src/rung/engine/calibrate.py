"""``rung calibrate``: how fast this processor really decodes and reads, format by format, kept for the plans made here.

Measured is what ``rung run`` does, through the same plan, binding and decoder: whole tokens of models of random
weights that no cache holds. Two models give the seconds of a layer and the bytes a second, a long context the rest.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from rung import formats
from rung.core.types import Device, Format, Plan
from rung.engine.bound import BoundParts
from rung.engine.cache import Cache
from rung.engine.decoder import Decoder
from rung.formats import Encoded
from rung.models.card import Decoder as Shape
from rung.models.card import Layer, ModelCard, Rope, Tensor
from rung.models.reader import Reader
from rung.ops.decode_step.weights import Weights
from rung.planning import Request, solve
from rung.planning.kitchen import Kitchen
from rung.planning.subject import Subject
from rung.run.journal import Journal

#: What is measured: the formats that files are most often stored in, and those that rung stores a folder in.
FORMATS = ("q4_0", "q4_k", "q5_k", "q6_k", "q8_0", "int8", "nf4", "bf16", "f16")
#: Tokens timed at once and how often: the median counts, as other programs come between.
_TOKENS, _TURNS = 6, 5
_PROMPT, _DEPTH = 256, 3072
_HEADS, _HEAD_DIM, _VOCABULARY = 8, 128, 512
_HIDDEN, _WIDE, _LAYERS = 1024, 4096, 8


def calibrate(device: Device, threads: int, told: Callable[[str], None] = lambda text: None) -> dict[str, float]:
    """The rates of a CPU, named as ``rung.planning.time`` reads them. ``told`` hears what is being measured.

    Takes about a minute on an idle machine; on a busy one the rates are those of a busy one.
    """
    torch.set_num_threads(threads)
    told("layers")
    with _decoder(device, threads, "q8_0", 128, 256, 24, 512) as (small, _):
        layer = _seconds(small) / 24
    found = {"layer": layer}
    for name in FORMATS:
        told(name)
        with _decoder(device, threads, name, _HIDDEN, _WIDE, _LAYERS, 512) as (model, plan):
            found |= _rates(device, plan, model, name, layer)
    told("context")
    with _decoder(device, threads, "q8_0", 256, 256, 8, 4096) as (deep, plan):
        before = _seconds(deep)
        deep.cache.truncate(0)
        deep.cache.advance([1] * _DEPTH)
        held = 2 * 8 * _HEADS * _HEAD_DIM * _DEPTH * 2
        found["cache"] = held / max(_seconds(deep) - before, 1e-6)
    return found


def _rates(device: Device, plan: Plan, model: Decoder, name: str, layer: float) -> dict[str, float]:
    """Bytes a second for one row, operations a second for many, under the rung that the plan takes."""
    kitchen = Kitchen(Subject.of_card(_card(name, _HIDDEN, _WIDE, _LAYERS, 512)))
    groups = kitchen.recipe(None, device, plan.dtype, True).groups
    rung, held = groups[0].rung, sum(group.bytes for group in groups)
    work = 2 * sum(group.count for group in groups if not group.once)
    one = max(_seconds(model) - _LAYERS * layer, 1e-6)
    many = []
    for _ in range(3):
        model.cache.truncate(0)
        started = time.perf_counter()
        model.prefill([1] * _PROMPT)
        many.append(time.perf_counter() - started)
    key = f"{rung} {groups[0].format}"
    return {key: held / one, f"{key} many": work * _PROMPT / min(many)}


def _seconds(model: Decoder) -> float:
    """Seconds of one token, the median of several turns."""
    turns = []
    model.step(1)
    for _ in range(_TURNS):
        started = time.perf_counter()
        for _ in range(_TOKENS):
            model.step(1)
        turns.append((time.perf_counter() - started) / _TOKENS)
    return statistics.median(turns)


@contextmanager
def _decoder(
    device: Device, threads: int, name: str, hidden: int, wide: int, layers: int, context: int
) -> Iterator[tuple[Decoder, Plan]]:
    """A bound decoder of random weights in that format."""
    card = _card(name, hidden, wide, layers, context)
    plan = solve(card, (device,), Request(device=device.id, context=context, threads=threads))
    with BoundParts(card, plan, (device,), _Random(card), Journal(), lambda done, total: None) as parts:
        weights = Weights.bind(card.decoder, parts, context)
    yield Decoder(weights, Cache(card.decoder, context, plan.cache_dtype, parts.devices), parts.step(), threads), plan


def _card(name: str, hidden: int, wide: int, layers: int, context: int) -> ModelCard:
    """A model in the shape of Llama."""
    rope = Rope(_HEAD_DIM, False, tuple(1e4 ** (-2 * i / _HEAD_DIM) for i in range(_HEAD_DIM // 2)))
    shape = Shape(
        "llama", (Layer(None, 0),) * layers, hidden, _HEADS, _HEADS, _HEAD_DIM, wide, _VOCABULARY, context, 1e-5, 0.0,
        "silu", _HEAD_DIM**-0.5, (rope,),
    )  # fmt: skip
    q = _HEADS * _HEAD_DIM
    matrices = {"q": (q, hidden), "k": (q, hidden), "v": (q, hidden), "o": (hidden, q)}
    matrices |= {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
    named = [("embed", (_VOCABULARY, hidden)), ("head", (_VOCABULARY, hidden))]
    named += [(f"layers.{n}.{role}", size) for n in range(layers) for role, size in matrices.items()]
    norms = ["norm", *(f"layers.{n}.{role}" for n in range(layers) for role in ("attn_norm", "mlp_norm"))]
    format = formats.get(name)
    # 256 columns are the blocks of K formats; the small models keep to formats of 32
    tensors = [Tensor(role, role, size, format.name, 0, 0, format.bytes(size)) for role, size in named]
    tensors += [Tensor(role, role, (hidden,), "f32", 0, 0, 4 * hidden) for role in norms]
    return ModelCard("calibration", "gguf", "calibration", (), shape, tuple(tensors), "gguf", None, (0,), None, False)


class _Random(Reader):
    """Weights that stand in no file: a few encoded rows of random numbers, again and again."""

    def __init__(self, card: ModelCard) -> None:
        super().__init__(card)
        self._rows: dict[tuple[str, int], Encoded] = {}

    def read(self, tensor: Tensor) -> Encoded:
        """The tensor in its format; each call makes its own copy, which no cache has seen."""
        rows, columns = (1, *tensor.shape)[-2:]
        format = formats.get(tensor.format)
        key = (tensor.format, columns)
        if key not in self._rows:
            weights = np.random.default_rng(0).normal(0, columns**-0.5, (16, columns)).astype(np.float32)
            self._rows[key] = formats.encode(weights, format)
        few = self._rows[key]
        return Encoded(format, (rows, columns), {name: _again(part, rows, format) for name, part in few.parts.items()})


def _again(part: np.ndarray, rows: int, format: Format) -> np.ndarray:
    """Sixteen rows of a part, as often as ``rows`` wants."""
    times = math.ceil(rows / 16)
    if format.layout == "flat":
        return np.tile(part, times)[: len(part) * rows // 16].copy()
    return np.tile(part, (times, *[1] * (part.ndim - 1)))[:rows].copy()
