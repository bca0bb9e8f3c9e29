"""Where the libraries are that compile kernels for GPUs at run time: NVRTC of NVIDIA, hipRTC of AMD.

torch's wheels bring them, as packages beside torch (Linux) or in its own folder (Windows, AMD); else a toolkit has
them.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

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
