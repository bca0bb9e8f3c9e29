"""The rules by subject; see ``evidence.py`` for what a rule is. To add one: a row there and its case in the tests."""

from __future__ import annotations

from rung.diagnosis.evidence import Rule
from rung.diagnosis.rules import (
    building,
    builds,
    devices,
    dtypes,
    engines,
    graphics,
    kernels,
    libraries,
    loading,
    local,
    makers,
    packages,
    pictures,
    released,
    reports,
    subjects,
    training,
)

RULES: tuple[Rule, ...] = (
    *building.RULES,
    *builds.RULES,
    *devices.RULES,
    *dtypes.RULES,
    *engines.RULES,
    *graphics.RULES,
    *kernels.RULES,
    *libraries.RULES,
    *loading.RULES,
    *local.RULES,
    *makers.RULES,
    *packages.RULES,
    *pictures.RULES,
    *released.RULES,
    *reports.RULES,
    *subjects.RULES,
    *training.RULES,
)
