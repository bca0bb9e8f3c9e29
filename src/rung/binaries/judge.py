"""Hold what of a library runs on a device: on which image, compiled by the driver or not, and what it lacks there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rung.binaries import rules
from rung.binaries.images import (
    AMD,
    CODE_OBJECT,
    CUBIN,
    CUDA,
    NOT_READ,
    PTX,
    SPIRV,
    CpuCode,
    Image,
    Library,
    Object,
)
from rung.core.text import count
from rung.core.types import Device, Level
from rung.core.value import Value
from rung.hardware.catalog.rows import architectures, version

_CAPABILITY = re.compile(r"sm_(\d+)(\d)")
#: Places that a program picks from by itself, knowing its device: what does not fit there is not held against it.
_PICKED = ("data", "alone", "name")
#: The instruction sets that a level of x86-64 stands for, as devices name them.
_LEVELS = {"x86-64-v3": "isa.avx2", "x86-64-v4": "isa.avx512f"}


@dataclass(frozen=True)
class Judgment(Value):
    """Hold whether a library's code runs on a device.

    ``runs``: ``yes``; ``compiled``: only after the driver has compiled its PTX; ``partly``: some objects hold nothing
    for the device; ``no``; ``other``: its device code is for other makers' devices; ``none``: it holds no device code;
    ``unknown``. ``images`` are the targets that it runs on, the most used first; ``fit`` of ``objects`` have one;
    ``missing`` is what the device can do and the code that runs there cannot.
    """

    runs: str
    reason: str = ""
    images: tuple[str, ...] = ()
    fit: int = 0
    objects: int = 0
    missing: tuple[str, ...] = ()


def judge(library: Library, device: Device) -> Judgment:
    """Judge whether a library runs on a device."""
    if library.format == NOT_READ:
        return Judgment("unknown", "it was not read")
    if device.kind == "cpu":
        return _cpu(library.cpu, device)
    if not library.objects:
        return Judgment("none", "no device code")
    if device.kind == "cuda":
        return _cuda(library, device)
    if device.kind == "rocm":
        return _amd(library, device)
    if device.kind == "webgpu":
        return Judgment("other", "device code does not run through WebGPU, whose drivers compile shaders")
    return Judgment("unknown", f"device code for {device.kind} is not read")


def capability(device: Device) -> rules.Capability | None:
    """The compute capability of an NVIDIA device, None of any other."""
    found = _CAPABILITY.match(device.arch)
    return (int(found[1]), int(found[2])) if found else None


def targets(images: Iterable[str]) -> list[str]:
    """Targets in the order of their numbers, machine code before PTX: ``sm_75 sm_100 compute_100``."""
    return sorted(set(images), key=_order)


def _order(target: str) -> tuple[int, int, int, str]:
    found = rules.parsed(target)
    if found:
        return ("sm", "compute", "lto").index(target.split("_")[0]), *found[0], target
    number = re.match(r"gfx([0-9a-f]+)", target)
    return 3, int(number[1], 16) if number else 0, 0, target


def _cuda(library: Library, device: Device) -> Judgment:
    at = capability(device)
    if at is None:
        return Judgment("unknown", f"the compute capability of {device.name} is not known")
    newest = str(device.details.get("cuda", ""))
    old: set[str] = set()

    def choose(images: Sequence[Image]) -> Image | None:
        fits = [image for image in images if image.kind != PTX or not _too_new(image, newest)]
        old.update(image.isa for image in images if image not in fits)
        return rules.choose_cuda(fits, at)

    found = _objects(library, (CUBIN, PTX), choose)
    where = f"{at[0]}.{at[1]}"
    if not found.objects:
        return _nothing(library, CUDA)
    reason = _reason(found, where)
    if old and found.fit < found.objects:
        isa = min(old, key=version)
        reason += f"; PTX {isa} needs a driver with CUDA {rules.cuda_for_ptx(isa)}, this one has {newest}"
    missing = Counter(what for image, _ in found.chosen for what in rules.missing(image, at))
    return found.judgment(reason, tuple(missing))


def _too_new(image: Image, newest: str) -> bool:
    """Return whether the driver's compiler does not know that version of PTX; a driver that nobody has named knows
    all."""
    needed = rules.cuda_for_ptx(image.isa) if image.isa else ""
    return bool(newest and needed) and version(needed) > version(newest)


def _amd(library: Library, device: Device) -> Judgment:
    found = _objects(library, AMD, lambda images: rules.choose_amd(images, device.arch))
    if not found.objects:
        return _nothing(library, AMD)
    reason = _reason(found, device.arch)
    row = architectures().get(device.arch)
    if not found.fit and row and row.override and library.count(*AMD)[row.override]:
        reason += f"; told that it is a {row.override} (HSA_OVERRIDE_GFX_VERSION) ROCm runs that code there"
    return found.judgment(reason, ())


@dataclass(frozen=True)
class _Objects:
    """The objects of a library that concern a device: those that fit it with their image, and those that do not."""

    chosen: tuple[tuple[Image, int], ...]
    plain: tuple[Object, ...]
    special: tuple[Object, ...]

    @property
    def fit(self) -> int:
        return sum(number for _, number in self.chosen)

    @property
    def objects(self) -> int:
        return self.fit + sum(item.count for item in (*self.plain, *self.special))

    def judgment(self, reason: str, missing: tuple[str, ...]) -> Judgment:
        used: Counter[str] = Counter()
        for image, number in self.chosen:
            used[image.target] += number
        images = tuple(target for target, _ in used.most_common())
        return Judgment(self.runs, reason, images, self.fit, self.objects, missing)

    @property
    def runs(self) -> str:
        if not self.fit:
            return "no"
        if self.plain:
            return "partly"
        return "yes" if any(image.kind in (CUBIN, CODE_OBJECT) for image, _ in self.chosen) else "compiled"


def _objects(library: Library, kinds: Sequence[str], choose: Callable[[Sequence[Image]], Image | None]) -> _Objects:
    chosen, plain, special = [], [], []
    for item in library.filled:
        images = [image for image in item.images if image.kind in kinds]
        if not images:
            continue
        image = choose(images)
        if image:
            chosen.append((image, item.count))
        elif item.where in _PICKED or all((rules.parsed(image.target) or ((0, 0), ""))[1] for image in images):
            special.append(item)
        else:
            plain.append(item)
    return _Objects(tuple(chosen), tuple(plain), tuple(special))


def _reason(found: _Objects, where: str) -> str:
    """Why it runs only in part, only after compiling, or not at all; empty when all is well."""
    if not found.fit:
        return f"nothing for {where}: it holds {_carried((*found.plain, *found.special))}"
    if found.plain:
        left = sum(item.count for item in found.plain)
        holds = "holds" if left == 1 else "hold"
        return f"{count(left, 'object')} of {found.objects:,} {holds} nothing for {where}, only {_carried(found.plain)}"
    compiled = sum(number for image, number in found.chosen if image.kind in (PTX, SPIRV))
    if compiled:
        names = " ".join(targets(image.target for image, _ in found.chosen if image.kind in (PTX, SPIRV)))
        share = "" if compiled == found.fit else f" in {compiled:,} of {found.fit:,} objects"
        return f"the driver compiles {names}{share} when it is first used"
    return ""


def _carried(objects: Iterable[Object]) -> str:
    return " ".join(targets(image.target for item in objects for image in item.images))


def _nothing(library: Library, kinds: Sequence[str]) -> Judgment:
    others = library.count() - library.count(*kinds)
    if others:
        return Judgment("other", f"it holds {' '.join(targets(others))}")
    return Judgment("unknown", "only LTO-IR, which is linked into cubins before it can run")


def _cpu(code: CpuCode | None, device: Device) -> Judgment:
    if code is None:
        return Judgment("none", "no code for a processor")
    if device.arch not in code.machine.split(" + "):
        return Judgment("no", f"it is for {code.machine}, the processor is {device.arch}")
    needed = _LEVELS.get(code.needs, "")
    if needed and device.capability(needed).level is Level.ABSENT:
        return Judgment("no", f"it asks for {code.needs} and the processor has no {needed.removeprefix('isa.')}")
    lacks = [name for name in code.holds if device.capability(f"isa.{name}").level is Level.ABSENT]
    if lacks:
        return Judgment(
            "unknown",
            f"it holds {' '.join(lacks)} instructions, which the processor lacks: most programs ask first, and"
            " whether this one does cannot be told from the file",
        )
    return Judgment("yes", "", (code.machine,))
