"""A language model in a format beside a reference: next tokens on a text, and the error of the weights by layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rung import formats
from rung.core.types import Device
from rung.core.value import Value
from rung.measure import metrics
from rung.models.card import ModelCard
from rung.models.reader import Reader
from rung.models.roles import layer_of
from rung.planning.gguf_mixtures import storage
from rung.planning.network_spec import Subject
from rung.planning.weight_plan import compute_dtype, plan_weights

#: What is read where nobody names a text.
TEXT = """The old lighthouse keeper had counted ships for forty years, and on most evenings he could tell from the sound
of the engines alone whether a captain was in a hurry. When the harbour was modernised, somebody asked him
what he would do with his time. He thought about it for a while. "I shall go on counting," he said, "but from
now on I shall not write it down." The next morning a letter came from the ministry. It said that the records
of the lighthouse were the longest unbroken series of observations on that coast, that three universities had
based their work on them, and that the ministry would be grateful if he could explain what the small crosses
in the margin meant. He had to laugh. The crosses were the evenings on which his sister had come to dinner. In
1987 there had been 52 of them, in 1994 only 11; a student had published a paper in which they were storms."""


@dataclass(frozen=True)
class Reading(Value):
    """How a model reads a text: ``divergence`` from the reference in nats a token, ``perplexity``, and ``agreement``,
    the share of tokens at which both would choose the same; over ``tokens`` tokens."""

    divergence: float
    perplexity: float
    agreement: float
    tokens: int


def windows(ids: Sequence[int], length: int) -> Iterator[list[int]]:
    """Pieces of a text of at most so many tokens, the first token of the text (a begin token) before each."""
    rest = list(ids[1:])
    for first in range(0, len(rest), length - 1):
        piece = rest[first : first + length - 1]
        if len(piece) > 1:
            yield [ids[0], *piece]


class Reference:
    """Hold what the reference says of each window, kept in a folder: of a large vocabulary it would not fit in
    memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, number: int, logits: np.ndarray) -> None:
        """The logits [positions, vocabulary] of a window."""
        np.save(self._folder / f"{number}.npy", logits.astype(np.float32))

    def of(self, number: int) -> np.ndarray:
        """Return the stored array of that number."""
        found: np.ndarray = np.load(self._folder / f"{number}.npy", mmap_mode="r")
        return found


class Sums:
    """Sums over windows."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._diverged = self._agreed = self._surprised = 0.0
        self._tokens = 0

    def add(self, number: int, ids: Sequence[int], logits: np.ndarray) -> None:
        """The logits [positions, vocabulary] of a window; each position is asked for the token after it."""
        p = metrics.log_softmax(np.asarray(self._reference.of(number))[:-1])
        q = metrics.log_softmax(logits[:-1])
        count = len(q)
        self._diverged += metrics.divergence(p, q) * count
        self._agreed += metrics.agreement(p, q) * count
        self._surprised += metrics.surprise(q, np.asarray(ids[1:]))
        self._tokens += count

    def reading(self) -> Reading:
        """Over all windows."""
        count = max(self._tokens, 1)
        return Reading(self._diverged / count, math.exp(self._surprised / count), self._agreed / count, self._tokens)


def layer_errors(card: ModelCard, format: str, device: Device) -> dict[int, float]:
    """SQNR in dB of the weights of each layer in a format against the stored ones; infinite where nothing is lost."""
    subject = Subject.of_card(card)
    requested = None if format == "stored" else storage(format)
    plan = plan_weights(subject, requested, device, compute_dtype(device, lossless=False), packed=False)
    signal: defaultdict[int, float] = defaultdict(float)
    noise: defaultdict[int, float] = defaultdict(float)
    with Reader(card) as reader:
        for weight in plan:
            layer = layer_of(weight.tensor.role)
            if layer is None or not weight.multiplies:
                continue
            stored = reader.read(weight.tensor)
            exact = formats.decode(stored)
            signal[layer] += float(np.vdot(exact, exact))
            if weight.format.name != weight.tensor.format:
                lost = formats.decode(formats.encode(exact, weight.format, weight.tensor.name)) - exact
                noise[layer] += float(np.vdot(lost, lost))
            reader.done(weight.tensor)
    return {
        layer: 10 * math.log10(signal[layer] / noise[layer]) if noise[layer] else math.inf for layer in sorted(signal)
    }
