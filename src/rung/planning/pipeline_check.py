"""The phases of a pipeline as ``rung check`` judges them: held as ``rung video`` would, but from headers alone; pure.

A rehearsal knows what each network is asked for; here stand estimates for the sizes that diffusers makes by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rung.core.dtypes import FLOAT_BYTES
from rung.core.types import Device, MemoryUse
from rung.core.value import FrozenDict
from rung.models.networks.values import Phase
from rung.planning.gguf_mixtures import storage as storage_of
from rung.planning.memory import bounded, memory_use
from rung.planning.pipeline import COPIES, NetworkStorage, PlannedPhase, slices, step_down, ways
from rung.planning.request import Request
from rung.planning.weight_plan import Storage, compute_dtype, storage_name
from rung.planning.weight_plan_cache import Recipe, WeightPlanCache

#: Of what resides together one component computes at a time.
_ONE_AT_A_TIME = ("activations", "workspace", "runtime", "bound")


def phase_on(
    phase: Phase,
    kitchens: Mapping[str, WeightPlanCache],
    storage: Storage,
    device: Device,
    request: Request,
    context: int,
) -> PlannedPhase:
    """How its components are held in a format so that the phase fits the budget there, or as near as it gets."""
    mine = {name: kitchens[name] for name in phase.components}
    found = ways(phase.name, device, storage_name(storage))
    ladders = {
        name: [NetworkStorage(*way, count) for way in found for count in slices(inputs_of(kitchen, request))]
        for name, kitchen in mine.items()
    }

    def memory_of(held: Mapping[str, NetworkStorage]) -> MemoryUse:
        uses = [_use(mine[name], phase.name, way, storage, device, request, context) for name, way in held.items()]
        weights = sum(use.weights for use in uses)
        return MemoryUse(
            weights=weights, kv_cache=0, **{name: max(getattr(use, name) for use in uses) for name in _ONE_AT_A_TIME}
        )

    held, memory = step_down(ladders, memory_of, request.budget(device))
    return PlannedPhase(phase.name, FrozenDict(held), memory)


def inputs_of(kitchen: WeightPlanCache, request: Request) -> int:
    """How many inputs one call has."""
    return kitchen.subject.shape.inputs * request.batch


def _use(
    kitchen: WeightPlanCache,
    phase: str,
    way: NetworkStorage,
    storage: Storage,
    device: Device,
    request: Request,
    context: int,
) -> MemoryUse:
    """A component by itself, computing so many inputs at a time."""
    subject, inputs, width = kitchen.subject, inputs_of(kitchen, request), FLOAT_BYTES[way.dtype]
    stored = storage_of(way.format) if way.format in FLOAT_BYTES else storage
    recipe = kitchen.recipe(stored, device, compute_dtype(device, way.format == "f32"), False)
    held = _part_bytes(recipe, phase, way)
    use = memory_use(held, subject, device, subject.layers, context, "f16", request.batch, width)
    if way.at_once == inputs:
        return use
    made = COPIES * FLOAT_BYTES["f32"] * subject.shape.made * inputs
    return bounded(replace(use, activations=use.activations * way.at_once // inputs + made), device)


def _part_bytes(recipe: Recipe, phase: str, way: NetworkStorage) -> tuple[int, int]:
    """Bytes of weights and workspace: what decodes is never quantised, tables of tokens have at least 16 bits."""
    weights, workspace = recipe.bytes(0, recipe.subject.layers)
    if phase == "decode":
        return FLOAT_BYTES[way.format] * recipe.subject.parameters, workspace
    found = [(kind.weight, len(kind.places)) for kind in recipe.kinds if kind.weight.tensor.role.endswith("embed")]
    if way.format in ("bf16", "f16"):
        weights += 2 * recipe.subject.kept
    return weights + sum(max(2 * table.count - table.bytes, 0) * times for table, times in found), workspace
