"""Hold what was compiled or loaded, for what, and by whom: compilers, loaders, released programs."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import MISSING, WRONG_CODE

#: The oldest GPU that an instruction runs on, as the assembler names it.
_TARGET = re.compile(r"requires \.target sm_(\d{2,3})")
#: The torch that xFormers was built for, and the one that is here.
_XFORMERS = re.compile(
    r"(?i)PyTorch (?P<built>\d[\d.]*)\+(?P<for>\w+) with CUDA \w+ \(you have (?P<here>\d[\d.]*)\+(?P<this>\w+)"
)
#: A list of architectures, written as torch reads it.
_ARCH = re.compile(r"Unknown CUDA arch \((?!\d{1,2}\.\d[af]?(?:\+PTX)?\) or)[\w.+]")
#: TensorFlow before it was built with CUDA 11.
_TF_BEFORE_11 = (
    r"(?i)tensorflow(?:-gpu)?\W{1,4}(?:version\W{1,3})?(?:1\.\d|2\.[0-3]\b)|\btf\W{0,3}(?:1\.1\d|2\.[0-3])\b"
)
#: Extensions with kernels that are published compiled.
_WHEELS = (
    r"(?i)spconv|\bcumm\b|flash_?att(?:n|ention)|xformers|exllama|auto_?gptq|torch_(?:scatter|sparse|cluster)|pytorch3d"
)
_ON_ANOTHER = (
    r"(?i)\b(?:built|compiled) (?:it )?(?:on|for) (?:an? |the |my )?"
    r"(?:other|another|different|Tesla|RTX|GTX|[AVPTHK]\d{2,3}\b)"
)
#: Modules of Python that Windows has not.
_UNIX = frozenset(("fcntl", "resource", "pwd", "grp", "termios", "curses", "_curses", "readline", "posix", "syslog"))
_SHADOWED = re.compile(r"partially initialized module '(\w+)'")


#: Headers that no CUDA before 11 has.
_SINCE_11 = (
    r"(?:cooperative_groups/(?:reduce|scan|memcpy_async)\.h|cuda/(?:std/|atomic|barrier|pipeline|annotated_ptr))"
)


def _toolkit(scene: Scene) -> tuple[int, int]:
    """The release of the toolkit that compiles, as far as it is named."""
    return scene.facts.toolkit or scene.facts.cuda or (99, 0)


def _runs_it(scene: Scene) -> bool:
    found = _TARGET.search(scene.text)
    return scene.has("ptx-feature") and found is not None and scene.from_(int(found[1]))


def _built_for(scene: Scene) -> tuple[str, str] | None:
    found = _XFORMERS.search(scene.text) if scene.has("xformers-no-cuda") else None
    return (found["for"], found["this"]) if found else None


def _same_cuda(scene: Scene) -> bool:
    found = _built_for(scene)
    return found is not None and found[0] == found[1]


def _shadowed(scene: Scene) -> bool:
    """Return whether a file of the program has the name of the module that it imports."""
    name = _SHADOWED.search(scene.said)
    if name is None:
        return False
    return re.search(rf'File "(?![^"]*-packages)[^"]*\b{name[1]}\.py"', scene.said) is not None


def _for_other_processor(scene: Scene) -> bool:
    arm = rf"{scene.facts.os} {scene.facts.cpu} {scene.facts.stated}"
    other = "osetta" not in arm and re.search("(?i)linux/(?:arm64|aarch64)", arm) is None
    return scene.facts.apple and other and re.search(r"(?i)arm64|aarch64|apple|\bM[1-5]\b", arm) is not None


RULES: tuple[Rule, ...] = (
    Rule(
        "instruction-of-this-gpu",
        lambda s: _runs_it(s) or (s.has("wmma-missing") and s.from_(70)),
        {"build-wrong-arch-flags": 4.5, "kernel-min-compute-capability": -3, "compiler-arch-unsupported": -2},
        "{gpu} has compute capability {cc} and this instruction: it was compiled for an older one",
        "NVIDIA, PTX ISA",
    ),
    Rule(
        "wheel-before-gpu",
        lambda s: s.from_(100) and s.has(*MISSING) and s.about(_WHEELS),
        {"build-lacks-new-arch": 2.2, "build-wrong-arch-flags": -0.5},
        "{gpu} has compute capability {cc}, and most people install this extension compiled",
        "builders of published binaries",
    ),
    Rule(
        "built-on-another",
        lambda s: s.has(*MISSING) and s.about(_ON_ANOTHER),
        {"build-wrong-arch-flags": 2.8},
        "it was compiled on a machine with another GPU, for that one",
        "torch, cpp_extension.py: without a list the GPU that is there is the list",
    ),
    Rule(
        "dropped-by-cuda-13",
        lambda s: s.below(75) and (s.facts.cuda or (0, 0)) >= (13, 0) and s.has("ptx-not-compiled", "ptx-refused"),
        {"compiler-arch-unsupported": 3},
        "{gpu} has compute capability {cc}, and CUDA 13 compiles for 7.5 and newer",
        "NVIDIA, CUDA 13 release notes",
    ),
    Rule(
        "groups-before-cuda-11",
        lambda s: s.has("cooperative-groups-member") and (s.facts.cuda or (99, 0)) < (11, 0),
        {"cuda-toolkit-mismatch": 3},
        "these operations on groups of threads came with CUDA 11",
        "CUDA, cooperative groups",
    ),
    Rule(
        "headers-before-cuda-11",
        lambda s: s.has("cuda-headers-missing") and s.says(_SINCE_11) and _toolkit(s) < (11, 0),
        {"cuda-toolkit-mismatch": 5.5, "cuda-library-not-found": -2},
        "these headers came with CUDA 11",
        "CUDA, release notes",
    ),
    Rule(
        "headers-until-cuda-12",
        lambda s: s.has("cuda-headers-missing") and s.says(r"nvToolsExt\w*\.h") and (12, 9) <= _toolkit(s) < (99, 0),
        {"cuda-toolkit-mismatch": 5.5, "cuda-library-not-found": -2},
        "CUDA 12.9 was the first without these headers: NVTX 3 has other ones",
        "CUDA, release notes",
    ),
    Rule(
        "warp-functions-of-cuda-9",
        lambda s: (
            s.has("warp-functions-older")
            and (s.from_(70) or (9, 0) <= _toolkit(s) < (99, 0) or s.says(r"(?:compute|sm)_(?:[789]\d|1[0-2]\d)"))
        ),
        {"cuda-toolkit-mismatch": 2},
        "from compute capability 7.0 on code needs the functions that end in _sync",
        "CUDA C++ Programming Guide, warp shuffle functions",
    ),
    Rule(
        "warp-functions-of-fermi",
        lambda s: s.has("warp-functions-older") and (s.says(r"(?:compute|sm)_2\d|\b2\.[01]\(") or _toolkit(s) < (9, 0)),
        {"build-wrong-arch-flags": 2.2},
        "these functions came with compute capability 3.0; a CUDA before 9 compiles for 2.0 if nothing else is asked",
        "CUDA C++ Programming Guide, warp shuffle functions",
    ),
    Rule(
        "code-made-at-start",
        lambda s: s.has("slow-to-start") and s.from_(70) and s.about(r"(?i)tensorflow|\btf\b|keras|\bcuda|torch"),
        {"build-lacks-new-arch": 1.8},
        "{gpu} has compute capability {cc}: for a build that is older the driver compiles the code at the start",
        "CUDA driver, just-in-time compilation of PTX",
    ),
    Rule(
        "built-for-other-torch",
        _same_cuda,
        {"package-version-mismatch": 6.5, "cuda-toolkit-mismatch": -2},
        "both are of the same CUDA: it is the version of torch that differs",
        "xFormers, _cpp_lib.py",
    ),
    Rule(
        "procedure-of-a-cuda-library",
        lambda s: s.has("cuda-module-missing") and s.says("WinError 127|procedure could not be found"),
        {"cuda-toolkit-mismatch": 5, "cuda-library-not-found": -2.5},
        "the library is there, and has not the function asked for: it is of another version",
        "Windows, ERROR_PROC_NOT_FOUND",
    ),
    Rule(
        "binary-for-intel-on-arm",
        lambda s: s.has("illegal-instruction") and _for_other_processor(s),
        {"platform-binary-missing": 6, "cpu-instruction-missing": -2.5},
        "the processor is Apple's: the binary is for Intel's",
        "Apple, Rosetta",
    ),
    Rule(
        "module-shadowed",
        _shadowed,
        {"not-a-compatibility-problem": 7, "package-version-mismatch": -4},
        "a file of the program has the name of the module that it imports",
        "Python, the import system",
    ),
    Rule(
        "tensorflow-before-gpu",
        lambda s: (
            s.from_(80) and s.has("tensor-not-initialised", "cudnn-handle", *WRONG_CODE) and s.about(_TF_BEFORE_11)
        ),
        {"build-lacks-new-arch": 5.5, "gpu-out-of-memory": -2, "cuda-toolkit-mismatch": -1},
        "{gpu} has compute capability {cc}: TensorFlow before 2.4 was built with a CUDA that does not know it",
        "TensorFlow, tested build configurations",
    ),
    Rule(
        "onnxruntime-before-gpu",
        lambda s: s.from_(100) and s.has(*WRONG_CODE) and s.about(r"(?i)onnx ?runtime"),
        {"build-lacks-new-arch": 3.5, "gpu-out-of-memory": -1},
        "{gpu} has compute capability {cc}: newer than what this release was built for",
        "ONNX Runtime, CUDA execution provider",
    ),
    Rule(
        "arch-list-misread",
        lambda s: s.has("nvrtc-arch") and _ARCH.search(s.said) is not None,
        {"build-wrong-arch-flags": 9, "compiler-arch-unsupported": -6},
        "the list of architectures is not written as torch reads it",
        "torch, cpp_extension.py",
    ),
    Rule(
        "versions-named",
        lambda s: s.has("components-outdated") and s.has("cuda-module-missing"),
        {"cuda-toolkit-mismatch": 3, "cuda-library-not-found": -2.5},
        "the libraries were found, and they are older than the program was built for",
        "JAX, xla_bridge.py",
    ),
    Rule(
        "module-of-unix",
        lambda s: s.has("package-missing") and s.words.get("package", "").partition(".")[0] in _UNIX,
        {"platform-binary-missing": 6, "not-a-compatibility-problem": -1, "package-version-mismatch": -1},
        "this module of Python exists on Linux and macOS only",
        "Python, Unix specific services",
    ),
    Rule(
        "architectures-not-seen",
        lambda s: s.has("architectures-unknown") and s.has("python-bug") and s.says("list index out of range"),
        {"not-a-compatibility-problem": -3.5},
        "the list of architectures is empty because no GPU was visible",
        "torch, cpp_extension.py",
    ),
    Rule(
        "syntax-of-newer-python",
        lambda s: s.has("python-bug") and s.says("SyntaxError") and s.raised_in_package,
        {"package-version-mismatch": 5, "not-a-compatibility-problem": -2},
        "an installed package is written for a newer Python than this one",
        "Python, language versions",
    ),
)
