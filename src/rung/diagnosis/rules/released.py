"""Which released torch holds code for which GPU, as the catalogue has it."""

from __future__ import annotations

import functools

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.gpus import capability
from rung.diagnosis.rules.known import MISSING, WRONG_CODE

_WHEELS = "the catalogue of torch's releases: rung devices CARD --software TORCH"
#: The oldest release in the catalogue was the first of CUDA 11, and so the first for this compute capability and later.
_OLDEST_FOR = 80


@functools.cache
def _reach(release: str, name: str, value: int) -> int | None:
    """Where a compute capability lies for a released build of torch: 0 it runs there, 1 newer, -1 older than its code;
    None when the catalogue does not know."""
    from rung.hardware.catalog import architectures
    from rung.hardware.catalog.builds import builds

    rows = architectures().values()
    architecture = next((row for row in rows if row.vendor == "nvidia" and capability(row.cc) == value), None)
    build = next((b for b in builds() if (b.release, b.name, b.platform) == (release, name, "")), None)
    if architecture is None or build is None:
        return None
    return 0 if build.image(architecture) else 1 if value > max(filter(None, map(capability, build.code))) else -1


def _released(scene: Scene) -> int | None:
    facts = scene.facts
    asked = scene.has("torch-arch-warning", "legacy-cublas-program-failed", *MISSING)
    if not asked or facts.build is None or facts.capability is None or facts.compiled_for:
        return None
    if facts.compiled_for and not min(facts.compiled_for) <= facts.capability <= max(facts.compiled_for):
        return None  # the log lists what the build holds, and knows better
    return _reach(*facts.build, facts.capability)


@functools.cache
def _first_release(value: int) -> tuple[int, int] | None:
    """The first torch of which any CUDA build holds code for a compute capability; None where the catalogue begins
    too late to say."""
    from rung.hardware.catalog.builds import builds

    if value < _OLDEST_FOR:
        return None
    names = {(build.release, build.name) for build in builds() if build.name.startswith("cu") and not build.platform}
    holding = [release for release, name in names if _reach(release, name, value) == 0]
    return min((_numbers(release) for release in holding), default=None)


def _numbers(release: str) -> tuple[int, int]:
    major, _, minor = release.partition(".")
    return int(major), int(minor)


def _before_its_first(scene: Scene) -> bool:
    facts = scene.facts
    if facts.torch is None or facts.capability is None or facts.build or not scene.has(*MISSING, *WRONG_CODE):
        return False
    first = _first_release(facts.capability)
    return first is not None and facts.torch < first


RULES: tuple[Rule, ...] = (
    Rule(
        "released-before-gpu",
        lambda s: _released(s) == 1,
        {"build-lacks-new-arch": 3, "build-wrong-arch-flags": -2, "build-lacks-old-arch": -2},
        "{gpu} has compute capability {cc}, newer than all that this release of torch holds code for",
        _WHEELS,
    ),
    Rule(
        "released-without-gpu",
        lambda s: _released(s) == -1,
        {"build-lacks-old-arch": 4, "build-wrong-arch-flags": -2, "build-lacks-new-arch": -2},
        "{gpu} has compute capability {cc}, which this release of torch holds no code for any more",
        _WHEELS,
    ),
    Rule(
        "released-for-gpu",
        lambda s: _released(s) == 0,
        {"build-wrong-arch-flags": 2.4, "build-lacks-new-arch": -2, "build-lacks-old-arch": -1.5},
        "the torch installed holds code for {gpu}: what lacks it was compiled apart",
        _WHEELS,
    ),
    Rule(
        "torch-before-gpu",
        _before_its_first,
        {"build-lacks-new-arch": 4, "build-wrong-arch-flags": -1, "cuda-toolkit-mismatch": -1},
        "{gpu} has compute capability {cc}, which no build of this release of torch holds code for yet",
        _WHEELS,
    ),
)
