"""Models of random weights that stand in no file: what ``rung calibrate`` measures, run as ``rung run`` runs others."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from rung import formats
from rung.core.types import Device, Format, Plan
from rung.engine.decoder import Decoder
from rung.engine.scheduling.kv_cache import BlockPool
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.engine.weight_loader import WeightLoader
from rung.formats import Encoded
from rung.models.card import Decoder as Shape
from rung.models.card import Layer, ModelCard, Rope, Tensor
from rung.models.decoder_memory import CHUNK
from rung.models.reader import Reader
from rung.ops.decode_step.weights import Weights
from rung.planning.network_spec import Subject
from rung.planning.request import Request
from rung.planning.solve import solve
from rung.planning.speed import values_between
from rung.planning.weight_plan_cache import WeightPlan, WeightPlanCache
from rung.run.journal import Journal

_VOCABULARY = 512


@dataclass(frozen=True)
class Size:
    """The shape of a model that is measured; ``group`` query heads share each key head."""

    hidden: int
    wide: int
    layers: int
    head_dim: int = 128
    kv_heads: int = 1
    group: int = 1
    context: int = 1024


@dataclass(frozen=True)
class Reading:
    """Hold what reading a chunk of a prompt takes: operations of linears and of attention, values between linears; and
    the bytes of its weights."""

    rung: str
    weights_bytes: float
    multiplied: float
    attended: float
    values: float


def reading(name: str, size: Size, device: Device, threads: int) -> Reading:
    """The same of a model in that format, as the device would hold it."""
    groups = plan(device, threads, name, size)[1].groups
    return Reading(
        f"{groups[0].rung} {groups[0].format}",
        sum(group.bytes for group in groups),
        2 * CHUNK * sum(group.count for group in groups if not group.once),
        2 * CHUNK * CHUNK * size.layers * size.kv_heads * size.group * size.head_dim,  # each sees half of the others
        CHUNK * values_between(size.layers, size.hidden, size.wide),
    )


def plan(device: Device, threads: int, name: str, size: Size) -> tuple[Plan, WeightPlan]:
    """How such a model is run, and its weights."""
    model_card = card(name, size)
    found = solve(model_card, (device,), Request(device=device.id, context=size.context, threads=threads))
    return found, WeightPlanCache(Subject.of_card(model_card)).plan(None, device, found.dtype, True)


@contextmanager
def decoder(device: Device, threads: int, name: str, size: Size) -> Iterator[SequenceReader[Decoder]]:
    """Yield a sequence of a bound decoder of random weights in that format."""
    model_card, found = card(name, size), plan(device, threads, name, size)[0]
    with WeightLoader(model_card, found, (device,), Random(model_card), Journal(), lambda done, total: None) as parts:
        weights = Weights.bind(model_card.decoder, parts, size.context)
        step = parts.step()
        pool = BlockPool(model_card.decoder, size.context, found.cache_dtype, parts.devices, step.block)
    yield SequenceReader(Decoder(weights, pool, step, threads))


def card(name: str, size: Size) -> ModelCard:
    """A model in the shape of Llama."""
    dim = size.head_dim
    rope = Rope(dim, False, tuple(1e4 ** (-2 * i / dim) for i in range(dim // 2)))
    heads, layers, hidden, wide = size.kv_heads * size.group, size.layers, size.hidden, size.wide
    shape = Shape(
        "llama", (Layer(None, 0),) * layers, hidden, heads, size.kv_heads, dim, wide, _VOCABULARY, size.context,
        1e-5, 0.0, "silu", dim**-0.5, (rope,),
    )  # fmt: skip
    q, k = heads * dim, size.kv_heads * dim
    matrices = {"q": (q, hidden), "k": (k, hidden), "v": (k, hidden), "o": (hidden, q)}
    matrices |= {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
    named = [("embed", (_VOCABULARY, hidden)), ("head", (_VOCABULARY, hidden))]
    named += [(f"layers.{n}.{role}", dims) for n in range(layers) for role, dims in matrices.items()]
    norms = ["norm", *(f"layers.{n}.{role}" for n in range(layers) for role in ("attn_norm", "mlp_norm"))]
    format = formats.get(name)
    # 256 columns are the blocks of K formats; the narrow models keep to formats of 32
    tensors = [Tensor(role, role, dims, format.name, 0, 0, format.bytes(dims)) for role, dims in named]
    tensors += [Tensor(role, role, (hidden,), "f32", 0, 0, 4 * hidden) for role in norms]
    return ModelCard("calibration", "gguf", "calibration", (), shape, tuple(tensors), "gguf", None, (0,), None, False)


class Random(Reader):
    """Weights that stand in no file."""

    def read(self, tensor: Tensor) -> Encoded:
        """The tensor in its format; see ``encoded``."""
        rows, columns = (1, *tensor.shape)[-2:]
        return encoded(tensor.format, rows, columns)


def encoded(name: str, rows: int, columns: int) -> Encoded:
    """A matrix in a format: a few encoded rows of random numbers, again and again.

    Each call makes its own copy, which no cache has seen.
    """
    few, format = _rows(name, columns), formats.get(name)
    return Encoded(format, (rows, columns), {part: _again(values, rows, format) for part, values in few.parts.items()})


@functools.cache
def _rows(name: str, columns: int) -> Encoded:
    weights = np.random.default_rng(0).normal(0, columns**-0.5, (16, columns)).astype(np.float32)
    return formats.encode(weights, formats.get(name))


def _again(part: np.ndarray, rows: int, format: Format) -> np.ndarray:
    """Sixteen rows of a part, as often as ``rows`` wants."""
    times = math.ceil(rows / 16)
    if format.layout == "flat":
        return np.tile(part, times)[: len(part) * rows // 16].copy()
    return np.tile(part, (times, *[1] * (part.ndim - 1)))[:rows].copy()
