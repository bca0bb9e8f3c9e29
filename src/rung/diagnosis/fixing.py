"""What to do about a cause: fixes in order, worded for the program and the device at hand."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rung.core.value import Value
from rung.diagnosis.evidence import Scene
from rung.diagnosis.fix_order import FIRST
from rung.diagnosis.fix_order_facts import BY_FACT
from rung.diagnosis.gpus import capability_text
from rung.diagnosis.helping import Helping
from rung.diagnosis.tables import tables


@dataclass(frozen=True)
class Fix(Value):
    """A way out: its label, what to do in words, and a command to paste where there is one."""

    label: str
    text: str
    command: str | None = None


@dataclass(frozen=True)
class Cause(Value):
    """One row of ``causes.toml``; ``automatic``: ``rung run`` repairs it by itself."""

    label: str
    sentence: str
    means: str
    fixes: tuple[str, ...]
    tell: str
    automatic: bool = False


@dataclass(frozen=True)
class Wording:
    """One row of ``fixes.toml``."""

    label: str
    text: str
    when: str = ""
    command: str | None = None


@functools.cache
def causes() -> Mapping[str, Cause]:
    """All causes by label."""
    return {row["label"]: Cause(**{**row, "fixes": tuple(row["fixes"])}) for row in tables()["cause"]}


@functools.cache
def wordings() -> tuple[Wording, ...]:
    """All wordings of fixes, in the order of the file."""
    return tuple(Wording(**row) for row in tables()["fix"])


#: The least probability of a cause whose fixes are told, and how many are.
_LIKELY, _MOST = 0.1, 5


def fixes_for(shares: Mapping[str, float], scene: Scene, words: Iterable[str]) -> tuple[Fix, ...]:
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
    return tuple(_worded(label, scene) for label in chosen)


def _chances(cause: str, scene: Scene, helping: Helping) -> Mapping[str, float]:
    """How likely each fix helps where that is the cause; words do not outvote what a fact asks for."""
    order, by_fact = order_of(cause, scene), _by_fact(cause, scene)
    found = helping.chances(cause, order)
    asked = dict.fromkeys(by_fact[:1], max(found.values()))
    undone = _OF_OWN_CODE.difference(order) if by_fact and by_fact == _own_code(cause, scene) else ()
    return asked | {label: chance for label, chance in found.items() if label not in {*asked, *undone}}


#: Of torch's own builds and of what is built for each of them.
_INDEX = "https://download.pytorch.org/whl"


def order_of(cause: str, scene: Scene) -> list[str]:
    """The fixes of a cause in the order set by hand, for this device and these signatures."""
    by_signature = (order for named, signature, order in FIRST if named == cause and scene.has(signature))
    first = _by_fact(cause, scene)
    order = list(dict.fromkeys([*(first or next(by_signature, ())), *causes()[cause].fixes]))
    if first and first == _own_code(cause, scene):
        return [*first, *(label for label in order if label not in {*first, *_OF_OWN_CODE})]
    return order


def _by_fact(cause: str, scene: Scene) -> Sequence[str]:
    fact = next((order for named, when, order in BY_FACT if named == cause and when(scene)), ())
    return fact if _BEFORE_OWN_CODE.intersection(fact[:1]) else _own_code(cause, scene) or fact


#: What own code of an AMD GPU decides between.
_OF_OWN_CODE = {"downgrade-library", "upgrade-library", "set-environment-override"}
#: What helps whether a build holds code for the GPU or not.
_BEFORE_OWN_CODE = {"use-fallback-kernel", "install-matching-build"}


def _own_code(cause: str, scene: Scene) -> Sequence[str]:
    """Where released builds hold code for an AMD GPU itself such a build comes first: an older one before RDNA, which
    new ones leave out and which has no related GPU to be named as; a newer one from RDNA 3 on."""
    from rung.hardware.catalog import architectures
    from rung.hardware.catalog.builds import builds

    arch = scene.facts.gpu.arch if scene.facts.gpu else ""
    row = architectures().get(arch) if cause == "rocm-arch-unsupported" else None
    if row is None or row.override or not any(build.image(row) for build in builds()):
        return ()
    if arch.startswith("gfx1"):
        return "upgrade-library", "set-environment-override"
    return ("downgrade-library", *(["set-environment-override"] if arch.startswith("gfx8") else []))


def _worded(label: str, scene: Scene) -> Fix:
    facts = scene.facts
    around = "\n".join([scene.text, facts.stated, facts.gpu.arch if facts.gpu else ""])
    rows = [row for row in wordings() if row.label == label]
    row = next((row for row in rows if not row.when or re.search(row.when, around)), rows[-1])
    return Fix(label, row.text, _filled(row.command, scene) if row.command else None)


#: What asks the machine for its GPU where nobody named it.
_ASK_CUDA = "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)"
_ASK_ROCM = "$(rocminfo | grep -o -m 1 'gfx[0-9a-f]*')"


def _filled(command: str, scene: Scene) -> str | None:
    """A command with the facts in it; None where one that it needs is not known."""
    facts = scene.facts
    arch = facts.gpu.arch if facts.gpu else ""
    cuda = facts.cuda or (12, 6)
    filled: dict[str, Callable[[], str | None]] = {
        "torch_install": lambda: _torch(scene),
        "torch_for_driver": lambda: _torch(scene) if facts.driver else "rung setup",
        "torch_index": lambda: f"{_INDEX}/{facts.build[1] if facts.build else 'cu126'}",
        "cc": lambda: capability_text(facts.capability) if facts.capability else _ASK_CUDA,
        "gfx": lambda: arch if arch.startswith("gfx") else _ASK_ROCM,
        "cuda_digits": lambda: f"{cuda[0]}{cuda[1]}",
        "related_gfx": lambda: _related_gfx(arch),
    }
    for name, value in filled.items():
        if "{" + name + "}" in command:
            known = value()
            if known is None:
                return None
            command = command.replace("{" + name + "}", known)
    return command


def _torch(scene: Scene) -> str:
    """What ``rung setup`` gives for the card of this scene; for one that nobody named, the question to it."""
    from rung.diagnosis.companions import Host  # reading the catalogue costs more than the rest of an explanation
    from rung.diagnosis.setup import choose
    from rung.hardware.catalog import architectures

    facts = scene.facts
    named = (facts.gpu.arch if facts.gpu else "", f"sm_{facts.capability}" if facts.capability else "")
    key = next((name for name in named if name in architectures()), None)
    if key is None:
        return "rung setup"
    driver = facts.driver if architectures()[key].kind == "cuda" else ""
    system = "macos" if facts.apple else "windows" if facts.windows else "linux"
    machine = "aarch64" if facts.apple or architectures()[key].platform else "x86_64"
    found = choose([Host(facts.gpu.name if facts.gpu else key, key, driver, system, machine)])
    return (found.torch.command if found else None) or "rung setup"


def _related_gfx(arch: str) -> str | None:
    """The version to name for an AMD GPU outside of ROCm's list, None where the catalogue has none."""
    from rung.hardware.catalog import architectures
    from rung.hardware.catalog.capabilities import gfx_version

    row = architectures().get(arch)
    return gfx_version(row.override) if row is not None and row.override else None
