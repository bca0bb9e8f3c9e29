"""The start of a probing child: torch, the right device of it, and whether this build has code for it at all."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import torch

#: torch's own words for the kinds of devices.
TORCH_KINDS = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "mps": "mps"}

found_device: torch.device | None = None


def start(kind: str, arch: str, marks: dict[str, str], threads: int) -> None:
    """Finds the device that the jobs of this child compute on.

    ``marks`` may hold ``uuid`` or ``pci`` (domain:bus:device) to tell several devices of a kind apart, ``index`` as the
    last resort. Raises ``LookupError`` with a sentence when this torch can run nothing there.
    """
    global found_device
    torch.set_num_threads(max(1, threads))
    torch.manual_seed(0)
    if kind == "cpu":
        found_device = torch.device("cpu")
        return
    refusal = _unavailable(kind)
    if not refusal and kind in ("cuda", "rocm"):
        refusal = lacks_code(arch, torch.cuda.get_arch_list(), torch.__version__)
    if refusal:
        raise LookupError(refusal)
    found_device = torch.device(TORCH_KINDS[kind], torch_index(kind, marks))


def device() -> torch.device:
    """The device that ``start`` found."""
    assert found_device is not None, "start has not run in this child"
    return found_device


def torch_index(kind: str, marks: dict[str, str]) -> int:
    """Which of torch's devices of that kind has these marks; torch may order them otherwise than the driver."""
    if kind in ("cuda", "rocm"):
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            uuid = str(getattr(properties, "uuid", ""))
            if uuid and marks.get("uuid", "").removeprefix("GPU-") == uuid:
                return index
            pci = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
            if marks.get("pci") == ":".join(f"{part or 0:0{4 if at == 0 else 2}x}" for at, part in enumerate(pci)):
                return index
    return int(marks.get("index", "0"))


def lacks_code(arch: str, built: Sequence[str], version: str) -> str:
    """A sentence when none of the targets that torch was built for runs on ``arch``; empty when one does.

    A cubin for sm_60 runs on 6.0 to 6.9; ``compute_75`` is compiled at run time for 7.5 and all above; a gfx target
    runs on itself only (https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/, GPU compilation).
    """
    if not built:
        return ""
    arch = arch.split("-")[0]
    own = re.fullmatch(r"sm_(\d+)(\d)", arch)
    for target in built:
        if target.split(":")[0] == arch:
            return ""
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)", target)
        if not (own and found):
            continue
        major, minor = int(found[2]), int(found[3])
        if found[1] == "sm" and major == int(own[1]) and minor <= int(own[2]):
            return ""
        if found[1] == "compute" and (major, minor) <= (int(own[1]), int(own[2])):
            return ""
    return f"torch {version} has no code for {arch}: it is built for {', '.join(built)}"


def _unavailable(kind: str) -> str:
    """Why torch sees no device of that kind, in its own words where it has some."""
    if kind == "mps":
        if torch.backends.mps.is_available():
            return ""
        built = torch.backends.mps.is_built()
        return (
            "this macOS is too old for torch's Metal" if built else f"torch {torch.__version__} is built without Metal"
        )
    if kind == "xpu":
        return "" if torch.xpu.is_available() else f"torch {torch.__version__} sees no Intel GPU"
    built_for = torch.version.hip if kind == "rocm" else torch.version.cuda
    if not built_for:
        return f"torch {torch.__version__} is built without {'ROCm' if kind == 'rocm' else 'CUDA'}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if torch.cuda.is_available():
            return ""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return f"torch {torch.__version__} sees no device"
