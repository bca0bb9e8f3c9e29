"""Compile for the level of CPU instructions that is proved: what a probe found, and less where a kernel is wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rung.core.types import Case, Device, Level, Proof, Rung, StepClass, StepDown, Verdict
from rung.kernels.cpu import target

KERNELS = "isa.kernels"
#: A rung and the class of its case, by which a verdict is known.
Name = tuple[Rung, str]


def name_of(rung: Rung) -> str:
    """Return the level that a rung's kernels are compiled for, an empty string where it has none of its own."""
    return target.level().name if KERNELS in rung.needs else ""


def adopt(device: Device) -> None:
    """Compile for the level that a probe proved on a processor, where that is below what its features promise.

    Before Numba is imported this restricts all that is compiled, afterwards what kernels ask for by name.
    """
    found = device.capability(KERNELS)
    if not device.real or (found.proof, found.level) != (Proof.PROBE, Level.NATIVE) or not target.features():
        return
    if found.detail in {level.name for level in target.lower_levels()}:
        target.use_level(found.detail)


def step_down(
    device: Device,
    wrong: Collection[tuple[Rung, Case, Verdict]],
    prove: Callable[[Collection[tuple[Rung, Case]], str], Collection[Verdict]],
    step: Callable[[StepDown], None],
) -> bool:
    """Compile for the next lower level at which one of the kernels is right that are wrong here; return whether there
    is one. ``prove`` gives verdicts at a level; ``step`` is called with what was left.
    """
    cases = [(rung, case) for rung, case, _ in wrong]
    before = target.level().name
    for level in target.lower_levels():
        if not any(prove(cases, level.name)):
            continue
        target.step_down_to(level.name)
        for rung, _, verdict in wrong:
            to = f"{rung.name} at level {level.name}"
            reason = f"at level {before}: {verdict.reason}"
            step(StepDown(rung.op, rung.name, device.id, StepClass.BROKEN, reason, to))
        return True
    return False
