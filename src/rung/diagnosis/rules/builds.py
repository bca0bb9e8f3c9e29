"""Which build meets which device, driver and system."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.gpus import capability
from rung.diagnosis.rules.known import LATE, MISSING, WRONG_CODE

_NVIDIA = "NVIDIA, CUDA C++ Programming Guide, compute capabilities"
_TORCH = "torch, build configuration of the wheels"
_CATALOGUE = "NVIDIA, CUDA toolkit release notes, first toolkit of an architecture"
_NO_GPU = ("torch-without-cuda", "no-cuda-device", "deserialize-cuda", "cuda-init-unknown")
_RUNTIME = ("cuda-no-kernel-image", "cuda-invalid-device-function", "invalid-device-function-short")
_UNSEEN = ("is-available-false", "gpu-unused-symptom", "gpu-hidden", "no-cuda-device", "cuda-init-unknown")
_BITSANDBYTES = ("bnb-setup-path", "bnb-required-library", "bnb-native-missing", "bnb-cpu-library", "bnb-setup-failed")
#: What the driver's assembler says, as against the toolkit's.
_LINKED = "application ptx input|cuLinkAddData|cuModuleLoad"
#: What a program of TensorFlow prints about GPUs, and releases that have none for Windows.
_GPUS_OF_TENSORFLOW = r"list_physical_devices|Num GPUs Available:? *0"
_AFTER_WINDOWS = r"(?i)'2\.1[1-9]\.|(?:tensorflow|tf|version)\S* ?[=:]*'? ?2\.(?:1[1-9]|2\d)"
#: Where a log lists the architectures of a build.
_LISTED = ("torch-arch-warning", "torch-arch-list", "arch-list-shown")
_CONTAINER = r"(?i)docker|container|podman|nvidia/cuda:|\bwsl|kubernetes|\bvm\b|proxmox"
#: Extensions that are compiled apart from torch.
_EXTENSION = (
    r"(?i)ggml|llama_cpp|llama-cpp|llama\.cpp|csrc|setup\.py|docker|build_ext|_ext\b|rasteriz|pointnet|\.cu:\d+"
    r"|_cuda_kernel|im2col|mmcv|detectron|tiny-?cuda|tcnn|apex|deepspeed|gsplat|simple.knn|cudaCheckError|darknet"
    r"|correlation|kernel_wrapper|roi_?align|deform|spconv|torch_scatter|exllama|auto_?gptq|awq_"
)


def _newer_than_build(scene: Scene) -> bool:
    facts = scene.facts
    return bool(facts.capability and facts.compiled_for and facts.capability > max(facts.compiled_for))


def _older_than_build(scene: Scene) -> bool:
    facts = scene.facts
    return bool(facts.capability and facts.compiled_for and facts.capability < min(facts.compiled_for))


def _first_cuda(value: int | None) -> tuple[int, int] | None:
    """The first toolkit that compiles for a compute capability, as the catalogue has it."""
    from rung.hardware import catalog  # rarely asked, and slow to read

    for row in catalog.architectures().values() if value is not None else ():
        if row.vendor == "nvidia" and capability(row.cc) == value and row.min_cuda:
            major, _, minor = row.min_cuda.partition(".")
            return int(major), int(minor or 0)
    return None


def _cuda_before_gpu(scene: Scene) -> bool:
    first = _first_cuda(scene.facts.capability) if scene.facts.cuda else None
    return first is not None and scene.facts.cuda is not None and scene.facts.cuda < first


def _gpu_is_there(scene: Scene) -> bool:
    there = scene.vendor == "nvidia" or bool(scene.facts.driver) or scene.facts.cuda is not None
    return scene.has("torch-without-cuda") and there


def _driver_before_cuda(scene: Scene) -> bool:
    facts = scene.facts
    if not facts.driver or facts.cuda is None:
        return False
    from rung.hardware.catalog.releases import old_driver

    return old_driver(facts.driver, facts.cuda[0], "windows" if facts.windows else "linux")


def _other_cuda(scene: Scene) -> bool:
    named = scene.words.get("library") or scene.words.get("loaded") or ""
    found = re.match(r"lib(?:cudart|cublas|cublasLt|nvrtc)\.so\.(\d+)(?:\.(\d+))?", named)
    here = scene.facts.cuda
    if found is None or here is None:
        return False
    before_11 = int(found[1]) < 11  # their names had the minor version too
    return int(found[1]) != here[0] or (before_11 and found[2] is not None and int(found[2]) != here[1])


def _two_cudas(scene: Scene) -> bool:
    found = (scene.facts.toolkit, scene.facts.cuda)
    return scene.has("bnb-setup-path") and None not in found and found[0] != found[1]


def _tensorflow_on_windows(scene: Scene) -> bool:
    asked = scene.facts.windows and re.search(_GPUS_OF_TENSORFLOW, scene.said) is not None
    return asked and re.search(_AFTER_WINDOWS, f"{scene.said} {scene.facts.stated}") is not None


def _amd_crashes(scene: Scene) -> bool:
    amd = scene.vendor == "amd" or (scene.vendor != "nvidia" and scene.says(r"(?i)rocm|gfx\d{3}"))
    return amd and scene.has("crash", "gpu-fell-off") and not scene.says("(?i)wgpu|vulkan|cubecl|directx")


RULES: tuple[Rule, ...] = (
    Rule(
        "newer-than-the-build",
        lambda s: _newer_than_build(s) and s.has(*_LISTED, *MISSING),
        {"build-lacks-new-arch": 3.5, "build-lacks-old-arch": -3, "build-wrong-arch-flags": -1},
        "{gpu} has compute capability {cc}; the build holds code for {archs} only",
        _TORCH,
    ),
    Rule(
        "older-than-the-build",
        lambda s: _older_than_build(s) and s.has(*_LISTED, *MISSING),
        {"build-lacks-old-arch": 3.5, "build-lacks-new-arch": -3, "build-wrong-arch-flags": -1},
        "{gpu} has compute capability {cc}; the build holds code for {archs} only",
        _TORCH,
    ),
    Rule(
        "tensorflow-without-windows",
        _tensorflow_on_windows,
        {"cpu-only-build": 5, "platform-binary-missing": 2},
        "TensorFlow computes on no GPU of Windows after 2.10",
        "TensorFlow, installation on Windows",
    ),
    Rule(
        "older-than-all-of-ggml",
        lambda s: _older_than_build(s) and s.has("ggml-no-device-code"),
        {"build-lacks-old-arch": 6, "build-wrong-arch-flags": -2},
        "{gpu} has compute capability {cc}; the oldest that it was compiled for is newer: {archs}",
        "llama.cpp, ggml-cuda",
    ),
    Rule(
        "narrow-floats-left-out",
        lambda s: s.has("no-compiled-kernel") and (s.from_(100) or (s.from_(89) and not s.says("(?i)fp4"))),
        {"fp8-fp4-unsupported-gpu": -3.5, "build-lacks-new-arch": 4},
        "{gpu} has compute capability {cc} and computes in this format: the build leaves the kernel out",
        _NVIDIA,
    ),
    Rule(
        "new-gpu",
        lambda s: s.from_(89) and s.has("torch-arch-warning", *MISSING),
        {"build-lacks-new-arch": 2, "build-lacks-old-arch": -3},
        "{gpu} has compute capability {cc}: newer than many builds",
        _TORCH,
    ),
    Rule(
        "old-gpu",
        lambda s: (
            (s.below(70) and s.has("torch-arch-warning", "cudnn-arch", "cublas-arch-mismatch", *MISSING))
            or (s.below(75) and s.has("machine-capability-refused"))
        ),
        {"build-lacks-old-arch": 2, "build-lacks-new-arch": -3},
        "{gpu} has compute capability {cc}: newer builds have dropped it",
        _TORCH,
    ),
    Rule(
        "middle-gpu",
        lambda s: s.from_(70) and s.below(89) and s.has(*MISSING),
        {"build-wrong-arch-flags": 1.5, "build-lacks-old-arch": -0.7, "build-lacks-new-arch": -0.7},
        "{gpu} has compute capability {cc}, which the official builds hold",
        _TORCH,
    ),
    Rule(
        "local-build",
        lambda s: s.has(*MISSING) and s.says(_EXTENSION),
        {"build-wrong-arch-flags": 2},
        "the code that is missing belongs to an extension that was compiled apart",
        "ggml and torch extensions are compiled for a list of architectures",
    ),
    Rule(
        "built-here",
        lambda s: s.has(*MISSING) and s.about(r"(?i)\b(?:built|build|compiled?|compiling)\b.{0,20}\bfrom source"),
        {"build-wrong-arch-flags": 2.8},
        "it was compiled on a machine, for a list of GPUs of its own",
        _TORCH,
    ),
    Rule(
        "not-torch",
        lambda s: s.has(*_RUNTIME) and not s.says(r"RuntimeError: CUDA error|PyTorch|torch|\bHIP|\bROCm"),
        {"build-wrong-arch-flags": 1.2},
        "the message is not torch's: a program with kernels of its own raised it",
        "CUDA runtime, cudaErrorNoKernelImageForDevice",
    ),
    Rule(
        "same-arch-in-list",
        lambda s: s.facts.capability is not None and s.facts.capability in s.facts.compiled_for and s.has(*MISSING),
        {"build-wrong-arch-flags": 3},
        "the build lists {cc}, and yet the code is not there",
        _TORCH,
    ),
    Rule(
        "old-card-dropped",
        lambda s: s.below(61) and s.has("no-longer-supporting-gpu"),
        {"build-lacks-old-arch": 2.5},
        "{gpu} has compute capability {cc}",
        _NVIDIA,
    ),
    Rule(
        "amd-missing-code",
        lambda s: s.vendor == "amd" and s.has(*MISSING, "triton-lowering"),
        {"rocm-arch-unsupported": 4, "build-lacks-new-arch": -2, "build-lacks-old-arch": -2},
        "{gpu} is an AMD GPU: what holds no code for it was built for ROCm",
        "AMD, ROCm compatibility matrix",
    ),
    Rule(
        "hip-missing-code",
        lambda s: s.has(*MISSING) and s.says(r"\bHIP error|\bhip[A-Z]|\bROCm\b"),
        {"rocm-arch-unsupported": 3, "build-wrong-arch-flags": -1.5},
        "the message is HIP's, AMD's runtime",
        "HIP runtime",
    ),
    Rule(
        "ggml-floor-on-ampere",
        lambda s: s.from_(80) and s.has("ggml-arch-floor"),
        {"software-defect": 2},
        "{gpu} has compute capability {cc}, above the floor named: the comparison itself is wrong",
        "https://github.com/ggml-org/llama.cpp/issues/15589",
    ),
    Rule(
        "cpu-wheel",
        lambda s: s.says(r"\+cpu\b") and s.has(*_NO_GPU),
        {"cpu-only-build": 4, "gpu-not-visible": -2},
        "the torch installed is a CPU build (+cpu)",
        _TORCH,
    ),
    Rule(
        "cpu-wheel-on-windows",
        lambda s: s.facts.windows and s.has("is-available-false") and s.facts.build is None and not s.facts.without_gpu,
        {"cpu-only-build": 1.2},
        "on Windows the package index gives torch without CUDA unless its own index is named",
        _TORCH,
    ),
    Rule(
        "gpu-is-there",
        _gpu_is_there,
        {"cpu-only-build": 1.5},
        "there is an NVIDIA GPU or CUDA here, so the build is in the way",
        _TORCH,
    ),
    Rule(
        "mac-without-cuda",
        lambda s: s.facts.apple and s.has("requires-accelerate", "bnb-cpu-library", "bnb-setup-failed"),
        {"platform-binary-missing": 3.5},
        "there is no CUDA on macOS",
        "Apple, macOS",
    ),
    Rule(
        "bnb-path-empty",
        lambda s: s.has("bnb-setup-path") and s.says(r"libcudart\.so: set\(\)") and not s.facts.windows,
        {"cuda-library-not-found": 1.5},
        "bitsandbytes found no CUDA run time anywhere",
        "bitsandbytes, cuda_setup",
    ),
    Rule(
        "bnb-two-cudas",
        _two_cudas,
        {"cuda-toolkit-mismatch": 2.5},
        "the system has another CUDA than torch was built with",
        "bitsandbytes, cuda_setup",
    ),
    Rule(
        "bnb-on-windows",
        lambda s: s.facts.windows and s.has(*_BITSANDBYTES),
        {"platform-binary-missing": 2.5},
        "older bitsandbytes has no libraries for Windows",
        "bitsandbytes, release notes of 0.43",
    ),
    Rule(
        "build-before-gpu",
        lambda s: s.has(*MISSING, *WRONG_CODE) and _cuda_before_gpu(s),
        {"build-lacks-new-arch": 3, "build-wrong-arch-flags": -1, "cuda-toolkit-mismatch": -1},
        "{gpu} has compute capability {cc}, which the CUDA of this build does not know yet",
        _CATALOGUE,
    ),
    Rule(
        "named-cuda-call",
        lambda s: s.has("torch-without-cuda") and s.says(r"\.cuda\(\)|device ?= ?.cuda|\.to\(.cuda"),
        {"not-a-compatibility-problem": 1.4},
        "the program asks for CUDA by name",
        "torch, Tensor.cuda",
    ),
    Rule(
        "no-gpu-named",
        lambda s: s.facts.without_gpu and s.has("torch-without-cuda", "deserialize-cuda"),
        {"not-a-compatibility-problem": 2.5, "cpu-only-build": -0.5},
        "there is no GPU here: the program must ask for another device",
        "torch, Tensor.cuda",
    ),
    Rule(
        "driver-before-cuda",
        lambda s: (
            s.has("invalid-ptx", "ptx-version", "cuda-init-unknown", "is-available-false", *MISSING)
            and _driver_before_cuda(s)
        ),
        {"driver-too-old": 4, "compiler-arch-unsupported": -1, "build-wrong-arch-flags": -1},
        "the driver is older than the first that runs this CUDA",
        "NVIDIA, CUDA compatibility: the lowest driver of each major version",
    ),
    Rule(
        "assembler-named",
        lambda s: s.has("ptx-version") and s.says("ptxas|nvcc") and not s.says(_LINKED),
        {"cuda-toolkit-mismatch": 2, "driver-too-old": -1},
        "the assembler of another CUDA toolkit refuses what the compiler wrote",
        "ptxas",
    ),
    Rule(
        "driver-reads-ptx",
        lambda s: s.has("ptx-version") and s.says(_LINKED),
        {"driver-too-old": 3, "cuda-toolkit-mismatch": -1},
        "it is the driver's own assembler that refuses what a newer compiler wrote",
        "CUDA driver API, cuLinkAddData",
    ),
    Rule(
        "library-of-other-cuda",
        _other_cuda,
        {"cuda-toolkit-mismatch": 3, "cuda-library-not-found": -1},
        "the library that is missing belongs to another version of CUDA than the one here",
        "CUDA toolkit, names of its libraries",
    ),
    Rule(
        "mac-asked-for-cuda",
        lambda s: s.facts.apple and s.has("torch-without-cuda", "deserialize-cuda"),
        {"not-a-compatibility-problem": 1.5, "cpu-only-build": -0.5},
        "there is no CUDA on macOS: the program must ask for another device",
        "Apple, macOS",
    ),
    Rule(
        "in-a-container",
        lambda s: s.has(*_UNSEEN) and s.about(_CONTAINER),
        {"gpu-not-visible": 1.5, "cpu-only-build": -0.5},
        "the program runs in a container or a virtual machine",
        "NVIDIA container toolkit",
    ),
    Rule(
        "jetson-wheel",
        lambda s: s.has(*_UNSEEN, "torch-without-cuda") and s.about(r"(?i)\bjetson|\btegra|\bjetpack|\bL4T\b"),
        {"cpu-only-build": 3},
        "on Jetson the package index gives torch without CUDA: NVIDIA builds its own for JetPack",
        "NVIDIA, PyTorch for Jetson",
    ),
    Rule(
        "page-file-before-library",
        lambda s: s.has("paging-file") and s.has("cuda-module-missing"),
        {"cuda-library-not-found": -4},
        "the library is there: Windows could not promise the memory to load it",
        "Windows, ERROR_COMMITMENT_LIMIT",
    ),
    Rule(
        "cpu-version-named",
        lambda s: s.has("cpu-build-installed") and s.has("is-available-false", "gpu-unused-symptom"),
        {"cpu-only-build": 2},
        "the torch installed is a CPU build (+cpu)",
        _TORCH,
    ),
    Rule(
        "amd-crash",
        _amd_crashes,
        {"rocm-arch-unsupported": 3.6},
        "{gpu} is an AMD GPU: code for another one crashes on it",
        "AMD, ROCm compatibility matrix",
    ),
    Rule(
        "cublas-in-environment",
        lambda s: s.has(*LATE) and s.about(r"nvidia[-_]cublas|LD_LIBRARY_PATH|cublas \d|cublas-cu"),
        {"cuda-toolkit-mismatch": 2.4},
        "a cuBLAS of its own is named beside torch",
        "torch, loader of the NVIDIA wheels",
    ),
    Rule(
        "crash-in-cuda-library",
        lambda s: s.has("crash") and s.says(r"lib(?:cudnn|cublas|cufft|cusparse)\w*\.so"),
        {"cuda-toolkit-mismatch": 2.2},
        "it crashed inside a CUDA library: one of another version may have been found first",
        "the dynamic loader, LD_LIBRARY_PATH",
    ),
    Rule(
        "triton-on-windows",
        lambda s: s.facts.windows and s.words.get("package", "").startswith("triton"),
        {"platform-binary-missing": 4.4},
        "Triton ships no binary for Windows",
        "https://pypi.org/project/triton/",
    ),
)
