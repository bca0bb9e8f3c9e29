"""How each network of a pipeline is held, phase by phase: (networks, device, budget) -> plan; pure.

Networks of a phase reside together and compute one at a time; those of the other phases are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rung import formats
from rung.core.errors import DoesNotFit
from rung.core.text import size
from rung.core.types import FLOAT_BYTES, Device, Format, MemoryUse, Placement, PlanFrame, Verdict
from rung.core.value import FrozenDict, Value
from rung.models.networks.values import Phase
from rung.planning.gguf_mixtures import storage as storage_of
from rung.planning.memory import RUNTIME_CPU, RUNTIME_GPU, bounded, memory_use
from rung.planning.request import Request
from rung.planning.weight_plan import Storage, compute_dtype, storage_name
from rung.planning.weight_plan_cache import WeightPlan, WeightPlanCache

#: What networks are held in where their 16 bits do not fit: best first.
QUANTIZED = ("int8", "nf4")
#: Bytes of a number in the formats that are no blocks.
#: A weight is decoded in slabs of at most so many bytes in f32, and once more in what is computed in.
_SLAB = 2 * (32 << 20)
#: Bytes a number of a weight that is encoded: as stored in 16 bits, and in f32.
_ENCODING = 6
#: The most bytes of any other weight that are there as they are stored while they are converted.
_CONVERTING = 32 << 20
#: What a pipeline makes of its pictures at the end: joined, in f32, scaled, and as an array.
COPIES = 4


@dataclass(frozen=True)
class Part(Value):
    """A weight [rows, columns]: ``layer``: formats may hold it; ``kept``: in f32 where none does; ``table``: in 16 bits
    where layers are quantized."""

    rows: int
    columns: int
    layer: bool
    kept: bool
    table: bool = False

    def bytes(self, stored: NetworkStorage) -> int:
        """Bytes as it is held."""
        if self.layer and stored.quantized:
            return layer_format(stored.format, self.columns).bytes((self.rows, self.columns))
        if self.table and stored.quantized:
            return self.rows * self.columns * 2
        return self.rows * self.columns * (4 if self.kept else FLOAT_BYTES[stored.dtype])


@dataclass(frozen=True)
class Network(Value):
    """A network of a pipeline as planning sees it.

    ``tensors`` are its weights in order; ``buffers`` are bytes. ``activations`` are the traced bytes of the largest
    call in f32, which had ``batch`` inputs, ``narrow`` those in 16 bits, where some are f32 all the same; ``results``
    the bytes that it returned.
    """

    name: str
    phase: str
    tensors: tuple[Part, ...]
    buffers: int
    activations: int
    narrow: int
    batch: int
    results: int

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(part.rows * part.columns for part in self.tensors)

    @property
    def layers(self) -> bool:
        """Return whether there is anything that formats may hold."""
        return any(part.layer for part in self.tensors)


@dataclass(frozen=True)
class NetworkStorage(Value):
    """How a network is held: weights in ``format``, computed in ``dtype``, ``at_once`` inputs at a time."""

    format: str
    dtype: str
    at_once: int

    @property
    def quantized(self) -> bool:
        """Return whether its layers are in blocks or rows with scales."""
        return self.format not in FLOAT_BYTES

    def __str__(self) -> str:
        return self.format if self.format == self.dtype else f"{self.format}, computed in {self.dtype}"


@dataclass(frozen=True)
class PlannedPhase(Value):
    """A phase: how its networks are stored, by name, and the memory while it runs."""

    name: str
    held: FrozenDict[NetworkStorage]
    memory: MemoryUse


@dataclass(frozen=True)
class PhasesPlan(PlanFrame):
    """The phases in order on one device, ``budget`` bytes."""

    device: str
    budget: int
    phases: tuple[PlannedPhase, ...]
    speeds = ()
    choices = ()

    @property
    def most(self) -> int:
        """The memory of the largest phase."""
        return max(phase.memory.total for phase in self.phases)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The device with the memory of the largest phase; only one phase is there at a time."""
        largest = max(self.phases, key=lambda phase: phase.memory.total)
        return (Placement(self.device, 0, 0, largest.memory, self.budget),)

    @property
    def verdict(self) -> Verdict:
        """Return whether every phase is within the budget."""
        return self.within_budget()

    def storage(self, network: str) -> NetworkStorage:
        """How a network is held; raises ``KeyError``."""
        return next(phase.held[network] for phase in self.phases if network in phase.held)


def layer_format(name: str, columns: int) -> Format:
    """The format of a layer with rows of so many columns: the one asked for, or the next better that can hold them."""
    return formats.next_better(formats.get(name), columns)


def weight_bytes(network: Network, stored: NetworkStorage) -> int:
    """Bytes of a network's weights and buffers."""
    return sum(part.bytes(stored) for part in network.tensors) + network.buffers


def loading_bytes(network: Network, stored: NetworkStorage) -> int:
    """How far above its final size a network is while it is read, at the most: which tensor comes last is not known.

    One that is encoded is there as it is stored and in f32 too; others are converted in pieces.
    """
    encoded = (part.rows * part.columns * _ENCODING for part in network.tensors if part.layer and stored.quantized)
    return max(_CONVERTING, *encoded, 0)


def rungs(network: Network, device: Device, format: str | None = None) -> list[NetworkStorage]:
    """The ways to hold a network on a device, best first; ``format`` asks for one. Raises ``UnknownFormat``."""
    if format is not None and format not in FLOAT_BYTES:
        formats.get(format)
    plain = ways(network.phase, device, None)[0]
    found = [way for way in ways(network.phase, device, format) if network.layers or way[0] in FLOAT_BYTES] or [plain]
    return [NetworkStorage(name, dtype, count) for name, dtype in found for count in slices(network.batch)]


def ways(phase: str, device: Device, format: str | None) -> list[tuple[str, str]]:
    """Formats with the dtype to compute in, best first, for networks of that phase.

    What encodes text never computes in f16, in which T5 overflows. What decodes pictures computes in f32 where that
    fits: autoencoders overflow in f16 too, and show the rounding of bf16. Ways in f32 come last, for refused dtypes.
    """
    wide = compute_dtype(device, lossless=False)
    safe = "bf16" if wide == "bf16" else "f32"
    calm = "f32" if device.kind == "cpu" else safe
    plain, dtype = (safe, calm) if phase == "encode" else (wide, wide)
    if phase == "decode":
        found = [("f32", "f32"), ("bf16", "bf16")][: 2 if wide == "bf16" else 1]
    elif format in FLOAT_BYTES:
        chosen = safe if (phase, format) == ("encode", "f16") else format
        found = [(chosen, chosen)]
    elif format is not None:
        found = [(format, dtype), (format, "f32")]
    else:
        found = [(plain, plain), *((name, dtype) for name in QUANTIZED)]
        found += [("f32", "f32"), *((name, "f32") for name in QUANTIZED)]
    return list(dict.fromkeys(found))


def slices(batch: int) -> list[int]:
    """Inputs at once: all, half of them, and so on to one."""
    found = [batch]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found


def phase_memory(networks: Mapping[str, Network], storages: Mapping[str, NetworkStorage], device: Device) -> MemoryUse:
    """Return the memory of networks that compute one at a time."""
    weights = sum(weight_bytes(networks[name], way) for name, way in storages.items())
    working = 0
    for name, way in storages.items():
        network = networks[name]
        alive = network.activations if way.dtype == "f32" else network.narrow
        computing = alive * way.at_once // network.batch
        computing += network.results * (COPIES if network.phase == "decode" else 1) + (_SLAB if way.quantized else 0)
        working = max(working, computing, loading_bytes(network, way))
    known = device.details.get("runtime_bytes")
    runtime = int(known or (RUNTIME_CPU if device.kind == "cpu" else RUNTIME_GPU))
    return bounded(MemoryUse(weights=weights, kv_cache=0, activations=working, workspace=0, runtime=runtime), device)


def plan_phases(
    model: str, networks: Sequence[Network], device: Device, budget: int, format: str | None = None,
    without: Iterable[tuple[str, NetworkStorage]] = (),
) -> PhasesPlan:  # fmt: skip
    """The best way to hold each network so that every phase fits the budget.

    ``format`` asks for one (of what encodes and denoises); ``without`` are ways that have failed. Raises
    ``DoesNotFit`` with the phase that does not fit and what would help, ``UnknownFormat``.
    """
    refused = set(without)
    names = dict.fromkeys(network.phase for network in networks)
    planned = []
    for phase in names:
        mine = {network.name: network for network in networks if network.phase == phase}
        ladders = {
            name: [way for way in rungs(network, device, format) if (name, way) not in refused]
            for name, network in mine.items()
        }
        planned.append(_fitted(model, phase, mine, ladders, device, budget))
    return PhasesPlan(device.id, budget, tuple(planned))


def _fitted(
    model: str, phase: str, networks: Mapping[str, Network], ladders: Mapping[str, list[NetworkStorage]],
    device: Device, budget: int,
) -> PlannedPhase:  # fmt: skip
    if empty := [name for name, ladder in ladders.items() if not ladder]:
        raise DoesNotFit(f"Every way to hold the {empty[0]} of {model} on {device.id} has failed.")
    storages, memory = step_down(ladders, lambda storages: phase_memory(networks, storages, device), budget)
    if memory.most > budget:
        raise _does_not_fit(model, phase, storages, memory, budget)
    return PlannedPhase(phase, FrozenDict(storages), memory)


def step_down(
    ladders: Mapping[str, list[NetworkStorage]],
    memory_of: Callable[[Mapping[str, NetworkStorage]], MemoryUse],
    budget: int,
) -> tuple[dict[str, NetworkStorage], MemoryUse]:
    """Steps the network down whose next rung saves most, until they fit the budget or nothing saves any more."""
    rungs = dict.fromkeys(ladders, 0)
    while True:
        storages = {name: ladders[name][at] for name, at in rungs.items()}
        memory = memory_of(storages)
        if memory.most <= budget:
            return storages, memory
        saved = {}
        for name, ladder in ladders.items():
            for at in range(rungs[name] + 1, len(ladder)):
                less = memory.most - memory_of({**storages, name: ladder[at]}).most
                if less > 0:
                    saved[name] = (less, at)
                    break
        if not saved:
            return storages, memory
        best = max(saved, key=lambda name: saved[name][0])
        rungs[best] = saved[best][1]


def _does_not_fit(
    model: str, phase: str, storages: Mapping[str, NetworkStorage], memory: MemoryUse, budget: int
) -> DoesNotFit:
    ways = ", ".join(f"{name} in {way}" for name, way in storages.items())
    smaller = [] if phase == "encode" else ["a smaller --size, or fewer --frames"]
    return DoesNotFit(
        f"{model} does not fit: its phase {phase!r} needs {size(memory.most)} of {size(budget)}.",
        [f"{ways}: weights {size(memory.weights)}, the rest {size(memory.most - memory.weights)}"],
        [*smaller, f"--memory {(memory.most * 10 // 2**30 + 1) / 10}GB"],
    )


def with_runtime(device: Device, count: int) -> Device:
    """The device, on which so many bytes are used before any weight."""
    return replace(device, details=FrozenDict({**device.details, "runtime_bytes": count}))


#: Of what resides together one component computes at a time.
_ONE_AT_A_TIME = ("activations", "workspace", "runtime", "bound")


def phase_on(
    phase: Phase,
    components: Mapping[str, WeightPlanCache],
    storage: Storage,
    device: Device,
    request: Request,
    context: int,
) -> PlannedPhase:
    """How its components are held in a format so that the phase fits the budget there, or as near as it gets."""
    mine = {name: components[name] for name in phase.components}
    found = ways(phase.name, device, storage_name(storage))
    ladders = {
        name: [NetworkStorage(*way, count) for way in found for count in slices(inputs_of(plans, request))]
        for name, plans in mine.items()
    }

    def memory_of(storages: Mapping[str, NetworkStorage]) -> MemoryUse:
        uses = [_use(mine[name], phase.name, way, storage, device, request, context) for name, way in storages.items()]
        weights = sum(use.weights for use in uses)
        return MemoryUse(
            weights=weights, kv_cache=0, **{name: max(getattr(use, name) for use in uses) for name in _ONE_AT_A_TIME}
        )

    storages, memory = step_down(ladders, memory_of, request.budget(device))
    return PlannedPhase(phase.name, FrozenDict(storages), memory)


def inputs_of(plans: WeightPlanCache, request: Request) -> int:
    """How many inputs one call has."""
    return plans.subject.shape.inputs * request.batch


def _use(
    plans: WeightPlanCache,
    phase: str,
    way: NetworkStorage,
    storage: Storage,
    device: Device,
    request: Request,
    context: int,
) -> MemoryUse:
    """A component by itself, computing so many inputs at a time."""
    subject, inputs, width = plans.subject, inputs_of(plans, request), FLOAT_BYTES[way.dtype]
    stored = storage_of(way.format) if way.format in FLOAT_BYTES else storage
    weight_plan = plans.plan(stored, device, compute_dtype(device, way.format == "f32"), False)
    weights = _part_bytes(weight_plan, phase, way)
    use = memory_use(weights, subject, device, subject.layers, context, "f16", request.batch, width)
    if way.at_once == inputs:
        return use
    pictures = COPIES * FLOAT_BYTES["f32"] * subject.shape.outputs * inputs
    return bounded(replace(use, activations=use.activations * way.at_once // inputs + pictures), device)


def _part_bytes(weight_plan: WeightPlan, phase: str, way: NetworkStorage) -> tuple[int, int]:
    """Bytes of weights and workspace: what decodes is never quantized, tables of tokens have at least 16 bits."""
    weights, workspace = weight_plan.bytes(0, weight_plan.subject.layers)
    if phase == "decode":
        return FLOAT_BYTES[way.format] * weight_plan.subject.parameters, workspace
    found = [(kind.weight, len(kind.places)) for kind in weight_plan.kinds if kind.weight.tensor.role.endswith("embed")]
    if way.format in ("bf16", "f16"):
        weights += 2 * weight_plan.subject.kept
    return weights + sum(max(2 * table.count - table.bytes, 0) * times for table, times in found), workspace
