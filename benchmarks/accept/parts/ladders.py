"""Which rung each op climbs to, in every format and dtype."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.accept.check import Check, Target

from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.formats import FORMATS
from rung.ops import LADDERS, example_dtypes, example_formats, examples
from rung.run.binding import Binder
from rung.run.journal import Journal

ORDER, SECONDS = 2, 480


def run(target: Target) -> Iterator[Check]:
    """Climb with self-checks: nothing may be wrong, and nothing may fall to ``ref`` that another rung says it takes."""
    for op, ladder in LADDERS.items():
        formats = example_formats(op) or tuple(FORMATS)
        for dtype in example_dtypes(op):
            journal = Journal()
            binder = Binder(target.device, journal, dtype=dtype, threads=2)
            cases = [case for name in _some(formats, target.small) for _, case in examples(op, name, dtype)]
            chosen: dict[str, list[str]] = {}
            for case in cases:
                rung = binder.choose(case).rung
                chosen.setdefault(rung.name if rung is not None else "none", []).append(case.format)
            steps = [step.to_json() for step in journal.report(FrozenDict(), FrozenDict()).steps]
            better = [rung.name for rung in ladder.rungs if rung.name != "ref" and _takes(rung.name, op, target.device)]
            falls = [name for name in ("ref", "none") if chosen.get(name) and better]
            counts = {name: len(found) for name, found in chosen.items()}
            yield Check(f"{op} in {dtype}", not steps and not falls, {"chosen": counts, "wrong": steps, "falls": falls})


def _some(formats: tuple[str, ...], small: bool) -> tuple[str, ...]:
    return formats[:6] if small else formats


def _takes(name: str, op: str, device: Device) -> bool:
    """Return whether a rung takes all of its op's examples on a device."""
    rung = next(each for each in LADDERS[op].rungs if each.name == name)
    formats = example_formats(op) or tuple(FORMATS)
    cases = [case for each in formats for dtype in example_dtypes(op) for _, case in examples(op, each, dtype)]
    return all(rung.verdict(case, device) for case in cases)
