"""Recipes of one model with what is asked of them again and again, made once for all devices that hold it alike."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from rung.core.types import YES, Device, Verdict, no
from rung.ops import LADDERS
from rung.ops.decode_step import BLOCKS
from rung.ops.linear import DECODING
from rung.planning.gguf_mixtures import Mixture
from rung.planning.memory import weights_on, workspace
from rung.planning.network_spec import Subject
from rung.planning.speed import Group, groups, token_share
from rung.planning.weight_plan import (
    WIDER,
    Alike,
    Storage,
    Weight,
    alike,
    classes,
    combined_db,
    in_order,
    reads_without_torch,
    step_case,
    step_rung,
)


@dataclass(frozen=True)
class WeightPlan:
    """Every weight of a model as a device would hold it, and sums over them: ``kinds`` are held alike."""

    subject: Subject
    kinds: tuple[Alike, ...]

    @functools.cached_property
    def weights(self) -> tuple[Weight, ...]:
        """One by one, in the order of the model's tensors."""
        return in_order(self.subject, self.kinds)

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """Return the groups of weights that a token is multiplied with."""
        return groups(((kind.weight, len(kind.places)) for kind in self.kinds), self.subject)

    @functools.cached_property
    def token_bytes(self) -> tuple[float, float]:
        """Bytes of the weights that one token needs, each in its format and once, and how many weights they are."""
        size = number = 0.0
        for kind in self.kinds:
            if share := token_share(kind.weight, self.subject):
                size += share * len(kind.places) * kind.weight.format.bytes(kind.weight.tensor.shape)
                number += share * len(kind.places) * kind.weight.count
        return size, number

    @functools.cached_property
    def refused(self) -> Weight | None:
        """A weight that no rung takes."""
        return next((kind.weight for kind in self.kinds if not kind.weight.rung), None)

    @functools.cached_property
    def fast(self) -> bool:
        """Return whether a rung multiplies without decoding first."""
        return any(kind.weight.rung not in DECODING for kind in self.kinds if kind.weight.multiplies)

    @functools.cached_property
    def widened(self) -> bool:
        """Return whether a weight is held in another layout than the stored one."""
        return any(kind.weight.packing in WIDER for kind in self.kinds)

    def reads_without_torch(self, device: Device, cache_dtype: str) -> bool:
        """See ``rung.planning.weight_plan.reads_without_torch``."""
        return reads_without_torch(self.subject, (kind.weight for kind in self.kinds), device, cache_dtype)

    def groups_on(self, first: int, last: int) -> tuple[Group, ...]:
        """Return the groups of the weights that a token is multiplied with in the layers [first, last), and of the head
        behind the last one."""
        if (first, last) == (0, self.subject.layers):
            return self.groups
        mine = self._on(first, last, False)
        return groups(((weight, 1) for weight in mine), self.subject)

    def _on(self, first: int, last: int, embeds: bool | None) -> list[Weight]:
        shape, layers = self.subject.shape, self.subject.layers
        return weights_on(self.weights, first, last, layers, self.subject.tied, shape.encoder_layers, embeds)

    def cache_block(self, device: Device, cache_dtype: str) -> int:
        """Return the positions of a block of the cache with all weights on a device; 0 for a sequence in one."""
        weights = (kind.weight for kind in self.kinds)
        return BLOCKS.get(step_rung(self.subject, weights, device, cache_dtype), 0)

    def step_verdict(self, device: Device, cache_dtype: str, part: bool = False) -> Verdict:
        """Return whether a rung computes tokens with all weights on a device and such a cache, or ``part`` of the
        layers; where none does, why the first one of its kind does not."""
        case = step_case(self.subject, [kind.weight for kind in self.kinds], cache_dtype, part)
        ladder = LADDERS["decode_step"]
        climb = ladder.climb(device, case)
        if climb.rung is not None:
            return YES
        own = (each for each in climb.refusals if device.kind in ladder.rung(each.rung).kinds)
        return no(next(own, climb.refusals[0]).reason)

    @functools.cached_property
    def error_db(self) -> float:
        """The weights' SQNR against the stored model: what a file lost before is not counted."""
        return combined_db(
            (w.count * len(kind.places), math.inf if w.format.name == w.tensor.format else w.format.floor_db)
            for kind in self.kinds
            if (w := kind.weight).multiplies
        )

    @functools.cached_property
    def _whole(self) -> tuple[int, int]:
        total = sum(kind.weight.bytes * len(kind.places) for kind in self.kinds)
        return total, workspace(kind.weight for kind in self.kinds)

    def bytes(self, first: int, last: int, embeds: bool | None = None) -> tuple[int, int]:
        """Bytes of the weights of the layers [first, last), with what lies around them, and of their workspace. The
        embedding lies before the first layer, or where it is said (``embeds``)."""
        if (first, last) == (0, self.subject.layers):
            return self._whole
        mine = self._on(first, last, embeds)
        return sum(weight.bytes for weight in mine), workspace(mine)


class WeightPlanCache:
    """The weight plans of one model, each planned once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._plans: dict[object, WeightPlan] = {}
        self._classes: dict[bool, tuple[tuple[int, ...], ...]] = {}
        self._kinds: dict[int, tuple[Device, object]] = {}

    def plan(self, storage: Storage, device: Device, dtype: str, packed: bool) -> WeightPlan:
        """The weights as that device would hold them."""
        key = (storage, self._kind(device), dtype, packed)
        if key not in self._plans:
            each = isinstance(storage, Mixture)
            if each not in self._classes:
                self._classes[each] = classes(self.subject, each)
            planned = alike(self.subject, storage, device, dtype, packed, self._classes[each])
            self._plans[key] = WeightPlan(self.subject, planned)
        return self._plans[key]

    def _kind(self, device: Device) -> object:
        """Return the key that the choice of rungs depends on: devices with the same capabilities, packages and compiler
        share it."""
        key = id(device)
        if key not in self._kinds:
            levels = tuple(device.capability(name).level for name in _QUESTIONS if not name.startswith("package."))
            packages = tuple(name.removeprefix("package.") in device.software for name in _QUESTIONS)
            compilers = device.arch, *map(device.software.get, ("nvrtc", "hiprtc"))
            self._kinds[key] = device, (device.kind, levels, packages, compilers)
        return self._kinds[key][1]


#: What the rungs of linear and their checks ask of a device.
_QUESTIONS = tuple(
    sorted({"matmul.f16", "matmul.bf16", *(need for rung in LADDERS["linear"].rungs for need in rung.needs)})
)
