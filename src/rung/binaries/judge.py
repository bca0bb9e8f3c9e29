"""Say what of a library runs on a device: which image runs, compiled by the driver or not, and what it lacks there."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.binaries.images import AMD, CODE_OBJECT, CUBIN, CUDA, NOT_READ, PTX, SPIRV, CpuCode, Image, Library, Object
from rung.core.text import count
from rung.core.types import Device, Level
from rung.core.value import Value
from rung.hardware.catalog.rows import architectures, version
from rung.hardware.catalog.tables import load

Capability = tuple[int, int]
_TARGET = re.compile(r"(?:sm|compute|lto)_(\d+)(\d)([af]?)$")
#: Members of the families of ``f`` targets (help text of ptxas 13.0, CUDA 12.9's announcement of families): code for
#: the first runs on those that follow in the same row.
_FAMILIES: tuple[tuple[Capability, ...], ...] = (((10, 0), (10, 3)), ((10, 1),), ((11, 0),), ((12, 0), (12, 1)))
#: Which processors run code for a generic target (LLVM's AMDGPU usage guide, generic processors).
_GENERIC = {
    "gfx9-generic": "gfx900 gfx902 gfx904 gfx906 gfx909 gfx90c",
    "gfx9-4-generic": "gfx940 gfx941 gfx942 gfx950",
    "gfx10-1-generic": "gfx1010 gfx1011 gfx1012 gfx1013",
    "gfx10-3-generic": "gfx1030 gfx1031 gfx1032 gfx1033 gfx1034 gfx1035 gfx1036",
    "gfx11-generic": "gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153",
    "gfx12-generic": "gfx1200 gfx1201",
}


def parsed(target: str) -> tuple[Capability, str] | None:
    """``sm_90a`` as ((9, 0), "a"); None for other targets."""
    found = _TARGET.fullmatch(target)
    return ((int(found[1]), int(found[2])), found[3]) if found else None


def runs_on_cuda(image: Image, device: Capability) -> bool:
    """Return whether a GPU of that compute capability runs an image, PTX through the driver's compiler.

    A cubin runs on its own major number from its own minor number on, PTX on everything later; ``a`` on its own
    capability only, ``f`` in its family.
    """
    found = parsed(image.target)
    if found is None or image.kind not in (CUBIN, PTX):
        return False
    at, suffix = found
    if suffix == "a":
        return at == device
    if suffix == "f":
        return at <= device and any(at in family and device in family for family in _FAMILIES)
    return at <= device and (image.kind == PTX or at[0] == device[0])


def choose_cuda(images: Sequence[Image], device: Capability) -> Image | None:
    """The image that the driver takes: the nearest cubin, the special one of two equal, else the newest PTX."""
    fits = [image for image in images if runs_on_cuda(image, device)]
    return max(fits, key=_rank, default=None)


def _rank(image: Image) -> tuple[bool, Capability, int]:
    at, suffix = parsed(image.target) or ((0, 0), "")
    return image.kind == CUBIN, at, ("", "f", "a").index(suffix)


def choose_amd(images: Sequence[Image], device: str) -> Image | None:
    """The code object that a GPU (``gfx90a``, perhaps with ``:xnack-``) takes: its own before a generic one."""
    name, *modes = device.split(":")
    best: tuple[int, Image] | None = None
    for image in images:
        target, *features = image.target.split(":")
        if any(mode[:-1] == ask[:-1] and mode != ask for ask in features for mode in modes):
            continue
        rank = 3 if target == name else 2 if name in _GENERIC.get(target, "").split() else int(image.kind == SPIRV)
        if rank and image.kind in (CODE_OBJECT, SPIRV) and (best is None or rank > best[0]):
            best = rank, image
    return best[1] if best else None


def missing_features(image: Image, device: Capability) -> list[str]:
    """Return the features of the device that code for that image cannot use, because it was compiled without them."""
    found = parsed(image.target)
    if found is None:
        return []
    at, suffix = found
    names = []
    for row in guarded():
        first = version(row["from"])
        compiled = bool(suffix) or first[0] != device[0] if row.get("special") else at >= first
        if first <= device and not compiled:
            names.append(row["what"])
    return names


@functools.cache
def guarded() -> tuple[Mapping[str, Any], ...]:
    """The rows of ``guarded.toml``."""
    return tuple(load("guarded.toml")["guarded"])


#: Versions of PTX whose number does not follow that of CUDA (PTX ISA, release history).
_PTX_CUDA = {"8.6": "12.7", "8.7": "12.8", "8.8": "12.9"}


def cuda_for_ptx(isa: str) -> str:
    """The CUDA version that a driver must have for PTX of that version: ``12.8`` for 8.7; empty when not known.

    PTX 6.0 to 6.2 came with CUDA 9, 6.3 to 6.5 with 10, 7 with 11, 8 with 12, 9 with 13.
    """
    if isa in _PTX_CUDA:
        return _PTX_CUDA[isa]
    major, minor = version(isa)
    if major == 6:
        return f"9.{minor}" if minor < 3 else f"10.{minor - 3}"
    return f"{major + 4}.{minor}" if major in (7, 8, 9) else ""


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


def capability(device: Device) -> Capability | None:
    """The compute capability of an NVIDIA device, None of any other."""
    found = _CAPABILITY.match(device.arch)
    return (int(found[1]), int(found[2])) if found else None


def targets(images: Iterable[str]) -> list[str]:
    """Targets in the order of their numbers, machine code before PTX: ``sm_75 sm_100 compute_100``."""
    return sorted(set(images), key=_order)


def _order(target: str) -> tuple[int, int, int, str]:
    found = parsed(target)
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
        return choose_cuda(fits, at)

    found = _objects(library, (CUBIN, PTX), choose)
    where = f"{at[0]}.{at[1]}"
    if not found.objects:
        return _nothing(library, CUDA)
    reason = _reason(found, where)
    if old and found.fit < found.objects:
        isa = min(old, key=version)
        reason += f"; PTX {isa} needs a driver with CUDA {cuda_for_ptx(isa)}, this one has {newest}"
    missing = Counter(what for image, _ in found.chosen for what in missing_features(image, at))
    return found.judgment(reason, tuple(missing))


def _too_new(image: Image, newest: str) -> bool:
    """Return whether the driver's compiler does not know that version of PTX; a driver that nobody has named knows
    all."""
    needed = cuda_for_ptx(image.isa) if image.isa else ""
    return bool(newest and needed) and version(needed) > version(newest)


def _amd(library: Library, device: Device) -> Judgment:
    found = _objects(library, AMD, lambda images: choose_amd(images, device.arch))
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
        elif item.where in _PICKED or all((parsed(image.target) or ((0, 0), ""))[1] for image in images):
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
