"""Finds out what a device can do by computing it: in a child process, compared with float64, kept on disk.

An abort, a hang or an illegal instruction costs the capability that was being tried and nothing else. What could not be
tried at all (no torch, no memory left) stays unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rung.core.settings import CPU_LEVEL
from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware import json_cache, probe_cache
from rung.hardware.catalog import DTYPES
from rung.hardware.families import cpu
from rung.hardware.probe_cache import Findings
from rung.kernels.cpu import target
from rung.run import cpu_level, worker
from rung.run.worker import Job, Outcome

#: Seconds that one attempt may take; all of them together take under 10 s where nothing hangs.
LIMIT = 15.0
#: A dtype that multiplies at less than this part of f32's rate is emulated, whatever the processor lists.
_EMULATED_BELOW = 0.8
#: A device on which so many attempts crash or hang is in trouble as a whole.
_MOST_LOST = 5
#: Seconds for which a hang is believed: it is the device's, or that of a machine that was busy.
_HANGS_FOR = 3600.0
_OPS = ("matmul", "attention", "elementwise")
_PROBES = "rung.run.probes"
_COMPARED = "computed and compared with float64"
_COMPILED = "compiled, run and compared"
_CHECK = "rung.kernels.isa.probes:check"

Progress = Callable[[str], None]


def probe(device: Device, *, fresh: bool = False, progress: Progress = lambda what: None) -> Device:
    """The device with what a probe found: capabilities, peaks (operations/s) and bandwidth (bytes/s).

    Taken from disk where an earlier probe of the same device, driver and software is kept there, unless ``fresh``.
    ``progress`` is told what is being tried. A simulated device comes back as it is. Raises nothing of the device's.
    """
    if not device.real:
        return device
    with json_cache.lock(probe_cache.key(device)):
        found = None if fresh else probe_cache.read(device)
        if found is None:
            found = measure(device, progress)
            note = probe_cache.write(device, found) if _worth_keeping(found) else ""
            if note:
                found = replace(found, notes=(*found.notes, note))
    known = probe_cache.apply(device, found)
    cpu_level.adopt(known)
    return known


def measure(device: Device, progress: Progress = lambda what: None) -> Findings:
    """Probe a device now; read nothing from disk and keep nothing there."""
    busy = _busy(device)
    capabilities = list(prove_instruction_sets(device, progress))
    compute = _with_torch if "torch" in device.software or device.kind != "cpu" else _with_numpy
    if device.kind == "webgpu":
        compute = _with_webgpu
    computed, peaks, bandwidth, notes = compute(device, progress)
    if busy and peaks:
        notes.append(
            "other programs were using the processor, so the rates are too low; measure again: rung devices --probe"
        )
    capabilities += computed
    until = time.time() + _HANGS_FOR if any(worker.NO_ANSWER in c.source for c in capabilities) else 0.0
    return Findings(tuple(capabilities), FrozenDict(peaks), bandwidth, tuple(notes), until)


def _busy(device: Device) -> bool:
    """Return whether other programs leave the processor less than half of itself (the load of the last minute)."""
    if device.kind != "cpu" or not hasattr(os, "getloadavg"):
        return False
    return os.getloadavg()[0] > 0.5 * int(device.details.get("cores", 1))


def _worth_keeping(found: Findings) -> bool:
    """Return whether something was found out; what stayed unknown for want of torch or memory is tried again."""
    return any(c.proof is Proof.PROBE and c.level is not Level.UNKNOWN for c in found.capabilities) and not any(
        c.level is Level.UNKNOWN for c in found.capabilities
    )


def prove_instruction_sets(device: Device, progress: Progress) -> Iterator[Capability]:
    """Yield the levels that the processor lists, each compiled and run; those it does not list are not tried."""
    names = [
        c.name
        for c in device.capabilities.values()
        if c.name.startswith("isa.") and c.level is not Level.ABSENT and device.arch in cpu.levels()
    ]
    if device.kind != "cpu" or not names:
        return
    provable = [name for name in names if device.arch == "x86_64" and name != cpu_level.KERNELS]
    if "numba" not in device.software:
        for name in names:
            yield Capability(name, Level.UNKNOWN, Proof.NONE, "numba is not installed: pip install 'rung[lean]'")
        return
    progress("instruction sets")
    jobs = [Job.of(_CHECK, name=name) for name in (*provable, cpu_level.KERNELS)]
    *found, highest = worker.run(jobs, 4 * LIMIT)
    for name, outcome in zip(provable, found, strict=True):
        yield _capability(name, outcome, _COMPILED)
    yield _kernels(highest)


def _kernels(outcome: Outcome) -> Capability:
    """The highest level whose kernels are right: ``outcome`` is what a child made of the highest that there is, and
    each lower one is tried in a child that compiles for no more than the level.

    A processor may list instructions that its hypervisor refuses: the child ends with an illegal instruction, and the
    next lower level is tried.
    """
    job, refused = Job.of(_CHECK, name=cpu_level.KERNELS), ""
    for number, level in enumerate(target.levels()):
        if number:
            (outcome,) = worker.run([job], 4 * LIMIT, environment={CPU_LEVEL.variable: level.name})
        found = _capability(cpu_level.KERNELS, outcome, f"{_COMPILED} at level {level.name}{refused}")
        if found.level is Level.NATIVE:
            return replace(found, detail=level.name)
        if found.level is Level.UNKNOWN:
            return found
        refused = refused or f"; not {level.name}: {found.source}"
    return replace(found, source=refused.removeprefix("; "))


def _with_torch(
    device: Device, progress: Progress
) -> tuple[list[Capability], dict[str, float], float | None, list[str]]:
    """Capabilities, rates by dtype, bandwidth and notes."""
    pairs = [(op, dtype) for dtype in DTYPES for op in _OPS]
    if "torch" not in device.software:
        why = "torch is not installed: pip install 'rung[run]'"
        return [Capability(f"{op}.{d}", Level.UNKNOWN, Proof.NONE, why) for op, d in pairs], {}, None, [why]
    prepare = Job.of(
        f"{_PROBES}.start:start",
        kind=device.kind,
        arch=device.arch,
        marks=marks(device),
        threads=int(device.details.get("cores", 1)),
    )
    progress("values")
    jobs = [Job.of(f"{_PROBES}.values:{op}", dtype=dtype) for op, dtype in pairs]
    jobs.append(Job.of(f"{_PROBES}.rates:bandwidth", size=_bytes_to_read(device)))
    jobs += [Job.of(f"{_PROBES}.rates:matmul", dtype=d, memory=device.budget // 4) for d in DTYPES]

    def tell(done: int) -> None:
        progress("values" if done < len(pairs) else "rates")

    outcomes = worker.run(jobs, LIMIT, prepare=prepare, most_lost=_MOST_LOST, progress=tell)
    found = {
        f"{op}.{dtype}": _capability(f"{op}.{dtype}", outcome, _COMPARED)
        for (op, dtype), outcome in zip(pairs, outcomes, strict=False)
    }
    read, *multiplied = outcomes[len(pairs) :]
    right = [d for d in DTYPES if found[f"matmul.{d}"].level is Level.NATIVE]
    rates = {d: float(o.value) for d, o in zip(DTYPES, multiplied, strict=True) if o.ok and d in right}
    notes = [
        f"the rate of {d} is not known: {_reason(o)}"
        for d, o in zip(DTYPES, multiplied, strict=True)
        if d in right and not o.ok
    ]
    if not read.ok:
        notes.append(f"the bandwidth is not known: {_reason(read)}")
    return [_with_rate(c, rates) for c in found.values()], rates, float(read.value) if read.ok else None, notes


def _with_numpy(
    device: Device, progress: Progress
) -> tuple[list[Capability], dict[str, float], float | None, list[str]]:
    """Return the same of a processor without torch: of the dtypes in which language models compute there."""
    progress("values")
    arrays, dtypes = f"{_PROBES}.arrays", ("f32", "f64")
    pairs = [(op, dtype) for dtype in dtypes for op in ("matmul", "elementwise")]
    jobs = [Job.of(f"{arrays}:{op}", dtype=dtype) for op, dtype in pairs]
    jobs.append(Job.of(f"{arrays}:bandwidth", size=_bytes_to_read(device), threads=int(device.details.get("cores", 1))))
    jobs += [Job.of(f"{arrays}:rate", dtype=dtype) for dtype in dtypes]
    outcomes = worker.run(jobs, LIMIT, most_lost=_MOST_LOST)
    found = [
        _capability(f"{op}.{dtype}", outcome, _COMPARED) for (op, dtype), outcome in zip(pairs, outcomes, strict=False)
    ]
    read, *multiplied = outcomes[len(pairs) :]
    right = {c.name for c in found if c.level is Level.NATIVE}
    rates = {
        dtype: float(outcome.value)
        for dtype, outcome in zip(dtypes, multiplied, strict=True)
        if outcome.ok and f"matmul.{dtype}" in right
    }
    notes = [] if read.ok else [f"the bandwidth is not known: {_reason(read)}"]
    return found, rates, float(read.value) if read.ok else None, notes


def _with_webgpu(
    device: Device, progress: Progress
) -> tuple[list[Capability], dict[str, float], float | None, list[str]]:
    """Return the same of a GPU through WebGPU: of what its adapter declares, and of ``dot4I8Packed``."""
    progress("values")
    module = f"{_PROBES}.webgpu"
    declared = [(op, d) for d in ("f32", "f16") for op in _OPS if device.capability(f"{op}.{d}").level is Level.NATIVE]
    names = [*(f"{op}.{dtype}" for op, dtype in declared), "matmul.int8"]
    jobs = [Job.of(f"{module}:{op}", dtype=dtype) for op, dtype in (*declared, ("matmul", "int8"))]
    if device.capability("subgroup").level is Level.NATIVE:
        names, jobs = [*names, "subgroup"], [*jobs, Job.of(f"{module}:subgroup")]
    timed = [Job.of(f"{module}:bandwidth", size=_bytes_to_read(device)), Job.of(f"{module}:multiplied")]
    prepare = Job.of(f"{module}:start", device=device.to_json())
    outcomes = worker.run([*jobs, *timed], LIMIT, prepare=prepare, most_lost=_MOST_LOST)
    found = [_capability(name, outcome, _COMPARED) for name, outcome in zip(names, outcomes, strict=False)]
    read, multiplied = outcomes[len(jobs) :]
    emulated = device.capability("dot8").level is Level.EMULATED
    found = [_emulated(c, device) if emulated and c.name == "matmul.int8" else c for c in found]
    notes = [] if read.ok else [f"the bandwidth is not known: {_reason(read)}"]
    peaks = {"f32": float(multiplied.value)} if multiplied.ok else {}
    return found, peaks, float(read.value) if read.ok else None, notes


def _emulated(capability: Capability, device: Device) -> Capability:
    """Right values of ``dot4I8Packed`` where the card has no such instruction."""
    right = capability.level is Level.NATIVE
    why = f"right, but {device.capability('dot8').source}"
    return replace(capability, level=Level.EMULATED, source=why) if right else capability


def _capability(name: str, outcome: Outcome, source: str) -> Capability:
    """Return the proven capability of an attempt: native for right values, absent with the reason, unknown where it
    could not be tried."""
    if outcome.ok and not outcome.value:
        return Capability(name, Level.NATIVE, Proof.PROBE, source)
    reason = str(outcome.value) if outcome.ok else _reason(outcome)
    if outcome.says_nothing:
        return Capability(name, Level.UNKNOWN, Proof.NONE, reason)
    return Capability(name, Level.ABSENT, Proof.PROBE, reason)


def _reason(outcome: Outcome) -> str:
    """The first line of an error, short enough for a table. A LookupError is a sentence of our own."""
    if outcome.how == "timeout":
        return f"{outcome.error}; tried again after an hour, or now: rung devices --probe"
    text = outcome.error.split("\n", 1)[0]
    kind, _, rest = text.partition(": ")
    if outcome.how == "raised":
        text = rest if kind == "LookupError" else f"refused: {rest or kind}"
    return text if len(text) <= 200 else text[:199] + "…"


def _with_rate(capability: Capability, rates: Mapping[str, float]) -> Capability:
    """A dtype that is far slower than f32 is emulated: f16 on most processors, bf16 on many."""
    op, _, dtype = capability.name.partition(".")
    if capability.level is not Level.NATIVE or dtype in ("f32", "f64") or op == "elementwise":
        return capability
    if dtype not in rates or "f32" not in rates or rates[dtype] >= _EMULATED_BELOW * rates["f32"]:
        return capability
    times = rates["f32"] / rates[dtype]
    return Capability(
        capability.name, Level.EMULATED, Proof.PROBE, f"right, but {times:.1f} times slower than f32 here"
    )


def marks(device: Device) -> dict[str, str]:
    """Return the marks that tell this device from others of its kind, for torch."""
    marks = {name: str(device.details[name]) for name in ("uuid", "pci") if name in device.details}
    return marks | {"index": device.id.rpartition(":")[2] if ":" in device.id else "0"}


def _bytes_to_read(device: Device) -> int:
    """More than four times the last cache, so that memory is what is measured; at most a quarter of what is free."""
    last = max((int(size) for size in dict(device.details.get("caches", {})).values()), default=0)
    count = max(1 << 28, 4 * last + (1 << 26)) if device.kind == "cpu" else 1 << 29
    return max(1 << 20, min(count, device.budget // 4))
