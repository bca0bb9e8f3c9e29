"""The core types: verdicts, devices, formats, cases, rungs, ladders, plans and reports, all frozen values."""

from __future__ import annotations

import enum
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, cast

from rung.core.text import rate, size
from rung.core.value import FrozenDict, Shown, Value

EMPTY: FrozenDict[Any] = FrozenDict()


class Level(enum.StrEnum):
    """How well a device does a thing. Unknown is never native."""

    NATIVE = "native"
    EMULATED = "emulated"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Proof(enum.StrEnum):
    """Where the knowledge of a capability comes from."""

    PROBE = "probe"  # computed here and compared
    TABLE = "table"  # the catalog
    DECLARED = "declared"  # the driver or the processor says so
    NONE = "none"  # nobody knows


class StepClass(enum.StrEnum):
    """Why a rung was left for a lower one."""

    UNSUPPORTED = "unsupported"  # the device cannot
    UNAVAILABLE = "unavailable"  # a package or build is missing
    BROKEN = "broken"  # raised or computed wrongly: quarantined
    OUT_OF_MEMORY = "out of memory"  # plan again, nothing is quarantined
    DEVICE_LOST = "device lost"  # nothing more runs there


@dataclass(frozen=True)
class Verdict(Value):
    """Yes, or no with a sentence that says why."""

    ok: bool
    reason: str = ""
    step: StepClass = StepClass.UNSUPPORTED

    def __post_init__(self) -> None:
        assert self.ok or self.reason, "a no needs a reason"

    def __bool__(self) -> bool:
        return self.ok


YES = Verdict(True)


def no(reason: str, step: StepClass = StepClass.UNSUPPORTED) -> Verdict:
    """A refusal with its reason."""
    return Verdict(False, reason, step)


@dataclass(frozen=True)
class Capability(Value):
    """One thing a device can do with the software at hand; ``detail`` says how, as a word for programs."""

    name: str
    level: Level
    proof: Proof
    source: str = ""
    detail: str = ""


@dataclass(frozen=True, repr=False)
class Device(Shown, Value):
    """One processor with its memory, real or simulated: pure data, never "the current one".

    ``memory`` and ``free`` are bytes, ``bandwidth`` bytes per second, ``peaks`` matrix operations per second
    by dtype. ``software`` maps packages (and ``driver``) to versions. ``details`` holds what is shown and
    not decided on: cores, caches, NUMA, PCI id. ``rates``: ``rung calibrate``'s, named as in ``rung.planning.speed``.
    """

    id: str
    kind: str
    name: str
    arch: str
    memory: int
    free: int | None = None
    bandwidth: float | None = None
    peaks: FrozenDict[float] = EMPTY
    capabilities: FrozenDict[Capability] = EMPTY
    software: FrozenDict[str] = EMPTY
    details: FrozenDict[Any] = EMPTY
    real: bool = True
    rates: FrozenDict[float] = EMPTY
    VIEW = "rung.cli.views.devices"

    def __repr__(self) -> str:
        return f"<Device {self.id}: {self.name}, {self.memory / 2**30:.1f} GB>"

    def capability(self, name: str) -> Capability:
        """Return a capability; unknown and without a proof where nobody has looked."""
        return self.capabilities.get(name, Capability(name, Level.UNKNOWN, Proof.NONE))

    def with_capabilities(self, found: Iterable[Capability]) -> Device:
        """The same device with capabilities added or replaced."""
        return replace(self, capabilities=self.capabilities | {c.name: c for c in found})

    @property
    def torch_computes(self) -> bool:
        """Return whether torch may compute there: on a device of WebGPU never, elsewhere until something says no."""
        return self.capability("package.torch").level is not Level.ABSENT

    @property
    def budget(self) -> int:
        """Bytes that a plan may use when no budget is given: what is free, else nine tenths of all."""
        return self.free if self.free is not None else self.memory * 9 // 10


@dataclass(frozen=True)
class Format(Value):
    """How a weight is stored.

    ``layout`` says how blocks lie: ``rows`` (every row is divided into blocks), ``ordered`` (the same, with the columns
    in another order), ``flat`` (the tensor is flattened first, the last block may be short), ``row_scale``.
    ``bits`` is the size of a weight of a large tensor, scales included. ``floor_db`` is the SQNR that
    encoding Gaussian weights reaches at least; infinite for a lossless format.
    """

    name: str
    family: str
    bits: float
    block: int
    block_bytes: int
    layout: str
    floor_db: float
    encodes: bool
    nested: bool = False
    title: str = ""

    def divides(self, columns: int) -> bool:
        """Return whether a row of that many weights can be stored."""
        return self.layout not in ("rows", "ordered") or columns % self.block == 0

    def bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of that shape, equal to what ``encode`` returns, scales and padding included."""
        count, columns = math.prod(shape), shape[-1] if shape else 1
        if self.layout in ("rows", "ordered"):
            assert columns % self.block == 0, f"{self.name} does not divide a row of {columns}"
            orders = 4 * columns * math.prod(shape[:-2]) if self.layout == "ordered" else 0
            return count // self.block * self.block_bytes + orders
        if self.layout == "row_scale":
            return count + 4 * math.prod(shape[:-1])
        blocks = -(-count // self.block)
        packed = -(-count // 2)
        return packed + (blocks + 4 * -(-blocks // 256) + 4 if self.nested else 4 * blocks)


@dataclass(frozen=True)
class Case(Value):
    """Hold what a check may see of a call: no tensors.

    ``shape`` per op: linear (rows, out, in), embedding (tokens, vocabulary, hidden), attention
    (queries, keys, heads, kv_heads, head_dim), quantize and dequantize (rows, columns), decode_step
    (layers, hidden, feed_forward, vocabulary).
    """

    op: str
    format: str
    dtype: str
    shape: tuple[int, ...]
    options: FrozenDict[Any] = EMPTY


def resolve(path: str) -> Any:
    """The object named ``module:attribute``."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class Rung(Value):
    """One implementation of an op.

    ``needs`` names capabilities (``isa.avx512_vnni``) and packages (``package.numba``). ``formats`` and
    ``dtypes`` list what is accepted, ``*`` for all. ``check`` names a pure, torch-free function
    ``(case, device) -> Verdict``. ``packing`` names the private layout of the weight; rungs with the same
    packing share it. ``impl`` names the implementation. ``version`` goes into the cache of proofs. ``plugin`` is the
    distribution that adds the rung, empty for rung's own.
    """

    op: str
    name: str
    impl: str
    kinds: tuple[str, ...] = ("*",)
    needs: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("*",)
    dtypes: tuple[str, ...] = ("*",)
    check: str = ""
    packing: str = "stored"
    version: int = 1
    plugin: str = ""

    def verdict(self, case: Case, device: Device) -> Verdict:
        """Return whether this rung takes that case on that device, with the reason when not."""
        assert case.op == self.op, f"{self.name} is a rung of {self.op}, asked for {case.op}"
        if "*" not in self.kinds and device.kind not in self.kinds:
            return no(f"runs on {' and '.join(self.kinds)}, not on {device.kind}")
        for need in self.needs:
            met = _need(need, device)
            if not met:
                return met
        if "*" not in self.formats and case.format.split(":")[0] not in self.formats:
            return no(f"has no kernel for {case.format}")
        if "*" not in self.dtypes and case.dtype not in self.dtypes:
            return no(f"does not compute in {case.dtype}")
        if self.check:
            return self._checked(case, device) if self.plugin else cast(Verdict, resolve(self.check)(case, device))
        return YES

    def _checked(self, case: Case, device: Device) -> Verdict:
        """Return the verdict of a plug-in's check; one that raises or returns something else refuses."""
        from rung.core.plugins import Plugin

        try:
            verdict = resolve(self.check)(case, device)
        except Exception as error:
            reason = f"its check raised {type(error).__name__}: {error}"
        else:
            if isinstance(verdict, Verdict):
                return verdict
            reason = f"its check returned a {type(verdict).__name__}, not a Verdict"
        Plugin("rung.rungs", f"{self.op} {self.name}", self.plugin).leave_out(reason)
        return no(f"of {self.plugin}: {reason}", StepClass.BROKEN)

    @property
    def without_torch(self) -> bool:
        """Return whether it computes with arrays and imports no torch; a plug-in's knows tensors only."""
        return {*self.kinds} <= {"cpu", "webgpu"} and "package.torch" not in self.needs and not self.plugin

    def load(self) -> Any:
        """The implementation, imported now."""
        return resolve(self.impl)


def _need(need: str, device: Device) -> Verdict:
    if need.startswith("package."):
        package = need.removeprefix("package.")
        known = device.capability(need)
        if known.level is Level.ABSENT:
            return no(f"{package} does not compute on {device.name} ({known.source})", StepClass.UNAVAILABLE)
        if package in device.software:
            return YES
        source = {"torch": "'rung[run]'", "numba": "'rung[lean]'", "wgpu": "'rung[lean]'"}.get(package, package)
        return no(f"{package} is not installed: pip install {source}", StepClass.UNAVAILABLE)
    found = device.capability(need)
    if found.level in (Level.NATIVE, Level.EMULATED):
        return YES
    if found.level is Level.UNKNOWN:
        return no(f"nobody knows whether {device.name} has {need}; rung devices --probe finds out")
    return no(f"{device.name} has no {need}" + (f" ({found.source})" if found.source else ""))


@dataclass(frozen=True)
class Refusal(Value):
    """A rung that was not taken, and why."""

    rung: str
    step: StepClass
    reason: str


@dataclass(frozen=True)
class Climb(Value):
    """The outcome of climbing a ladder: the highest rung that takes the case, and the refusals above it."""

    rung: Rung | None
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class Ladder(Value):
    """The rungs of an op, best first; the last is ``ref``."""

    op: str
    rungs: tuple[Rung, ...]

    def climb(self, device: Device, case: Case, allow: Callable[[Rung], Verdict] = lambda rung: YES) -> Climb:
        """The highest rung that takes the case there, and the trail of refusals.

        ``allow`` refuses rungs for reasons that are not the case's: quarantine, memory.
        """
        refusals: list[Refusal] = []
        for rung in self.rungs:
            allowed = allow(rung)
            verdict = allowed and rung.verdict(case, device)
            if verdict:
                return Climb(rung, tuple(refusals))
            refusals.append(Refusal(rung.name, verdict.step, verdict.reason))
        return Climb(None, tuple(refusals))

    def rung(self, name: str) -> Rung:
        """The rung of that name; raises ``KeyError``."""
        for rung in self.rungs:
            if rung.name == name:
                return rung
        raise KeyError(name)


@dataclass(frozen=True)
class MemoryUse(Value):
    """Predicted bytes on one device, by what they hold; ``bound`` is how far the peak may lie above their total."""

    weights: int
    kv_cache: int
    activations: int
    workspace: int
    runtime: int
    gradients: int = 0
    optimizer: int = 0
    bound: int = 0

    @property
    def total(self) -> int:
        """Bytes in all, as predicted."""
        run = self.weights + self.kv_cache + self.activations + self.workspace + self.runtime
        return run + self.gradients + self.optimizer

    @property
    def most(self) -> int:
        """Bytes that a budget must hold: the prediction and its bound."""
        return self.total + self.bound

    def parts(self) -> dict[str, int]:
        """Bytes by what they hold, with their total."""
        names = ("weights", "kv_cache", "activations", "workspace", "runtime", "gradients", "optimizer")
        return {name: getattr(self, name) for name in names} | {"total": self.total}


@dataclass(frozen=True)
class Placement(Value):
    """The layers [first, last) that one device holds, with the memory they need there of ``budget`` bytes.

    The device of the first placement also holds the embedding, that of the last the head; where the processor shares
    layers with a device of WebGPU the embedding is the processor's. Both are 0 of what is not placed by layers.
    """

    device: str
    first: int
    last: int
    memory: MemoryUse
    budget: int


class PlanFrame(Value):
    """Hold what every plan says in the same words: of a model, of the phases of a pipeline, of splats, of a training.

    ``placements`` are its devices, each with its memory by what it holds; ``speeds`` what is predicted of its speed, in
    words; ``verdict`` whether it would run; ``choices`` what else was considered, as frames too.
    """

    if TYPE_CHECKING:  # fields of some plans, properties of others; a property here would be a field's default

        @property
        def placements(self) -> tuple[Placement, ...]: ...

        @property
        def speeds(self) -> tuple[str, ...]: ...

        @property
        def verdict(self) -> Verdict: ...

        @property
        def choices(self) -> tuple[PlanFrame, ...]: ...

    def memory_words(self, named: bool = False) -> str:
        """Predicted memory of each device, ``3.1 GB of 4.9 GB``; ``named``: with ``on cuda:0`` behind it."""
        return " + ".join(
            f"{size(p.memory.total)} of {size(p.budget)}" + (f" on {p.device}" if named else "")
            for p in self.placements
        )

    def within_budget(self) -> Verdict:
        """Return whether the memory, with the bound of its error, is within the budget of each device."""
        for p in self.placements:
            if p.memory.most > p.budget:
                needed = f"needs {size(p.memory.most)} of {size(p.budget)} on {p.device}"
                return no(needed, StepClass.OUT_OF_MEMORY)
        return YES

    def summary(self) -> dict[str, Any]:
        """The frame as scripts read it."""
        result: dict[str, Any] = {
            "memory": [{"device": p.device, **p.memory.parts(), "budget": p.budget} for p in self.placements],
            "speed": list(self.speeds),
            "verdict": {"ok": self.verdict.ok, "reason": self.verdict.reason},
        }
        return result | ({"choices": [choice.summary() for choice in self.choices]} if self.choices else {})

    def to_json(self) -> dict[str, Any]:
        """The plan's own fields, and its ``summary``."""
        return super().to_json() | {"summary": self.summary()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The plan that ``to_json`` wrote; its ``summary`` follows from the fields. Raises ``ValueError``."""
        return super().from_json({name: value for name, value in data.items() if name != "summary"})


@dataclass(frozen=True)
class Part(Value):
    """The stored format that one tensor role gets, and why when it is not the plan's own."""

    role: str
    format: str
    reason: str = ""


@dataclass(frozen=True)
class Candidate(PlanFrame):
    """One way to run the model that was considered.

    ``decode_rate`` and ``prefill_rate`` are tokens per second; ``error_db`` is the weights' SQNR. ``timed``: the rates
    are of this device, and not what a CPU without a fast kernel is guessed to take to decode weights.
    """

    format: str
    dtype: str
    placements: tuple[Placement, ...]
    context: int
    decode_rate: float
    prefill_rate: float
    error_db: float
    verdict: Verdict
    timed: bool = True
    choices = ()

    @property
    def speeds(self) -> tuple[str, ...]:
        """Tokens per second, of a new token and of a prompt."""
        return _rate_words(self.decode_rate, self.prefill_rate) if self.timed else ()


@dataclass(frozen=True, repr=False)
class Plan(Shown, PlanFrame):
    """Which format, device and compute dtype each part of a model gets; a contract on memory.

    What it accepts runs ``parallel`` sequences to the full ``context`` within ``budget`` bytes of each placement.
    ``decode_rate`` is theirs in sum.
    ``format`` is ``stored`` when a file keeps its formats; ``parts`` names the roles that differ from it.
    """

    model: str
    format: str
    dtype: str
    cache_dtype: str
    context: int
    placements: tuple[Placement, ...]
    parts: tuple[Part, ...]
    packing: str
    threads: int
    decode_rate: float
    prefill_rate: float
    error_db: float
    reasons: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    #: Sequences that each have room for the whole context.
    parallel: int = 1
    VIEW = "rung.cli.views.shown_plan"

    def __repr__(self) -> str:
        device_ids = "+".join(placement.device for placement in self.placements)
        return f"<Plan of {self.model}: {self.format} on {device_ids}, {self.memory / 2**30:.1f} GB>"

    @property
    def memory(self) -> int:
        """Predicted bytes over all devices."""
        return sum(placement.memory.total for placement in self.placements)

    @property
    def speeds(self) -> tuple[str, ...]:
        """Tokens per second, of a new token and of a prompt."""
        return _rate_words(self.decode_rate, self.prefill_rate)

    @property
    def verdict(self) -> Verdict:
        """A plan is a contract: what does not fit has none."""
        return self.within_budget()

    @property
    def choices(self) -> tuple[Candidate, ...]:
        """The candidates that were considered."""
        return self.candidates


def _rate_words(decode: float, prefill: float) -> tuple[str, ...]:
    return f"{rate(decode)} tokens/s", f"{rate(prefill)} tokens/s of a prompt"


@dataclass(frozen=True)
class StepDown(Value):
    """One rung that was left for a lower one while running."""

    op: str
    rung: str
    device: str
    step: StepClass
    reason: str
    to: str


@dataclass(frozen=True)
class Report(Value):
    """Hold what happened: every step down, the rungs that ran, predicted beside measured (bytes, tokens per second).

    ``rungs`` has, by op and format, the names of all that were taken: ``linear q4_0`` is ``numba.row, numba.tile``.
    """

    steps: tuple[StepDown, ...] = ()
    rungs: FrozenDict[str] = EMPTY
    predicted: FrozenDict[float] = EMPTY
    measured: FrozenDict[float] = EMPTY
    notes: tuple[str, ...] = ()


#: Bytes of a number.
FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
