"""The values of every rung in every format that it takes, and of rungs that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.accept import faults
from benchmarks.accept.check import Check, Target

from rung.core.types import Case, Rung
from rung.formats import FORMATS
from rung.ops import LADDERS, example_dtypes, example_formats, examples
from rung.run import worker
from rung.run.torch_device import torch_name

ORDER, SECONDS = 3, 480
#: Seconds for one rung, with compiling.
_LIMIT = 120.0
_CHECK = "rung.ops.proof:perform"


def run(target: Target) -> Iterator[Check]:
    """Check each in a child, as rung does before it uses one, and then with planted faults."""
    for op, ladder in LADDERS.items():
        cases = {rung: list(_cases(op, rung, target)) for rung in ladder.rungs if rung.name != "ref"}
        kinds = faults.NAMES if op in faults.OPS else ()
        planted = [
            (replace(rung, impl=f"{faults.__name__}:{fault}.{rung.impl}"), some[0])
            for rung, some in cases.items()
            for fault in kinds
            if some
        ]
        wrong = _wrong([*((rung, case) for rung, some in cases.items() for case in some), *planted], target)
        for rung, some in cases.items():
            if some:
                found = {f"{case.format} {case.dtype} {case.shape}": wrong[rung, case] for case in some}
                found = {name: reason for name, reason in found.items() if reason}
                yield Check(f"{op} {rung.name}", not found, {"cases": len(some), "wrong": found})
        for rung, case in planted:
            fault = rung.impl.partition(":")[2].partition(".")[0]
            yield Check(f"{op} {rung.name}, {fault} on purpose", bool(wrong[rung, case]), {"found": wrong[rung, case]})


def _cases(op: str, rung: Rung, target: Target) -> Iterator[Case]:
    formats = example_formats(op) or tuple(FORMATS)
    for name in formats[:6] if target.small else formats:
        for dtype in example_dtypes(op):
            for _, case in examples(op, name, dtype):
                if rung.verdict(case, target.device):
                    yield case


def _wrong(checked: list[tuple[Rung, Case]], target: Target) -> dict[tuple[Rung, Case], str]:
    """Return a sentence for each that is wrong, empty where it is right."""
    location = torch_name(target.device.id)
    jobs = [
        worker.Job.of(_CHECK, rung=rung.to_json(), case=case.to_json(), location=location) for rung, case in checked
    ]
    outcomes = worker.run(jobs, _LIMIT, most_lost=len(jobs))
    reasons = [str(each.value["reason"] if each.ok else each.error)[:300] for each in outcomes]
    return dict(zip(checked, reasons, strict=True))
