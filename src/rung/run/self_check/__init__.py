"""A rung must compute what ``ref`` computes before it is used: a small case, in a child process, once.

The outcome is kept on disk by device, software, the kernels' source and the rung's version. On a simulated card the
case is computed in this process, which it cannot crash, and the outcome is not kept: defects come and go.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping

from rung.core.plugins import Plugin
from rung.core.text import count
from rung.core.types import YES, Case, Device, Rung, StepClass, Verdict, no
from rung.core.version import PACKAGE
from rung.hardware import json_cache
from rung.ops import shape_class
from rung.run import worker
from rung.run.torch_device import torch_name

#: Seconds for one self-check, compiling its kernels included; about 5 on an idle machine.
LIMIT = 120.0


@functools.cache
def source_hash() -> str:
    """A digest of the code that decides what a rung computes, and of the check itself: a wrong one proves nothing."""
    digest = hashlib.sha256()
    for folder in ("formats", "kernels", "ops", "run/self_check"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _key(device: Device, rung_: Rung, case: Case) -> Mapping[str, str]:
    software = {
        name: version
        for name, version in device.software.items()
        if name in ("torch", "numba", "triton", "gsplat", "driver")
    }
    return {
        "kind": "selfcheck",
        "device": f"{device.id} {device.name}",
        "target": ",".join(sorted(n for n, c in device.capabilities.items() if n.startswith("isa.") and c.level)),
        **software,
        "source": source_hash(),
        "rung": " ".join(filter(None, (rung_.op, rung_.name, str(rung_.version), rung_.impl, rung_.plugin))),
        "case": f"{case.format} {case.dtype} {shape_class(case)}",
    }


def prove(
    device: Device, wanted: Iterable[tuple[Rung, Case]], say: Callable[[str], None] = lambda text: None
) -> dict[tuple[Rung, str], Verdict]:
    """Verdicts for rungs, by (rung, class of the case); what has no verdict on disk is checked in one child.

    ``ref`` is the specification and is not checked. A check that ran out of time, memory or disk counts for this run
    only: the machine may have been busy.
    """
    verdicts: dict[tuple[Rung, str], Verdict] = {}
    missing: list[tuple[Rung, Case]] = []
    for rung_, case in wanted:
        name = (rung_, class_of(case))
        if name in verdicts or any(name == (r, class_of(c)) for r, c in missing):
            continue
        stored = json_cache.read(_key(device, rung_, case)) if device.real else None
        if rung_.name == "ref":
            verdicts[name] = YES
        elif stored is not None:
            verdicts[name] = Verdict.from_json(stored)
        else:
            missing.append((rung_, case))
    place = torch_name(device.id)
    jobs = [
        worker.Job.of("rung.ops.proof:perform", rung=r.to_json(), case=c.to_json(), place=place) for r, c in missing
    ]
    if not device.real:
        there = [_verdict(worker.here(job)) for job in jobs]
        return verdicts | {(r, class_of(c)): verdict for (r, c), verdict in zip(missing, there, strict=True)}
    if jobs:
        say(f"Compiling and checking {count(len(jobs), 'kernel')} for this machine, {json_cache.how_often()}.")
    for (rung_, case), outcome in zip(missing, worker.run(jobs, LIMIT) if jobs else [], strict=True):
        verdict = _verdict(outcome)
        if outcome.how != "timeout" and not outcome.says_nothing:
            json_cache.write(_key(device, rung_, case), verdict.to_json())
        verdicts[(rung_, class_of(case))] = verdict
    _name_plugins(verdicts)
    return verdicts


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
