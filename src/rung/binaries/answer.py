"""Hold what ``rung inspect`` found: the libraries, what each runs on, the weakest of them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.binaries.images import AMD, CUBIN, CUDA, PTX, Image, Library
from rung.binaries.judge import Judgment, choose_amd, judge, runs_on_cuda, targets
from rung.core.types import Device
from rung.hardware.catalog.rows import architectures

_RUNS = ("yes", "compiled", "partly")
#: Builds of one library, of which a program loads one: libbitsandbytes_cuda118.so and ..._cuda130.so, sm90/ and sm100/.
_BUILD = re.compile(r"(cuda|cu|rocm|hip|gfx|sm)_?\d[\da-f._]*")


@dataclass(frozen=True)
class Answer:
    """The libraries of ``what`` in the order of reading; ``judgments`` beside them, empty without a ``device``.

    ``remarks`` are about the whole: an archive's false sizes, folders that cannot be read.
    """

    what: str
    libraries: tuple[Library, ...]
    remarks: tuple[str, ...] = ()
    device: Device | None = None

    @functools.cached_property
    def judgments(self) -> tuple[Judgment, ...]:
        """Return a judgment of each library on the device."""
        return tuple(judge(library, self.device) for library in self.libraries) if self.device else ()

    @property
    def ok(self) -> bool:
        """Return whether nothing stands against the device: of every library, or of one of its builds, something runs.

        Device code for other makers' devices alone stands against it too.
        """
        runs = {found.runs for found in self.judgments}
        return not self.failing and not ("other" in runs and not runs & set(_RUNS))

    @functools.cached_property
    def failing(self) -> tuple[int, ...]:
        """The libraries (by place) of which nothing runs on the device, and no other build of them either."""
        runs: dict[str, set[str]] = {}
        for library, found in zip(self.libraries, self.judgments, strict=bool(self.device)):
            runs.setdefault(group(library), set()).add(found.runs)
        return tuple(
            index
            for index, found in enumerate(self.judgments)
            if found.runs == "no" and not runs[group(self.libraries[index])] & set(_RUNS)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        judgments = self.judgments or (None,) * len(self.libraries)
        least = weakest(self.libraries)
        return {
            "what": self.what,
            "device": self.device.id if self.device else None,
            "ok": self.ok if self.device else None,
            "runs_on": list(common(self.libraries)),
            "weakest": least.name if least else None,
            "libraries": [_library(*pair) for pair in zip(self.libraries, judgments, strict=True)],
            "remarks": list(self.remarks),
        }


def _library(library: Library, found: Judgment | None) -> dict[str, Any]:
    counts = {
        "cubins": library.count(CUBIN),
        "ptx": library.count(PTX),
        "amd": library.count(*AMD),
    }
    return {
        **library.to_json(),
        **{name: dict(sorted(number.items())) for name, number in counts.items()},
        "runs_on": list(serves(library)),
        "device": found.to_json() if found else None,
    }


def serves(library: Library) -> tuple[str, ...]:
    """The compute capabilities (6.1) and AMD targets of the catalog that some object of a library has code for."""
    return _serves(frozenset(image for item in library.filled for image in item.images))


@functools.lru_cache(maxsize=4096)
def _serves(images: frozenset[Image]) -> tuple[str, ...]:
    rows = architectures().values()
    cuda = {row.cc: row.capability for row in rows if row.capability}
    amd = targets(row.key for row in rows if row.kind == "rocm")
    return (
        *(cc for cc, at in sorted(cuda.items(), key=lambda pair: pair[1]) if any(runs_on_cuda(i, at) for i in images)),
        *(name for name in amd if choose_amd(tuple(images), name)),
    )


def common(libraries: Iterable[Library]) -> tuple[str, ...]:
    """Return the targets that all libraries with code of that maker have code for; builds of one library count as
    one."""
    found: list[str] = []
    for together in _together(libraries):
        if together:
            first, *rest = set(together.values())
            found += [name for name in first if all(name in other for other in rest)]
    return tuple(found)


def weakest(libraries: Sequence[Library]) -> Library | None:
    """The library that has code for the fewest devices, NVIDIA's before AMD's; None when all have code for the same."""
    for together in _together(libraries):
        if len({frozenset(found) for found in together.values()}) > 1:
            name = min(together, key=lambda name: len(together[name]))
            return next(library for library in libraries if library.objects and group(library) == name)
    return None


def _together(libraries: Iterable[Library]) -> tuple[Mapping[str, tuple[str, ...]], ...]:
    """For NVIDIA and for AMD, what each library with such code serves, the builds of one library taken together."""
    found: tuple[dict[str, tuple[str, ...]], ...] = ({}, {})
    for library in libraries:
        if all(item.where == "empty" for item in library.objects):
            continue
        served = serves(library)
        for kinds, images in zip((CUDA, AMD), found, strict=True):
            if library.count(*kinds):
                key = group(library)
                own = (name for name in served if name.startswith("gfx") == (kinds is AMD))
                images[key] = tuple(dict.fromkeys((*images.get(key, ()), *own)))
    return found


def group(library: Library) -> str:
    """Return the pattern of the libraries of which a program takes one: builds of one library, kernel files of a
    folder, Windows's launchers for several processors, which every Python environment has."""
    if library.format == "PE program":
        return os.path.join(os.path.dirname(library.name), "*.exe")
    if library.cpu is None and library.objects:
        return os.path.join(os.path.dirname(library.name), f"*{os.path.splitext(library.name)[1]}")
    return _BUILD.sub(r"\1", library.name)
