"""NVRTC and hipRTC, which compile the kernels at run time: they come with torch's own wheels, or with a toolkit.

What is compiled is kept on disk by its text, the architecture and the version of the compiler.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.errors import SoftwareMissing
from rung.core.files import trim, used, write_whole
from rung.core.settings import CACHE
from rung.hardware import software
from rung.kernels.cuda.source import Source

#: Nothing is fused that the text does not fuse.
_CUDA_OPTIONS = ("--std=c++17", "--fmad=false", "--device-as-default-execution-space")
_HIP_OPTIONS = ("-std=c++17", "-ffp-contract=off", "-O3")
#: Bytes of compiled kernels that are kept.
_MOST = 256 << 20


@dataclass(frozen=True)
class Compiler:
    """A library of NVRTC (``prefix`` nvrtc) or hipRTC (hiprtc), and its version."""

    library: Any
    prefix: str
    version: str

    def __hash__(self) -> int:
        return hash((self.prefix, self.version))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library. Raises ``RuntimeError`` where it fails."""
        code = self.library[f"{self.prefix}{name}"](*arguments)
        if code:
            raise RuntimeError(f"{self.prefix}{name} failed with {code}")

    @functools.cached_property
    def architectures(self) -> tuple[int, ...]:
        """The compute capabilities that NVRTC compiles for, ten times, in order; of hipRTC none are listed."""
        if self.prefix != "nvrtc":
            return ()
        count = ctypes.c_int()
        self.call("GetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self.call("GetSupportedArchs", found)
        return tuple(sorted(found))

    def target(self, arch: str) -> tuple[str, bool]:
        """Return the target of a compilation, and whether that is code of the card: a card that is newer
        than NVRTC gets code of an older one, which its driver translates. Raises ``SoftwareMissing`` for a card that is
        older than NVRTC knows."""
        found = re.fullmatch(r"sm_(\d+)[a-z]?", arch)
        if self.prefix != "nvrtc" or found is None:
            return arch, True
        able = [number for number in self.architectures if number <= int(found[1])]
        if not able:
            raise SoftwareMissing(
                f"NVRTC {self.version} does not compile for {arch}.",
                [f"it begins at sm_{self.architectures[0]}"],
                ["rung setup   # names the build of torch that fits the card"],
            )
        own = able[-1] == int(found[1])
        return f"{'sm' if own else 'compute'}_{able[-1]}", own

    def compile(self, source: Source, arch: str) -> bytes:
        """Return a module for that architecture; cached on disk. Raises ``SoftwareMissing`` with what was said."""
        key = " ".join((self.prefix, self.version, arch, *_CUDA_OPTIONS, *_HIP_OPTIONS, source.text))
        path: Path = CACHE.read() / "cuda" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.module"
        if path.exists():
            used(path)
            return path.read_bytes()
        module = self.compile_now(source, arch)
        _keep(path, module)
        return module

    def compile_now(self, source: Source, arch: str) -> bytes:
        """Do the same without the cache."""
        target, own = self.target(arch)
        if self.prefix != "nvrtc":
            return self._compile(source.text, (*_HIP_OPTIONS, f"--offload-arch={target}"), "Code")
        options = (*_CUDA_OPTIONS, f"--gpu-architecture={target}")
        return self._compile(source.text, options, "CUBIN" if own else "PTX")

    def _compile(self, text: str, options: Sequence[str], kind: str) -> bytes:
        program = ctypes.c_void_p()
        self.call("CreateProgram", ctypes.byref(program), text.encode(), b"rung.cu", 0, None, None)
        try:
            words = (ctypes.c_char_p * len(options))(*map(str.encode, options))
            try:
                self.call("CompileProgram", program, len(options), words)
            except RuntimeError as error:
                lines = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").splitlines()
                raise SoftwareMissing(
                    f"{self.prefix} {self.version} does not compile a kernel.", [str(error), *lines[:6]]
                ) from error
            return self._bytes(program, kind)
        finally:
            self.call("DestroyProgram", ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, name: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"Get{name}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"Get{name}", program, text)
        return text.raw


def _keep(path: Path, module: bytes) -> None:
    """Keep a module for the next time; a disk that is full costs that only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trim(path.parent, _MOST)
        write_whole(path, module)
    except OSError:
        return


def load(path: Path, prefix: str) -> Compiler:
    """Open a library. Raises ``SoftwareMissing`` where it cannot be."""
    try:
        for builtins in sorted(path.parent.glob(f"*{prefix}-builtins*")):  # which it looks for by its name only
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise SoftwareMissing(f"{path.name} cannot be loaded.", [str(error)], ["rung setup"]) from error
    numbers = ctypes.c_int(), ctypes.c_int()
    version: Callable[..., int] = library[f"{prefix}Version"]
    version(*map(ctypes.byref, numbers))
    return Compiler(library, prefix, f"{numbers[0].value}.{numbers[1].value}")


@functools.cache
def here(kind: str) -> Compiler:
    """Return the compiler for cards of a kind, ``cuda`` or ``rocm``. Raises ``SoftwareMissing``."""
    prefix = "hiprtc" if kind == "rocm" else "nvrtc"
    path = software.find(prefix)
    if path is None:
        raise SoftwareMissing(
            f"{prefix} is not here, which compiles kernels for this card.",
            ["torch's wheels for GPUs bring it"],
            ["rung setup   # names the build of torch that fits the card"],
        )
    return load(path, prefix)
