"""Hold what is found in a file, as values: images of device code, the objects that hold them, and libraries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rung.core.value import Value

#: Kinds of images. A cubin and a code object are machine code, PTX and SPIR-V are compiled on the machine that runs
#: them, LTO-IR is linked before that.
CUBIN, PTX, LTO, CODE_OBJECT, SPIRV = "cubin", "PTX", "LTO-IR", "code object", "SPIR-V"
CUDA = (CUBIN, PTX, LTO)
AMD = (CODE_OBJECT, SPIRV)
#: Where what NVIDIA's runtime registers is, with and without kernels.
IN_FATBINS = ("fatbin", "empty")


@dataclass(frozen=True, order=True)
class Image(Value):
    """Device code for one target: ``sm_90a``, ``compute_120f``, ``gfx90a:sramecc+:xnack-``.

    ``isa`` is the PTX version of PTX (``8.7``), which a driver must know; empty elsewhere.
    """

    kind: str
    target: str
    isa: str = ""


@dataclass(frozen=True, order=True)
class Object(Value):
    """``count`` places that hold the same images, of which a program gets the one that fits its device.

    ``where``: ``fatbin`` (NVIDIA's container, which its runtime chooses from), ``empty`` (one without a kernel, as nvcc
    makes of every source file), ``bundle`` (clang's), ``data`` (a fatbin that the program loads by itself), ``alone``
    (one image, in a file or in a library's data), ``name`` (told by the name of the file only).
    """

    where: str
    images: tuple[Image, ...]
    count: int = 1


@dataclass(frozen=True)
class CpuCode(Value):
    """Hold what is known of the instructions for the processor.

    ``machine`` is x86_64, aarch64 ...; ``needs`` the level that the file itself demands (x86-64-v3), empty when it
    does not say; ``holds`` the instruction sets seen in it; ``looked_at`` of ``size`` bytes of code were searched.
    """

    machine: str
    needs: str = ""
    holds: tuple[str, ...] = ()
    looked_at: int = 0
    size: int = 0


#: The format of a file in an archive whose bytes cannot be had.
NOT_READ = "not read"


@dataclass(frozen=True)
class Library(Value):
    """One file: its device code, its CPU code, and ``remarks`` on what is wrong with it or could not be read."""

    name: str
    size: int
    format: str
    objects: tuple[Object, ...] = ()
    cpu: CpuCode | None = None
    remarks: tuple[str, ...] = ()

    @property
    def filled(self) -> tuple[Object, ...]:
        """The objects that hold kernels, all when none does."""
        return tuple(item for item in self.objects if item.where != "empty") or self.objects

    def count(self, *kinds: str, where: tuple[str, ...] = ()) -> Counter[str]:
        """How often each target occurs among the images of these kinds (all when none), in these places or in all."""
        found: Counter[str] = Counter()
        for item in self.objects:
            if not where or item.where in where:
                for image in item.images:
                    if not kinds or image.kind in kinds:
                        found[image.target] += item.count
        return found
