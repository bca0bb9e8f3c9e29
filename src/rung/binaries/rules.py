"""Which image runs on which GPU, and which one the driver takes: NVIDIA's and AMD's rules of compatibility."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rung.binaries.images import CODE_OBJECT, CUBIN, PTX, SPIRV, Image
from rung.hardware.catalog.rows import version
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


def missing(image: Image, device: Capability) -> list[str]:
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
