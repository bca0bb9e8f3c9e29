"""Choose a format for each tensor within a budget of bytes or of divergence.

What a tensor costs in a format is expected from its statistics, on a sample of its rows, rounded as they would be. Sums
over the tensors of a kind (``q``, ``down``) are then corrected by real passes over text that no statistics come from:
errors of many layers meet, those of keys and values are seen by many positions, and what is rounded for one text costs
more on another one.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from rung import formats
from rung.core.errors import UsageError
from rung.core.files import written_whole
from rung.core.settings import CACHE
from rung.core.text import size as sized
from rung.core.types import Device, Format
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.formats.grids import has_grid
from rung.models.card import ModelCard, Tensor
from rung.models.reader import Reader
from rung.nn.rounding import Metric, round_weight
from rung.planning.network_spec import Subject
from rung.planning.speed import PROMPT, groups, rates, seconds_of_products
from rung.planning.weight_plan import alike, compute_dtype, plan_weights
from rung.quantization.divergence import Reference
from rung.quantization.network import Arithmetic, Override
from rung.quantization.statistics import Statistics


class TokenTimes:
    """The times of a model on a device, with the kernels that a plan takes there."""

    def __init__(self, card: ModelCard, device: Device) -> None:
        self.device, self._subject = device, Subject.of_card(card)
        self._places = {tensor.role: index for index, tensor in enumerate(card.tensors)}

    def seconds(self, tensor: Tensor, fmt: Format) -> float | None:
        """Return how long a matrix takes for a token, 0 where it is only looked up in. None: no kernel takes it."""
        changed = self._stored(self._subject, {tensor.role: fmt})
        index = self._places[tensor.role]
        weight = alike(changed, None, self.device, compute_dtype(self.device, False), True, ((index,),))[0].weight
        if not weight.rung:
            return None
        return seconds_of_products(groups([(weight, 1)], changed), self.device)

    def tokens_per_second(self, chosen: Mapping[str, Format]) -> float:
        """Return the tokens a second of a mixture, by role, after a prompt of the usual length."""
        changed = self._stored(self._subject, chosen)
        weights = plan_weights(changed, None, self.device, compute_dtype(self.device, False), True)
        parts = groups([(weight, 1) for weight in weights], changed)
        context = min(changed.shape.context or PROMPT, 2 * PROMPT)
        return rates(parts, changed, self.device, context, "f16", PROMPT).decode

    def _stored(self, subject: Subject, chosen: Mapping[str, Format]) -> Subject:
        tensors = (
            replace(each, format=chosen[each.role].name, bytes=chosen[each.role].bytes(each.shape), source=None)
            if each.role in chosen
            else each
            for each in subject.tensors
        )
        return replace(subject, tensors=tuple(tensors))


#: What a tensor may become; those whose blocks do not divide its rows are left out.
CANDIDATES = ("q2_k", "q3_k", "iq4_xs", "q4_0", "iq4_nl", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0")
#: Rows of a tensor that are tried.
_ROWS = 64
#: KL that a kind of tensors is tried at, so that all of them come to that of usual files: KL rises a little faster than
#: the squares of errors.
_TRIED = 0.004
#: Where a tensor errs more than it was tried at, KL rises faster than the squares of errors: by this power of how much
#: more (``benchmarks/quantization/predicted.py``).
_RISE = 0.08
#: Tokens of text that each kind of tensors is tried on alone; all kinds together are tried on the whole text.
_TOKENS = 512
#: What a correction may be: beyond that a pass shows chance.
_LEAST, _MOST = 0.1, 20.0
#: Prices of a byte that are tried for the fastest mixture within a size.
_PRICES = 40
Progress = Callable[[str, int, int], None]
#: What is to be little: bytes of the file, or seconds of a token on a device.
Cost = Literal["bytes", "seconds"]


@dataclass(frozen=True)
class Option:
    """One format of one tensor: its bytes, the KL that is expected of it, its time for a token on the device that is
    chosen for, if any, and the KL of ``inputs`` that programs round to 8 bits: in blocks of 256 for formats of such
    blocks, as llama.cpp does on processors, else of 32."""

    format: Format
    bytes: int
    divergence: float
    seconds: float = 0.0
    inputs: float = 0.0

    @property
    def error(self) -> float:
        """Return the KL that is expected where inputs are rounded, too."""
        return self.divergence + self.inputs


@dataclass(frozen=True)
class Choice:
    """A format for each matrix, by role: bytes in all, and the expected KL."""

    formats: Mapping[str, Format]
    bytes: int
    divergence: float


class Rounder:
    """Rounds the weights of a model by its statistics."""

    def __init__(self, statistics: Statistics, threads: int) -> None:
        self.statistics, self._threads = statistics, threads
        self._reached = frozenset(statistics.roles)
        self._last: tuple[str, Metric] | None = None

    @property
    def digest(self) -> str:
        """Return the digest of the statistics, on which the results depend."""
        return self.statistics.digest

    def takes(self, role: str, fmt: Format) -> bool:
        """Return whether a tensor has statistics, and the format a grid."""
        return role in self._reached and has_grid(fmt, self.statistics.columns(role))

    def metric(self, role: str) -> Metric:
        """Return the metric of a tensor's errors; that of the last tensor is kept."""
        if self._last is None or self._last[0] != role:
            self._last = role, Metric(self.statistics.of(role).metric)
        return self._last[1]

    def encode(self, role: str, before: Encoded, fmt: Format, name: str) -> Encoded:
        """Return a weight in a format. Raises ``CannotEncode``."""
        if before.format == fmt:
            return before
        return round_weight(formats.decode(before, threads=self._threads), fmt, self.metric(role), self._threads, name)


def kind_of(role: str) -> str:
    """Return the role without its layer."""
    return role.rpartition(".")[2]


def matrices(card: ModelCard) -> tuple[Tensor, ...]:
    """Return the tensors that a format is chosen for."""
    return tuple(tensor for tensor in card.tensors if len(tensor.shape) > 1 and tensor.shape[0] > 1)


def options_of(card: ModelCard, rounder: Rounder, progress: Progress) -> dict[str, tuple[Option, ...]]:
    """Return the options of each matrix. One that the text does not reach has only q8_0, or f16."""
    found, listed = {}, matrices(card)
    with Reader(card) as reader:
        for number, tensor in enumerate(listed):
            progress(f"trying formats of {tensor.name}", number, len(listed))
            names = CANDIDATES if tensor.role in rounder.statistics.roles else ("q8_0", "f16")
            usable = [formats.get(name) for name in names if formats.get(name).divides(tensor.shape[-1])]
            if tensor.role in rounder.statistics.roles and usable:
                found[tensor.role] = _tried(tensor, reader, rounder, usable)
            else:
                best = (usable or [formats.get("f16")])[0]
                found[tensor.role] = (Option(best, best.bytes(tensor.shape), 0.0),)
            reader.done(tensor)
    return found


def _tried(tensor: Tensor, reader: Reader, rounder: Rounder, usable: Iterable[Format]) -> tuple[Option, ...]:
    stored, sensitivity = reader.read(tensor), rounder.statistics.of(tensor.role)
    rows = sensitivity.sample(_ROWS)
    weights = np.concatenate([formats.decode(stored, slice(row, row + 1)) for row in rows])
    raw = Encoded(formats.get("f32"), weights.shape, {"data": weights.view(np.uint8)})
    squares, tried = sensitivity.squares(weights, rows), []
    for fmt in usable:
        change = formats.decode(rounder.encode(tensor.role, raw, fmt, tensor.name)) - weights
        expected = sensitivity.sampled(change, rows)
        looked_up = tensor.role == "embed" and sensitivity.looked_up is None
        inputs = 0.0 if looked_up else _of_inputs(squares, np.diagonal(sensitivity.hessian), max(fmt.block, 32))
        tried.append(Option(fmt, fmt.bytes(tensor.shape), expected, inputs=inputs))
    return tuple(tried)


def _of_inputs(weights: npt.NDArray[np.float64], inputs: Floats, block: int) -> float:
    """Return the KL of inputs that are rounded in blocks, up to a factor that all tensors share: of the squares [in] of
    weights, by the shares of their rows, and the mean squares [in] of inputs, weighed as those of the Hessian are.

    A step is as large as the largest input of its block, which is taken for the input that is largest on the whole.
    """
    steps = inputs.reshape(-1, block).max(axis=1)
    return float(weights.reshape(-1, block).sum(axis=1) @ steps)


def corrected(
    card: ModelCard,
    rounder: Rounder,
    options: Mapping[str, tuple[Option, ...]],
    windows: torch.Tensor,
    progress: Progress,
) -> dict[str, tuple[Option, ...]]:
    """Return options whose KL is multiplied by what real passes over windows [B, L] find of its expectation.

    A pass for each kind of tensors over the beginnings of the windows says how kinds compare; one with all of them
    over the whole windows says what they come to together. Coarser formats than those are expected to cost more than
    their errors say.
    """
    free = {role: listed for role, listed in options.items() if len(listed) > 1}
    kinds = sorted({kind_of(role) for role in free})
    tried = {role: each for kind in kinds for role, each in _tried_at(free, kind).items()}
    factors = dict.fromkeys(kinds, 1.0)
    beginnings = windows[:, : max(2, _TOKENS // len(windows))]
    CACHE.read().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.read(), prefix="rounded-") as folder:
        reference = Reference(card, beginnings)
        for number, kind in enumerate(kinds):
            progress(f"a pass with {kind} rounded", number, len(kinds) + 1)
            chosen = {role: option for role, option in tried.items() if kind_of(role) == kind}
            factors[kind] = _factor(reference, rounded(card, rounder, _formats(chosen), Path(folder)), chosen, factors)
        progress("a pass with all rounded", len(kinds), len(kinds) + 1)
        override = rounded(card, rounder, _formats(tried), Path(folder))
        together = _factor(Reference(card, windows), override, tried, factors) if tried else 1.0
        inputs = _inputs_factor(reference, options)
    return {
        role: tuple(
            replace(
                each,
                divergence=_risen(each, tried.get(role)) * factors.get(kind_of(role), 1.0) * together,
                inputs=each.inputs * inputs if inputs else 0.0,
            )
            for each in listed
        )
        for role, listed in options.items()
    }


def _tried_at(options: Mapping[str, tuple[Option, ...]], kind: str) -> dict[str, Option]:
    """Return an option of each tensor of a kind, at the same place in their lists: together near ``_TRIED``."""
    of_kind = {role: each for role, each in options.items() if kind_of(role) == kind}
    count = min(len(each) for each in of_kind.values())
    sums = [sum(each[index].divergence for each in of_kind.values()) for index in range(count)]
    index = min(range(count), key=lambda at: abs(np.log(max(sums[at], 1e-12) / _TRIED)))
    return {role: each[index] for role, each in of_kind.items()}


def _inputs_factor(reference: Reference, options: Mapping[str, tuple[Option, ...]]) -> float:
    """Return the KL of a pass with inputs in blocks of 256 over the expected one; 0 where no format has such blocks,
    and where one of both is no number or nothing is expected: inputs then decide nothing."""
    coarse = {role: max(each.inputs for each in listed) for role, listed in options.items()}
    if all(each.inputs == coarse[role] for role, listed in options.items() for each in listed):
        return 0.0
    expected = sum(coarse.values())
    if not expected > 0:
        return 0.0
    found = reference.computed(Arithmetic(inputs="int8:256")).divergence / expected
    return found if np.isfinite(found) else 0.0


def _risen(option: Option, tried: Option | None) -> float:
    """Return the expected KL of an option with what it rises by where it errs more than what was tried."""
    if tried is None or option.divergence <= tried.divergence or tried.divergence <= 0:
        return option.divergence
    return option.divergence * float((option.divergence / tried.divergence) ** _RISE)


def _formats(chosen: Mapping[str, Option]) -> dict[str, Format]:
    return {role: option.format for role, option in chosen.items()}


def _factor(
    reference: Reference, override: Override, chosen: Mapping[str, Option], factors: Mapping[str, float]
) -> float:
    """Return the measured KL by the expected one, with the factors of kinds so far."""
    expected = sum(option.divergence * factors[kind_of(role)] for role, option in chosen.items())
    measured = reference.compare(reference.card, override).divergence
    return float(np.clip(measured / max(expected, 1e-12), _LEAST, _MOST))


def rounded(card: ModelCard, rounder: Rounder, chosen: Mapping[str, Format], kept: Path) -> Override:
    """Return a function that gives the rounded weights of the chosen roles, and None for others.

    They are kept in a folder for the next function of this kind.
    """
    by_role = {tensor.role: tensor for tensor in card.tensors}

    @functools.lru_cache(maxsize=1)  # an embedding that is the head too is asked for twice
    def weights(role: str) -> Floats | None:
        if role not in chosen:
            return None
        fmt, path = chosen[role], kept / f"{role}.{chosen[role].name}.npy"
        if not path.exists():
            with Reader(card) as reader:
                encoded = rounder.encode(role, reader.read(by_role[role]), fmt, role)
            if encoded.format != fmt or set(encoded.parts) != {"data"}:
                return formats.decode(encoded)
            with written_whole(path) as part:  # what is stopped leaves no half of a tensor
                np.save(part, encoded.parts["data"])
        rows, columns = by_role[role].shape
        return formats.decode(Encoded(fmt, (rows, columns), {"data": np.load(path)}))

    return weights


def timed(card: ModelCard, options: Mapping[str, Sequence[Option]], times: TokenTimes) -> dict[str, tuple[Option, ...]]:
    """Return options with their times on a device; formats that no kernel takes there are left out, but not the last.

    A kernel that is slow is no reason to leave a format out: its time is. rung rounds inputs in blocks of 32 whatever
    the format is.
    """
    found = {}
    for tensor in matrices(card):
        listed = tuple(replace(each, inputs=0.0) for each in options[tensor.role])
        pairs = [(each, times.seconds(tensor, each.format)) for each in listed]
        able = tuple(replace(each, seconds=seconds) for each, seconds in pairs if seconds is not None)
        found[tensor.role] = able or listed
    return found


def choose(
    options: Mapping[str, Sequence[Option]], most_bytes: int | None, most_divergence: float | None,
    cost: Cost = "bytes",
) -> Choice:  # fmt: skip
    """Return the mixture with the least KL of at most so many bytes, or with the least cost of at most so much KL.

    The steps along the lower convex hull of each tensor are taken by what a unit of cost gains, the best first: the
    result is the best one of its cost. Where only bytes are given, the KL of rounded inputs counts, too. Raises
    ``UsageError`` where no mixture is small or good enough.
    """
    hulls = {role: hull(listed, cost) for role, listed in _counted(options, most_divergence is None).items()}
    steps = sorted(
        (-_gain(before, after, cost), role, index)
        for role, found in hulls.items()
        for index, (before, after) in enumerate(pairwise(found))
    )
    at = dict.fromkeys(hulls, 0)
    size, divergence = (sum(getattr(found[0], name) for found in hulls.values()) for name in ("bytes", "divergence"))
    if most_bytes is not None and size > most_bytes:
        raise UsageError(
            "No mixture is so small.",
            [f"the smallest has {sized(size)} of weights, {size - most_bytes:,} bytes more than there is room for"],
            ["--max-kl 0.1   # the smallest file that is good enough"],
            code="value-out-of-range",
        )
    for _, role, index in steps:
        if most_divergence is not None and divergence <= most_divergence:
            break
        before, after = hulls[role][index : index + 2]
        if at[role] != index or (most_bytes is not None and size + after.bytes - before.bytes > most_bytes):
            continue
        at[role] = index + 1
        size += after.bytes - before.bytes
        divergence += after.divergence - before.divergence
    if most_divergence is not None and divergence > most_divergence:
        raise UsageError(
            f"No mixture comes so near: the best one has an expected KL of {divergence:.2g}.",
            [],
            [f"--max-kl {divergence * 1.2:.2g}"],
            code="value-out-of-range",
        )
    return Choice({role: hulls[role][index].format for role, index in at.items()}, size, divergence)


def _counted(options: Mapping[str, Sequence[Option]], inputs: bool) -> Mapping[str, Sequence[Option]]:
    """Return options with or without the KL of rounded inputs."""
    if inputs:
        return options
    return {role: [replace(each, inputs=0.0) for each in listed] for role, listed in options.items()}


def choose_both(
    options: Mapping[str, Sequence[Option]], most_bytes: int, most_divergence: float, outside: int,
    cost: Cost = "bytes",
) -> Choice:  # fmt: skip
    """Return the smallest or fastest mixture of at most so many bytes and so much KL.

    By time, bytes are given a price in seconds, the least at which the fastest mixture within the KL is small enough.
    ``outside``: bytes of the file beside those of the mixture. Raises ``UsageError``, with both limits that could be
    met, where no mixture keeps both.
    """
    best = choose(_counted(options, False), most_bytes, None)
    if best.divergence > most_divergence:
        smallest = choose(options, None, most_divergence)
        needed = smallest.bytes + outside
        raise UsageError(
            "No mixture keeps both the size and the KL.",
            [
                f"the smallest file within a KL of {most_divergence:.2g} has {needed:,} bytes, "
                f"{smallest.bytes - most_bytes:,} too many",
                f"the best one of that size has an expected KL of {best.divergence:.2g}",
            ],
            [f"--max-kl {best.divergence * 1.05:.2g}", f"--size {needed + 1024}"],
            code="value-out-of-range",
        )
    small = choose(options, most_bytes, most_divergence)
    return small if cost == "bytes" else _fastest(options, most_bytes, most_divergence, small)


def _fastest(options: Mapping[str, Sequence[Option]], most_bytes: int, most_divergence: float, small: Choice) -> Choice:
    """Return the fastest mixture within both limits that a price of bytes finds; ``small`` keeps them."""
    chosen = {role: {each.format: each for each in listed} for role, listed in options.items()}

    def seconds(choice: Choice) -> float:
        return sum(chosen[role][fmt].seconds for role, fmt in choice.formats.items())

    low, high, price, found = 0.0, 0.0, 0.0, small
    for _ in range(_PRICES):
        priced = {
            role: [replace(each, seconds=each.seconds + price * each.bytes) for each in listed]
            for role, listed in options.items()
        }
        tried = choose(priced, None, most_divergence, "seconds")
        fits = tried.bytes <= most_bytes
        if fits and seconds(tried) < seconds(found):
            found = tried
        if fits and not price:
            break
        low, high = (low, price) if fits else (price, high)
        price = (low + high) / 2 if high else max(2 * low, seconds(small) / max(small.bytes, 1) / 64)
    return found


def hull(listed: Sequence[Option], cost: Cost = "bytes") -> tuple[Option, ...]:
    """Return the options on the lower convex hull of (cost, KL), the cheapest first."""
    found: list[Option] = []
    for each in sorted(listed, key=lambda one: (getattr(one, cost), one.error, one.bytes)):
        if found and (each.error >= found[-1].error or getattr(each, cost) == getattr(found[-1], cost)):
            continue
        while len(found) > 1 and _gain(found[-2], found[-1], cost) <= _gain(found[-2], each, cost):
            found.pop()
        found.append(each)
    return tuple(found)


def _gain(before: Option, after: Option, cost: Cost) -> float:
    """Return by how much KL falls for each unit of cost."""
    units: float = getattr(after, cost) - getattr(before, cost)
    return (before.error - after.error) / units
