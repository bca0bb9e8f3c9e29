"""The rules by subject; see ``evidence.py`` for what a rule is. To add one: a row there and its case in the tests."""

from __future__ import annotations

from rung.diagnosis.evidence import Rule
from rung.diagnosis.rules import builds, dtypes, kernels, makers, packages, released

RULES: tuple[Rule, ...] = (
    *builds.RULES,
    *dtypes.RULES,
    *kernels.RULES,
    *makers.RULES,
    *packages.RULES,
    *released.RULES,
)
