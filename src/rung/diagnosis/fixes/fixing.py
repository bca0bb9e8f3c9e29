"""Choose what to do about a cause: fixes by how likely they help, worded for the program and the device at hand."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rung.core.value import Value
from rung.diagnosis.evidence import Scene
from rung.diagnosis.fixes.fix_order import FIX_ORDER, Whole
from rung.diagnosis.fixes.wording import Fix, Speaker
from rung.diagnosis.model import Table, read_table, scores, weighed
from rung.diagnosis.tables import tables

#: Fixes beside those of the cause's own order are told from this chance on.
_LIKELY_HELP = 0.1


@functools.cache
def fix_table() -> Table:
    """Return the learned weights of words for each fix."""
    return read_table("fixes.table")


class Helping:
    """Hold what the words of one log say for each fix."""

    def __init__(self, words: Iterable[str]) -> None:
        self._labels, self._rows = table = fix_table()
        self._by_words = scores(words, table) or [0.0] * len(self._labels)

    def chances(self, cause: str, usual: Collection[str]) -> Mapping[str, float]:
        """Return the probability that a fix helps where that is the cause, for ``usual`` fixes and likely ones."""
        by_cause = dict(weighed(self._rows.get(f"@{cause}", "")))
        found = {}
        for number, label in enumerate(self._labels):
            found[label] = 1 / (1 + math.exp(-by_cause.get(number, 0.0) - self._by_words[number]))
        return {label: chance for label, chance in found.items() if label in usual or chance >= _LIKELY_HELP}


@dataclass(frozen=True)
class Cause(Value):
    """One row of ``causes.toml``; ``automatic``: ``rung run`` repairs it by itself."""

    label: str
    sentence: str
    means: str
    fixes: tuple[str, ...]
    tell: str
    automatic: bool = False


@functools.cache
def causes() -> Mapping[str, Cause]:
    """All causes by label."""
    return {row["label"]: Cause(**{**row, "fixes": tuple(row["fixes"])}) for row in tables()["cause"]}


#: The least probability of a cause whose fixes are told, and how many are.
_LIKELY, _MOST = 0.1, 5


def fixes_for(shares: Mapping[str, float], scene: Scene, words: Iterable[str], speaker: Speaker) -> tuple[Fix, ...]:
    """The fixes of the likely causes, the likeliest first; ``shares`` are probabilities by cause, falling.

    Of one cause those come first that help logs with such words, on this device and with these signatures. Where
    several causes are likely, the next fix is the one that most likely helps where those before it do not.
    """
    unhelped = {cause: share for cause, share in shares.items() if share >= min(_LIKELY, max(shares.values()))}
    helping = Helping(words)
    chances = {cause: _chances(cause, scene, helping) for cause in unhelped}
    left = dict.fromkeys(label for chance in chances.values() for label in chance)
    chosen: list[str] = []
    while left and len(chosen) < _MOST:
        worth = {label: sum(unhelped[cause] * chances[cause].get(label, 0.0) for cause in unhelped) for label in left}
        chosen.append(max(worth, key=worth.__getitem__))
        del left[chosen[-1]]
        unhelped = {cause: share * (1 - chances[cause].get(chosen[-1], 0.0)) for cause, share in unhelped.items()}
    return tuple(speaker.fix(label) for label in _smaller_first(chosen, scene))


def _smaller_first(labels: list[str], scene: Scene) -> list[str]:
    """Where the kernel killed the program, the fixes with what costs nothing before more memory or swap."""
    less, more = "reduce-memory", "add-host-memory"
    if not (scene.has("killed") and {less, more}.issubset(labels) and labels.index(more) < labels.index(less)):
        return labels
    exchanged = {less: more, more: less}
    return [exchanged.get(label, label) for label in labels]


def _chances(cause: str, scene: Scene, helping: Helping) -> Mapping[str, float]:
    """Return how likely each fix helps where that is the cause; words do not outvote what a fact asks for."""
    own, first = _own_code(cause, scene), _required_by_fact(cause, scene)
    found = helping.chances(cause, {*first, *causes()[cause].fixes})
    undone = _OF_OWN_CODE.difference(own) if own and first == own else ()
    certain = dict.fromkeys(first if isinstance(first, Whole) else first[:1], max(found.values()))
    found = certain | {label: chance for label, chance in found.items() if label not in {*certain, *undone}}
    together = {label for label, pattern in _TOGETHER if re.search(pattern, f"{scene.text}\n{scene.excerpt}")}
    tried = together | {label for label, pattern in _TRIED if re.search(pattern, f"{scene.text}\n{scene.excerpt}")}
    return {label: chance * (_TRIED_HELPS if label in tried else 1) for label, chance in found.items()}


#: What a program says that it was started with has been tried, and helps so much less often.
_STARTED = r"(?i)(?:\barguments: |COMMANDLINE_ARGS ?= ?|\bpython3? \S+\.py ).{0,300}"
_TRIED = (
    ("use-fp32", _STARTED + r"--(?:no-half(?!-vae)|force-fp32|precision full)"),
    ("upcast-part", _STARTED + r"--(?:no-half-vae|fp32-vae)"),
    ("reduce-memory", _STARTED + r"--(?:medvram|lowvram)"),
    ("offload", _STARTED + r"--(?:lowvram|novram|cpu-offload)"),
    ("set-environment-override", r"HSA_OVERRIDE_GFX_VERSION=\d[\d.]* +(?:python|ollama|\./)|\bexport HSA_OVERRIDE_GFX"),
    ("use-fallback-kernel", r"(?:--enforce-eager\b|TORCHDYNAMO_DISABLE=1 +python)"),
)
_TRIED_HELPS = 0.15
#: What does not touch what the message names.
_TOGETHER = (
    (
        "change-quantization",
        r"(?i)\A(?![\s\S]*(?:quant|gptq|awq|marlin|fp8|[48]-?bit))[\s\S]*flash[-_ ]?att\w*.{0,60}(?:only|requires?)",
    ),
)


def _required_by_fact(cause: str, scene: Scene) -> Sequence[str]:
    """Return the fixes that a fact asks for, the first one before all others; empty where none does."""
    fact = next((order for named, when, order in FIX_ORDER if named == cause and when(scene)), ())
    return fact if _BEFORE_OWN_CODE.intersection(fact[:1]) else _own_code(cause, scene) or fact


#: What own code of an AMD GPU decides between.
_OF_OWN_CODE = {"downgrade-library", "upgrade-library", "set-environment-override"}
#: What helps whether a build holds code for the GPU or not.
_BEFORE_OWN_CODE = {"use-fallback-kernel", "install-matching-build"}


def _own_code(cause: str, scene: Scene) -> Sequence[str]:
    """Where released builds hold code for an AMD GPU itself such a build comes first: an older one before RDNA, which
    new ones leave out and which has no related GPU to be named as; a newer one from RDNA 3 on."""
    from rung.hardware.catalog import architectures
    from rung.hardware.catalog.releases import builds

    arch = scene.facts.gpu.arch if scene.facts.gpu else ""
    row = architectures().get(arch) if cause == "rocm-arch-unsupported" else None
    if row is None or row.override or not any(build.image(row) for build in builds()):
        return ()
    if arch.startswith("gfx1"):
        return "upgrade-library", "set-environment-override"
    return ("downgrade-library", *(["set-environment-override"] if arch.startswith("gfx8") else []))
