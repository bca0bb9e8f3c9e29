"""Find the packages that rung computes with, and compilers of kernels, without importing any of them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rung.core.value import FrozenDict

#: Folders of site-packages that torch's wheels for CUDA bring, the newest first.
_TORCH_FOLDERS = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cu13/bin/x86_64", "nvidia/cuda_nvrtc/bin")
_TOOLKITS = {"nvrtc": ("CUDA_PATH", "CUDA_HOME"), "hiprtc": ("ROCM_PATH", "HIP_PATH")}
_ELSEWHERE = {
    "nvrtc": ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    "hiprtc": ("/opt/rocm/lib",),
}


@functools.cache
def find(name: str) -> Path | None:
    """Return the library called ``nvrtc`` or ``hiprtc``, None where there is none; nothing is imported or loaded."""
    return next((path for folder in _folders(name) for path in find_in(folder, name)), None)


def release(path: Path) -> str:
    """Return the release that the name of a library has, ``12`` of ``libnvrtc.so.12``; ``unknown`` where it has none.

    >>> release(Path("libnvrtc.so.12")), release(Path("nvrtc64_130_0.dll")), release(Path("libhiprtc.so"))
    ('12', '13', 'unknown')
    """
    found = re.search(r"(?:\.so\.|64_)(\d{1,2})", path.name)
    return found[1] if found else "unknown"


def find_in(folder: Path, name: str) -> list[Path]:
    """Return the libraries of that name in a folder, the newest first."""
    pattern = f"{name}*.dll" if sys.platform == "win32" else f"lib{name}.so*"
    found = folder.glob(pattern) if folder.is_dir() else ()
    return sorted((path for path in found if "builtins" not in path.name and ".alt" not in path.name), reverse=True)


def _folders(name: str) -> Iterator[Path]:
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin:
        torch = Path(spec.origin).parent
        yield torch / "lib"
        yield from (torch.parent / folder for folder in _TORCH_FOLDERS)
    for variable in _TOOLKITS[name]:
        if root := os.environ.get(variable):
            yield from (Path(root) / folder for folder in ("lib64", "lib", "bin"))
    yield from map(Path, _ELSEWHERE[name])


_PACKAGES = ("torch", "numba", "llvmlite", "triton", "gsplat")
#: What is installed beside torch and depends on its build.
COMPANIONS = ("triton", "triton-windows", "bitsandbytes", "flash-attn", "xformers")


@functools.cache
def installed() -> FrozenDict[str]:
    """Package to version. torch also says what it was built for: ``torch_cuda``, ``torch_hip``, ``torch_xpu``; and
    ``nvrtc`` or ``hiprtc`` is the release of the compiler that came with it."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        if folder := _folder(name):
            found[name] = _version(folder)
            if name == "torch":
                found |= _torch_build(folder)
    for build, compiler in (("torch_cuda", "nvrtc"), ("torch_hip", "hiprtc")):
        if found.get(build) and (path := find(compiler)):
            found[compiler] = release(path)
    return FrozenDict(found)


def installed_in(folder: Path) -> dict[str, str]:
    """The same for the packages that go with torch, in the ``site-packages`` of any Python.

    ``torch_damaged`` says what is missing of a torch that is installed by its name only.
    """
    found: dict[str, str] = {}
    for name in ("torch", *COMPANIONS):
        for info in folder.glob(f"{name.replace('-', '_')}-*.dist-info"):
            found.setdefault(name.replace("triton-windows", "triton"), info.name.split("-")[1].removesuffix(".dist"))
    build = _torch_build(folder / "torch")  # conda's torch, and one built in its own folder, have no such name
    if "torch" in found and "torch" not in build:
        found["torch_damaged"] = "torch/version.py is missing or says no version"
    return found | build


@functools.cache
def version_of(package: str) -> str:
    """Return the version of a package, empty where it is not installed; nothing is imported."""
    folder = _folder(package)
    return _version(folder) if folder else ""


def _folder(name: str) -> Path | None:
    """Where a package lies. A bare folder of that name is none: it can be found but not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _version(folder: Path) -> str:
    """The version in the name of the ``.dist-info`` beside the package: importlib.metadata costs 50 ms."""
    for info in folder.parent.glob(f"{folder.name}-*.dist-info"):
        return info.name.removeprefix(f"{folder.name}-").removesuffix(".dist-info")
    return "unknown"


def _torch_build(folder: Path) -> dict[str, str]:
    """The variables of ``torch/version.py``, read as text. Its version names the build, the wheel's often does not."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        text = (folder / "version.py").read_text(encoding="utf-8")
        for name, value in re.findall(r"^(\w+)\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]*)['\"]", text, re.MULTILINE):
            if name == "__version__":
                found["torch"] = value
            elif name in ("cuda", "hip", "xpu"):
                found[f"torch_{name}"] = value
    return found
