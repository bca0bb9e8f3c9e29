"""What was compiled or loaded, for what, and by whom: compilers, loaders, released programs."""

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
_PINNED = (
    r"(?i)in _?pin_memory\b|\bpin_memory\(|cudaHostAlloc|cudaMallocHost|cudaHostRegister"
    r"|dxgkio_\w+: Ioctl failed: -12|host allocator"
)
#: Kernels that are written for GPUs with these matrix instructions and later ones.
_KERNELS = r"(?i)marlin|flashinfer|BatchPrefill|BatchDecode|BatchMLA|sage_?att|sgl_kernel|\bawq_ext|flash_?att|machete"
_CUDA_BEFORE_11 = r"(?i)\bcuda-?(?:9|10)[._]?\d\b|\bcu(?:9|10)\d\b|\bcuda-?(?:90|91|92|100|101|102)\b"
#: Modules of Python that Windows has not.
_UNIX = frozenset(("fcntl", "resource", "pwd", "grp", "termios", "curses", "_curses", "readline", "posix", "syslog"))
_SHADOWED = re.compile(r"partially initialized module '(\w+)'")


def _pinned(scene: Scene) -> bool:
    said = f"{scene.text}\n{scene.said}"
    return re.search(_PINNED, said) is not None and not re.search("(?i)tried to allocate", said)


def _runs_it(scene: Scene) -> bool:
    found = _TARGET.search(scene.text)
    return scene.has("ptx-feature") and found is not None and scene.from_(int(found[1]))


def _built_for(scene: Scene) -> tuple[str, str] | None:
    found = _XFORMERS.search(scene.text) if scene.has("xformers-no-cuda") else None
    return (found["for"], found["this"]) if found else None


def _same_cuda(scene: Scene) -> bool:
    found = _built_for(scene)
    return found is not None and found[0] == found[1]


def _processor_only(scene: Scene) -> bool:
    found = _built_for(scene)
    return found is not None and found[1] == "cpu"


def _shadowed(scene: Scene) -> bool:
    """Whether a file of the program has the name of the module that it imports."""
    name = _SHADOWED.search(scene.said)
    if name is None:
        return False
    return re.search(rf'File "(?![^"]*-packages)[^"]*\b{name[1]}\.py"', scene.said) is not None


def _for_other_processor(scene: Scene) -> bool:
    arm = rf"{scene.facts.os} {scene.facts.cpu} {scene.facts.stated}"
    return (
        scene.facts.apple and "osetta" not in arm and re.search(r"(?i)arm64|aarch64|apple|\bM[1-5]\b", arm) is not None
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "instruction-of-this-gpu",
        lambda s: _runs_it(s) or (s.has("wmma-missing") and s.from_(70)),
        {"build-wrong-arch-flags": 4.5, "kernel-min-compute-capability": -3, "compiler-arch-unsupported": -2},
        "{gpu} has compute capability {cc} and this instruction: it was compiled for an older one",
        "NVIDIA, PTX ISA",
    ),
    Rule(
        "library-of-conda",
        lambda s: s.has("libstdcxx-older", "abi-too-old") and s.says(r"(?i)(?:conda|mamba|/envs/)\S{0,200}libstdc\+\+"),
        {"package-version-mismatch": 4, "platform-binary-missing": -0.5},
        "the environment brings a C++ library of its own, older than the system's",
        "conda, libstdcxx-ng",
    ),
    Rule(
        "built-for-other-torch",
        _same_cuda,
        {"package-version-mismatch": 6.5, "cuda-toolkit-mismatch": -2},
        "both are of the same CUDA: it is the version of torch that differs",
        "xFormers, _cpp_lib.py",
    ),
    Rule(
        "built-for-cuda-here-cpu",
        _processor_only,
        {"cpu-only-build": 5, "cuda-toolkit-mismatch": -1},
        "the torch installed is a CPU build (+cpu)",
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
        "more-ranks-than-gpus",
        lambda s: s.has("invalid-device-ordinal") and s.says(r"local_rank|nproc[-_]per[-_]node|torchrun|LOCAL_RANK"),
        {"not-a-compatibility-problem": 2},
        "each process asks for the GPU of its own number",
        "torch, torchrun",
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
        "arch-named-and-unknown",
        lambda s: (
            s.has("nvrtc-arch")
            and s.has("architectures-unknown")
            and s.says(r"Unknown CUDA arch \(\d{1,2}\.\d[af]?(?:\+PTX)?\) or")
        ),
        {"compiler-arch-unsupported": 4, "build-wrong-arch-flags": -3},
        "torch names an architecture that this release does not know",
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
        "companion-of-torch",
        lambda s: (
            s.has("dll-of-other-version", "dll-load")
            and s.says(r"WinError 127|procedure could not")
            and s.says("torch(?:audio|vision|text)")
        ),
        {"package-version-mismatch": 3, "cuda-library-not-found": -1},
        "a package that belongs to one release of torch is loaded by another",
        "torch, compatibility of torchvision and torchaudio",
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
    Rule(
        "kernels-of-newer-gpus",
        lambda s: s.has(*MISSING) and s.below(80) and s.says(_KERNELS),
        {"kernel-min-compute-capability": 5, "build-wrong-arch-flags": -2, "build-lacks-old-arch": -1},
        "{gpu} has compute capability {cc}: these kernels are written for later ones",
        "FlashInfer, Marlin, SageAttention",
    ),
)
