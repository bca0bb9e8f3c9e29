"""Modules of compiled kernels on a GPU, and their launch on torch's stream, through the driver's own library.

NVIDIA's driver (``cu...``) and AMD's HIP (``hip...``) have the same functions with the same arguments.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rung.core.errors import SoftwareMissing
from rung.kernels.cuda import compiler
from rung.kernels.cuda.source import THREADS, Source

if TYPE_CHECKING:
    import torch


#: An address, a 64-bit number, an int, a float, or a struct of such.
Argument = ctypes.c_void_p | ctypes.c_longlong | ctypes.c_int | ctypes.c_float | ctypes.Structure


def pointers(arguments: Sequence[Argument]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of the arguments, which must outlive them."""
    return (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))


_ADDRESS, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_float


class Part(ctypes.Structure):
    """A weight of a product: its sections, a bias of its rows or none, its rows, and where these begin in it.

    ``number`` is its place among the changes of an adapter, ``low`` that among the weights that are changed at once.
    """

    _fields_ = (
        *((name, _ADDRESS) for name in ("codes", "highs", "scales", "heads", "bias")),
        *((name, _INT) for name in ("rows", "first", "number", "low")),
    )


class Product(ctypes.Structure):
    """A product with activations ``x``, or ``wide`` in float32: see the kernels for what they take of it.

    What they make of their result is ``quantized``, int8, and ``floats``, float32; None for what no product takes. Of
    several rows of activations ``hidden`` are ``apart`` float32 from each other, and ``y`` has rows of ``width``, sums
    that are added to ``hidden`` rows of ``size``. As far apart lie the addresses of the rows' adapters, ``changes``;
    ``low`` has ``most`` float32 of each weight, what these multiply with activations first. ``store`` caps what it
    stores softly by ``softcap``, 0 for not at all.
    """

    _fields_ = (
        ("parts", Part * 3),
        *((name, _ADDRESS) for name in ("x", "wide", "y", "hidden", "post", "norm", "quantized", "floats", "counters")),
        *((name, _ADDRESS) for name in ("changes", "low")),
        *((name, _INT) for name in ("units", "blocks", "size", "apart", "width", "most")),
        *((name, _FLOAT) for name in ("epsilon", "softcap")),
    )


class Attend(ctypes.Structure):
    """Attention of a layer: q, k and v, the norms of q and k, a rotation, and where the layer lies in the cache.

    ``info`` has the position, and from ``table`` on the numbers of the blocks that the sequence has. ``left`` is where
    blocks of a head leave their sums, each head has one of the ``counters``. Rows of activations have ``turn`` and
    ``info`` so many float32 ``apart``, and -1 for a position where they are none.
    """

    _fields_ = (
        *(
            (name, _ADDRESS)
            for name in ("qkv", "q_norm", "k_norm", "turn", "keys", "values", "info", "quantized", "floats")
        ),
        *((name, _ADDRESS) for name in ("left", "counters")),
        ("block_bytes", _LONG),
        *((name, _INT) for name in ("head", "row", "heads", "kv_heads", "half", "window", "table", "block")),
        ("most_parts", _INT),
        ("apart", _INT),
        *((name, _FLOAT) for name in ("scale", "softcap", "epsilon")),
    )


class Draw(ctypes.Structure):
    """A row of logits, the settings of a choice (``CHOICE``) and where kernels leave what they find.

    ``draws``: one is drawn, else the likeliest is chosen. ``level`` and ``by_mass`` are those of a filter.
    """

    _fields_ = (
        *((name, _ADDRESS) for name in ("logits", "choice", "found")),
        *((name, _INT) for name in ("vocabulary", "blocks", "draws", "level", "by_mass")),
    )


class Embed(ctypes.Structure):
    """A weight whose row becomes a hidden state, times ``scale``, and the settings of the choice of its token.

    Of each token there are ``width`` numbers of rotations, which go ``turned`` float32 behind the hidden state; its
    position goes where ``info`` is.
    """

    _fields_ = (
        *((name, _ADDRESS) for name in ("codes", "highs", "scales", "heads", "hidden", "choice", "turns")),
        *((name, _INT) for name in ("units", "turned", "width", "info")),
        ("scale", _FLOAT),
    )


_LIBRARIES = {
    ("cuda", "linux"): ("libcuda.so.1",),
    ("cuda", "win32"): ("nvcuda.dll",),
    ("rocm", "linux"): ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"),
    ("rocm", "win32"): ("amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"),
}


@dataclass(frozen=True, eq=False)
class Driver:
    """The library of a driver, whose functions begin with ``cu`` or ``hip``."""

    library: Any
    prefix: str

    def module(self, image: bytes) -> ctypes.c_void_p:
        """Load a compiled module into the context that is current."""
        module = ctypes.c_void_p()
        self._call("ModuleLoadData", ctypes.byref(module), image)
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """Return a kernel of a module."""
        found = ctypes.c_void_p()
        self._call("ModuleGetFunction", ctypes.byref(found), module, name.encode())
        return found

    def launch(
        self, function: ctypes.c_void_p, grid: tuple[int, int], stream: int, arguments: Sequence[Argument]
    ) -> None:
        """Launch a kernel of blocks of ``THREADS`` on a stream."""
        name = "LaunchKernel" if self.prefix == "cu" else "ModuleLaunchKernel"
        sizes = (*grid, 1, THREADS, 1, 1, 0)
        self._call(name, function, *sizes, ctypes.c_void_p(stream), pointers(arguments), None)

    def _call(self, name: str, *arguments: Any) -> None:
        code = self.library[f"{self.prefix}{name}"](*arguments)
        if code:  # in torch's words, by which failures are told apart
            kind = "CUDA" if self.prefix == "cu" else "HIP"
            raise RuntimeError(f"{kind} error: {self._meaning(code)} ({self.prefix}{name})")

    def _meaning(self, code: int) -> str:
        if self.prefix != "cu":
            self.library.hipGetErrorString.restype = ctypes.c_char_p
            return str((self.library.hipGetErrorString(code) or b"").decode())
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"unknown error").decode()


@functools.cache
def driver(kind: str) -> Driver:
    """Return the driver of cards of a kind, ``cuda`` or ``rocm``. Raises ``SoftwareMissing``."""
    reasons = []
    for name in _LIBRARIES.get((kind, sys.platform), ()):
        try:
            return Driver(ctypes.CDLL(name), "cu" if kind == "cuda" else "hip")
        except OSError as error:
            reasons.append(str(error))
    raise SoftwareMissing("The driver's library cannot be loaded, which launches kernels.", reasons)


@functools.cache
def _function(index: int, source: Source, kernel: str) -> ctypes.c_void_p:
    """Return a kernel on a card, compiled and loaded when first asked for. Raises ``SoftwareMissing``."""
    kind, arch = _architecture(index)
    loaded = _module(index, source, kind, arch)
    return driver(kind).function(loaded, kernel)


@functools.cache
def _module(index: int, source: Source, kind: str, arch: str) -> ctypes.c_void_p:
    return driver(kind).module(compiler.here(kind).compile(source, arch))


@functools.cache
def _architecture(index: int) -> tuple[str, str]:
    """Return the kind of torch's card and its architecture: ``sm_86``, ``gfx1100``."""
    import torch

    if torch.version.hip:
        return "rocm", str(torch.cuda.get_device_properties(index).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(index)
    return "cuda", f"sm_{major}{minor}"


def launch(
    device: torch.device, source: Source, kernel: str, grid: tuple[int, int], arguments: Sequence[Argument]
) -> None:
    """Launch a kernel on the stream that torch computes on there."""
    import torch

    with torch.cuda.device(device):
        index = torch.cuda.current_device()
        function = _function(index, source, kernel)
        driver(_architecture(index)[0]).launch(function, grid, torch.cuda.current_stream().cuda_stream, arguments)
