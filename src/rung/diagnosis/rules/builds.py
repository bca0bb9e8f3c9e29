"""Which build meets which device, driver and system."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.gpus import capability
from rung.diagnosis.rules.known import DIED, FOR_CUDA, FROM_SOURCE, LATE, MISSING, NO_GPU, PREBUILT, WRONG_CODE

_NVIDIA = "NVIDIA, CUDA C++ Programming Guide, compute capabilities"
_TORCH = "torch, build configuration of the wheels"
_CATALOG = "NVIDIA, CUDA toolkit release notes, first toolkit of an architecture"
_OF_CPU_BUILD = ("architectures-unknown", "extension-for-cuda", "is-available-false", "torch-library-missing")
_RUNTIME = ("cuda-no-kernel-image", "cuda-invalid-device-function", "invalid-device-function-short")
_UNSEEN = (
    "is-available-false",
    "gpu-unused-symptom",
    "gpu-hidden",
    "no-cuda-device",
    "quantiser-without-gpu",
    "cuda-init-unknown",
    "device-is-the-processor",
    "webui-without-gpu",
)
_BITSANDBYTES = ("bnb-setup-path", "bnb-required-library", "bnb-native-missing", "bnb-cpu-library", "bnb-setup-failed")
#: What the driver's assembler says, as against the toolkit's.
_LINKED = "application ptx input|cuLink(?:AddData|Complete)|cuModuleLoad"
#: What a program of TensorFlow prints about GPUs, and releases that have none for Windows.
_GPUS_OF_TENSORFLOW = r"(?i)list_physical_devices|list_local_devices|Num GPUs Available:? *0|\bGPU is not available$"
_AFTER_WINDOWS = r"(?i)'2\.1[1-9]\.|(?:tensorflow|tf|version)\S* ?[=:]*'? ?2\.(?:1[1-9]|2\d)"
#: From this compute capability on, code for the first GPUs of a generation serves the later ones.
_MINOR = 80
#: Where a log lists the architectures of a build.
_LISTED = ("torch-arch-warning", "torch-arch-list", "arch-list-shown")
_CONTAINER = r"(?i)docker|container|podman|nvidia/cuda:|\bwsl|kubernetes|\bvm\b|proxmox"
#: Extensions that are compiled apart from torch.
_EXTENSION = (
    r"(?i)ggml|llama_cpp|llama-cpp|llama\.cpp|csrc|setup\.py|docker|build_ext|_ext\b|rasteriz|pointnet|\.cu:\d+"
    r"|_cuda_kernel|im2col|mmcv|detectron|tiny-?cuda|tcnn|apex|deepspeed|gsplat|simple.knn|cudaCheckError|darknet"
    r"|\bdlib|relion|gromacs|sanity checking device|lammps|kokkos|openfold|minkowski|torchsparse|fused.?ssim|colmap"
    r"|CUDA_ARCH|-gencode|correlation|kernel_wrapper|roi_?align|deform|spconv|torch_scatter|exllama|auto_?gptq|awq_"
    r"|opencv|cv::cuda|\bcv2\b"
)
#: Places in torch's own sources, which stand in messages of old releases.
_OF_TORCH = re.compile(r"[^\s:]{0,200}(?:aten/src|/THC/|/THCGeneral|c10/cuda)[^\s:]{0,200}:\d+")


def _newer_than_build(scene: Scene) -> bool:
    facts = scene.facts
    return bool(facts.capability and facts.compiled_for and facts.capability > max(facts.compiled_for))


def _older_than_build(scene: Scene) -> bool:
    facts = scene.facts
    return bool(facts.capability and facts.compiled_for and facts.capability < min(facts.compiled_for))


def _outside(scene: Scene) -> bool:
    return _newer_than_build(scene) or _older_than_build(scene)


def first_cuda(value: int | None) -> tuple[int, int] | None:
    """The first toolkit whose code runs on a compute capability, as the catalogue has it: since Ampere code for an
    older one of the same generation does; before, CUDA's libraries did not."""
    from rung.hardware import catalog  # rarely asked, and slow to read

    found: list[tuple[int, int]] = []
    for row in catalog.architectures().values() if value is not None else ():
        own = capability(row.cc) if row.vendor == "nvidia" and row.min_cuda else None
        if (
            own is not None
            and value is not None
            and (own == value or (value >= _MINOR and own // 10 == value // 10 and own < value))
        ):
            major, _, minor = str(row.min_cuda).partition(".")
            found.append((int(major), int(minor or 0)))
    return min(found, default=None)


def _cuda_before_gpu(scene: Scene) -> bool:
    first = first_cuda(scene.facts.capability) if scene.facts.cuda else None
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


def _in_list(scene: Scene) -> bool:
    return scene.facts.capability is not None and scene.facts.capability in scene.facts.compiled_for


def _two_cudas(scene: Scene) -> bool:
    found = (scene.facts.toolkit, scene.facts.cuda)
    return scene.has("bnb-setup-path") and None not in found and found[0] != found[1]


def _tensorflow_on_windows(scene: Scene) -> bool:
    asked = scene.facts.windows and re.search(_GPUS_OF_TENSORFLOW, scene.said) is not None
    return asked and re.search(_AFTER_WINDOWS, f"{scene.said} {scene.facts.stated}") is not None


def _amd_crashes(scene: Scene) -> bool:
    amd = scene.vendor == "amd" or (scene.vendor != "nvidia" and scene.says(r"(?i)rocm|gfx\d{2}"))
    return amd and scene.has(*DIED) and not scene.says("(?i)wgpu|vulkan|cubecl|directx")


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
        "narrow-floats-left-out",
        lambda s: s.has("no-compiled-kernel") and (s.from_(100) or (s.from_(89) and not s.says("(?i)fp4"))),
        {"fp8-fp4-unsupported-gpu": -3.5, "build-lacks-new-arch": 4},
        "{gpu} has compute capability {cc} and computes in this format: the build leaves the kernel out",
        _NVIDIA,
    ),
    Rule(
        "new-gpu",
        lambda s: s.from_(89) and s.has("torch-arch-warning", "device-not-for-torch", *MISSING),
        {"build-lacks-new-arch": 2, "build-lacks-old-arch": -3},
        "{gpu} has compute capability {cc}: newer than many builds",
        _TORCH,
    ),
    Rule(
        "old-gpu",
        lambda s: (
            (
                s.below(70)
                and s.has("torch-arch-warning", "device-not-for-torch", "cudnn-arch", "cublas-arch-mismatch", *MISSING)
            )
            or (s.below(75) and s.has("machine-capability-refused"))
        ),
        {"build-lacks-old-arch": 2, "build-lacks-new-arch": -3},
        "{gpu} has compute capability {cc}: newer builds have dropped it",
        _TORCH,
    ),
    Rule(
        "middle-gpu",
        lambda s: s.from_(70) and s.below(89) and s.has(*MISSING) and not _outside(s) and not s.about(PREBUILT),
        {"build-wrong-arch-flags": 1.5, "build-lacks-old-arch": -0.7, "build-lacks-new-arch": -0.7},
        "{gpu} has compute capability {cc}, which the official builds hold",
        _TORCH,
    ),
    Rule(
        "local-build",
        lambda s: (
            s.has(*MISSING) and re.search(_EXTENSION, _OF_TORCH.sub("", s.text)) is not None and not s.about(PREBUILT)
        ),
        {"build-wrong-arch-flags": 2},
        "the code that is missing belongs to an extension that was compiled apart",
        "ggml and torch extensions are compiled for a list of architectures",
    ),
    Rule(
        "built-here",
        lambda s: s.has(*MISSING) and s.about(FROM_SOURCE),
        {"build-wrong-arch-flags": 2.8},
        "it was compiled on a machine, for a list of GPUs of its own",
        _TORCH,
    ),
    Rule(
        "not-torch",
        lambda s: (
            s.has(*_RUNTIME)
            and not s.says(r"RuntimeError: CUDA error|PyTorch|torch|\bHIP|\bROCm")
            and not s.about(PREBUILT)
        ),
        {"build-wrong-arch-flags": 1.2},
        "the message is not torch's: a program with kernels of its own raised it",
        "CUDA runtime, cudaErrorNoKernelImageForDevice",
    ),
    Rule(
        "same-arch-in-list",
        lambda s: _in_list(s) and s.has(*MISSING),
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
        lambda s: s.vendor == "amd" and s.has(*MISSING, "gpu-ignored-as-old"),
        {"rocm-arch-unsupported": 4, "build-lacks-new-arch": -2, "build-lacks-old-arch": -2},
        "{gpu} is an AMD GPU: what holds no code for it was built for ROCm",
        "AMD, ROCm compatibility matrix",
    ),
    Rule(
        "hip-missing-code",
        lambda s: s.has(*MISSING) and s.says(r"\bHIP error|\bhip[A-Z]|\bROCm\b|\w\.hip\b"),
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
        lambda s: s.about(r"\+cpu\b|version\.cuda is None") and s.has(*NO_GPU, *_OF_CPU_BUILD, "webui-without-gpu"),
        {"cpu-only-build": 4, "gpu-not-visible": -2},
        "the torch installed is a CPU build (+cpu)",
        _TORCH,
    ),
    Rule(
        "cpu-wheel-on-windows",
        lambda s: (
            s.facts.windows
            and s.has("is-available-false", "quantiser-without-gpu", "torch-without-cuda")
            and s.facts.build is None
            and not s.facts.without_gpu
        ),
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
        lambda s: s.facts.apple and s.has(*FOR_CUDA),
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
        lambda s: s.facts.windows and s.has(*_BITSANDBYTES, "bnb-cpu-symbol"),
        {"platform-binary-missing": 2.5},
        "older bitsandbytes has no libraries for Windows",
        "bitsandbytes, release notes of 0.43",
    ),
    Rule(
        "build-before-gpu",
        lambda s: s.has(*MISSING, *WRONG_CODE) and _cuda_before_gpu(s),
        {"build-lacks-new-arch": 3.5, "build-wrong-arch-flags": -2.5, "cuda-toolkit-mismatch": -1},
        "{gpu} has compute capability {cc}, which the CUDA of this build does not know yet",
        _CATALOG,
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
            s.has("invalid-ptx", "ptx-version", "cuda-init-unknown", "is-available-false", *MISSING, *WRONG_CODE)
            and _driver_before_cuda(s)
        ),
        {"driver-too-old": 4, "compiler-arch-unsupported": -1, "build-wrong-arch-flags": -1, "gpu-not-visible": -4},
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
        "mac-asked-for-cuda",
        lambda s: s.facts.apple and s.has("torch-without-cuda", "deserialize-cuda"),
        {"not-a-compatibility-problem": 1.5, "cpu-only-build": -2},
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
