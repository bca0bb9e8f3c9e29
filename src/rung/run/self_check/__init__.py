"""A rung must compute what ``ref`` computes before it is used: a small case, in a child process, once.

The outcome is kept on disk by device, software, the kernels' source and the rung's version. On a simulated card the
case is computed in this process, which it cannot crash, and the outcome is not kept: defects come and go.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rung.core.plugins import Plugin
from rung.core.settings import CPU_LEVEL
from rung.core.text import count
from rung.core.types import YES, Case, Device, Rung, StepClass, StepDown, Verdict, no
from rung.core.version import PACKAGE
from rung.hardware import json_cache
from rung.kernels.cpu import target
from rung.ops import shape_class
from rung.run import cpu_level, worker
from rung.run.torch_device import location

#: Seconds for one self-check, compiling its kernels included; about 5 on an idle machine.
LIMIT = 120.0
#: Bytes of memory from which on two children check at once; one takes up to 0.4 GB while it compiles.
_ROOM = 2 << 30


@functools.cache
def source_hash() -> str:
    """A digest of the code that decides what a rung computes, and of the check itself: a wrong one proves nothing."""
    digest = hashlib.sha256()
    for folder in ("formats", "kernels", "ops", "run/self_check"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _key(device: Device, rung_: Rung, case: Case, level: str = "") -> Mapping[str, str]:
    software = {
        name: version
        for name, version in device.software.items()
        if name in ("torch", "numba", "triton", "gsplat", "nvrtc", "hiprtc", "driver")
    }
    return {
        "kind": "selfcheck",
        "device": f"{device.id} {device.name}",
        "target": ",".join(sorted(n for n, c in device.capabilities.items() if n.startswith("isa.") and c.level)),
        "level": (level or cpu_level.name_of(rung_)) if device.real else "",
        **software,
        "source": source_hash(),
        "rung": " ".join(filter(None, (rung_.op, rung_.name, str(rung_.version), rung_.impl, rung_.plugin))),
        "case": f"{case.format} {case.dtype} {shape_class(case)}",
    }


def prove(
    device: Device,
    pairs: Iterable[tuple[Rung, Case]],
    say: Callable[[str], None] = lambda text: None,
    step: Callable[[StepDown], None] = lambda step: None,
) -> dict[cpu_level.Name, Verdict]:
    """Verdicts for rungs, by (rung, class of the case); what has no verdict on disk is checked in one child.

    ``ref`` is the specification and is not checked. A check that ran out of time, memory or disk counts for this run
    only: the machine may have been busy. Where kernels are wrong at the level of CPU instructions that this process
    compiles for, and one of them is right at a lower one, the process goes there, and all are checked at it; ``step``
    is called with each that was left.
    """
    representatives: dict[cpu_level.Name, Case] = {}
    for rung_, case in pairs:
        representatives.setdefault((rung_, class_of(case)), case)
    cases = [(rung_, case) for (rung_, _), case in representatives.items()]
    known: dict[str, _Checks] = {}

    def checks(of: Collection[tuple[Rung, Case]], level: str) -> _Checks:
        before = known.setdefault(level, _Checks())
        before.add(_check(device, [(r, c) for r, c in of if (r, class_of(c)) not in before.verdicts], say, level))
        return before

    def at_level(of: Collection[tuple[Rung, Case]], level: str) -> list[Verdict]:
        return [checks(of, level).verdicts[r, class_of(c)] for r, c in of]

    while True:
        found = checks(cases, "")
        wrong = [(r, c, found.verdicts[r, class_of(c)]) for r, c in cases if found.is_of_level(device, r, class_of(c))]
        if not wrong or not cpu_level.step_down(device, wrong, at_level, step):
            _name_plugins(found.verdicts)
            return found.verdicts
        known = {level: kept for level, kept in known.items() if level}  # "" is the present level


@dataclass
class _Checks:
    """Verdicts at a level of CPU instructions, and those of them that a busy machine may have caused."""

    verdicts: dict[cpu_level.Name, Verdict] = field(default_factory=dict)
    doubtful: set[cpu_level.Name] = field(default_factory=set)

    def add(self, others: _Checks) -> None:
        """Add checks of other rungs."""
        self.verdicts |= others.verdicts
        self.doubtful |= others.doubtful

    def is_of_level(self, device: Device, rung_: Rung, class_: str) -> bool:
        """Return whether kernels are wrong that may be right at a lower level."""
        name = (rung_, class_)
        return (
            device.real and cpu_level.KERNELS in rung_.needs and not self.verdicts[name] and name not in self.doubtful
        )


def _check(device: Device, cases: Iterable[tuple[Rung, Case]], say: Callable[[str], None], level: str) -> _Checks:
    """Verdicts on disk, or of a child that compiles for ``level``, for what this process does where it is empty."""
    found = _Checks()
    missing: list[tuple[Rung, Case]] = []
    for rung_, case in cases:
        stored = json_cache.read(_key(device, rung_, case, level)) if device.real else None
        if rung_.name == "ref":
            found.verdicts[rung_, class_of(case)] = YES
        elif stored is not None:
            found.verdicts[rung_, class_of(case)] = Verdict.from_json(stored)
        else:
            missing.append((rung_, case))
    torch_device = location(device.id)
    jobs = [
        worker.Job.of("rung.ops.proof:perform", rung=r.to_json(), case=c.to_json(), location=torch_device)
        for r, c in missing
    ]
    if not device.real:
        found.verdicts |= {(r, class_of(c)): _verdict(worker.here(j)) for (r, c), j in zip(missing, jobs, strict=True)}
        return found
    if not jobs:
        return found
    at = f" at level {level}" if level else ""
    say(f"Compiling and checking {count(len(jobs), 'kernel')}{at} for this machine, {json_cache.how_often()}.")
    environment = {**target.compiled_for(), CPU_LEVEL.variable: level} if level else {}
    for (rung_, case), outcome in zip(missing, _outcomes(device, missing, jobs, environment), strict=True):
        name, verdict = (rung_, class_of(case)), _verdict(outcome)
        if outcome.how == "timeout" or outcome.says_nothing:
            found.doubtful.add(name)
        else:
            json_cache.write(_key(device, rung_, case, level), verdict.to_json())
        found.verdicts[name] = verdict
    return found


def _outcomes(
    device: Device, checked: Sequence[tuple[Rung, Case]], jobs: Sequence[worker.Job], environment: Mapping[str, str]
) -> list[worker.Outcome]:
    """Do the jobs: on a processor of several cores products and rows in one child, all else in another.

    Compiling is nearly all that a check does, and these two have no kernels in common but those that whole tokens
    call, which come last. Whole tokens take longest, so the first child then compiles what their check comes to last.
    """
    others = [number for number, (_, case) in enumerate(checked) if case.op not in ("linear", "embedding")]
    products = [number for number in range(len(jobs)) if number not in others]
    if not (products and others) or int(device.details.get("cores", 1)) < 2 or device.budget < _ROOM:
        return worker.run(jobs, LIMIT, environment=environment)
    ahead = [
        worker.Job.of("rung.ops.proof:compile_ahead", rung=rung_.to_json(), case=case.to_json())
        for rung_, case in checked
        if case.op == "decode_step"
    ]
    with worker.SecondChild([jobs[number] for number in others], LIMIT, environment) as second:
        first = [*(jobs[number] for number in products), *ahead]
        outcomes = worker.run(first, LIMIT, environment=environment)[: len(products)]
        outcomes += second.outcomes()
    return [
        outcome for _, outcome in sorted(zip((*products, *others), outcomes, strict=True), key=operator.itemgetter(0))
    ]


def _name_plugins(verdicts: Mapping[tuple[Rung, str], Verdict]) -> None:
    """Name the plug-ins whose rungs do not compute what they say."""
    for (rung_, _), verdict in verdicts.items():
        if rung_.plugin and not verdict:
            Plugin("rung.rungs", f"{rung_.op} {rung_.name}", rung_.plugin).leave_out(verdict.reason)


def class_of(case: Case) -> str:
    """The name of the class of cases that one proof covers."""
    return f"{case.format} {case.dtype} {shape_class(case)}"


def _verdict(outcome: worker.Outcome) -> Verdict:
    if outcome.ok:
        return YES if outcome.value["ok"] else no(f"self-check: {outcome.value['reason']}", StepClass.BROKEN)
    return no(f"self-check: {outcome.how}: {outcome.error}", StepClass.BROKEN)
