"""Graphics interfaces, and libraries that come compiled without torch."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import MISSING, PREBUILT

#: Messages of OpenGL, Vulkan and OpenCL that find no device to draw or compute with.
_NONE = ("egl-display", "glx-context", "vulkan-driver", "wgpu-adapter", "opencl-no-platform", "opengl-version")
#: Where a program sees only the devices that it is given, and no screen.
_APART = (
    r"(?i)docker|container|podman|singularity|apptainer|kubernetes|\bvm\b|virtualbox|vmware|proxmox|\bslurm"
    r"|headless|\bserver\b|NVIDIA_DRIVER_CAPABILITIES|\bcolab|\bcluster\b"
)
_BUILT_HERE = r"(?i)\bjetson|build\.sh|\bCUDA_ARCH\b|CMAKE_CUDA_ARCH|from source|\bsetup\.py\b|\bcmake\b"
#: The oldest compute capabilities that whole programs ask for; single kernels ask for newer ones.
_FLOOR = re.compile(
    r"(?:requires?|needs?|at least|>=|only supports?|minimum)\D{0,60}\b[1-5]\.\d\b"
    r"|\b[1-5]\.\d (?:\(\w+\) )?or (?:higher|newer|above|later|up)",
    re.IGNORECASE,
)


def _prebuilt(scene: Scene) -> bool:
    return scene.has(*MISSING) and scene.about(PREBUILT) and not scene.about(_BUILT_HERE)


#: Folders of programs, not of packages.
_OWN_FOLDERS = re.compile(
    r"utils?|models?|src|libs?|tools|scripts|modules|core|common|configs?|data|datasets?|app|nodes|nets|networks|layers"
    r"|losses|engine|helpers|api|tests?|trainer|train"
)


def _other_release(scene: Scene) -> bool:
    """Return whether a submodule is missing that code from outside its package asks for."""
    top, _, rest = scene.words.get("package", "").partition(".")
    if not scene.has("package-missing") or not rest or _OWN_FOLDERS.fullmatch(top):
        return False
    places: list[str] = re.findall(r'File "([^"\n]+)"', scene.said)
    return bool(places) and not any(f"/{top}/" in f"/{place}" for place in places)


RULES: tuple[Rule, ...] = (
    Rule(
        "graphics-in-a-container",
        lambda s: s.has(*_NONE) and s.about(_APART),
        {"gpu-not-visible": 5, "graphics-api-feature-missing": -1.5},
        "the program runs where it has only the devices that are given to it: none for graphics",
        "NVIDIA container toolkit, driver capabilities",
    ),
    Rule(
        "prebuilt-before-gpu",
        lambda s: _prebuilt(s) and s.from_(80),
        {"build-lacks-new-arch": 3, "build-wrong-arch-flags": -2},
        "{gpu} has compute capability {cc}; the library is one that most people install compiled",
        "PyPI, conda",
    ),
    Rule(
        "prebuilt-after-gpu",
        lambda s: _prebuilt(s) and s.below(70),
        {"build-lacks-old-arch": 3, "build-wrong-arch-flags": -2},
        "{gpu} has compute capability {cc}; the library is one that most people install compiled",
        "PyPI, conda",
    ),
    Rule(
        "floor-of-a-program",
        lambda s: (
            s.has("requires-sm", "capability-floor")
            and _FLOOR.search(s.said) is not None
            and not s.from_(60)
            and not s.says("(?i)attention")
        ),
        {"build-lacks-old-arch": 5, "kernel-min-compute-capability": -3},
        "so old a GPU is no longer compiled for",
        "CUDA toolkit release notes, architectures that were dropped",
    ),
    Rule(
        "module-of-another-release",
        _other_release,
        {"package-version-mismatch": 2.4, "not-a-compatibility-problem": -1.2},
        "a part of a package is asked for by other code: it came, or went, with another release of it",
        "Python, imports of submodules",
    ),
    Rule(
        "absurd-request",
        lambda s: (
            s.has("cuda-out-of-memory") and s.says(r"allocate (?:more than )?(?:\d{4,}\.\d+ GiB|[\d.]+ [TPE]i?B)")
        ),
        {"software-defect": 5, "not-a-compatibility-problem": 2, "gpu-out-of-memory": -3},
        "no GPU has so much memory: the size was computed wrongly",
        "torch, CUDACachingAllocator.cpp",
    ),
    Rule(
        "assembler-of-the-driver",
        lambda s: s.has("ptxas-arch") and s.says(r"(?i)CL_BUILD_PROGRAM|\bOpenCL"),
        {"driver-too-old": 6, "compiler-arch-unsupported": -4},
        "in OpenCL the driver assembles: it is older than the GPU",
        "NVIDIA, OpenCL",
    ),
)
