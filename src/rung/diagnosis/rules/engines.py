"""Hold what inference engines and servers ask of a GPU, and which of their messages the device settles."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene

_NVIDIA = "NVIDIA, CUDA C++ Programming Guide, compute capabilities"
#: 8- and 4-bit floating point, and 8-bit integers, as calls and options name them.
_NARROW = r"(?i)_?scaled_mm|float8|fp8|\bfp4|nvfp4|float4"


#: An assembler's refusal of what a generation has under a target with a letter only.
_PLAIN_TARGET = re.compile(
    r"not supported on \.target 'sm_90'|(?:Instruction|Feature) '(?!wgmma)[^'\n]{1,60}' not supported on "
    r"\.target 'sm_10[03]'"
    r"|(?:Instruction|Feature) '(?!wgmma|tcgen05)[^'\n]{1,60}' not supported on \.target 'sm_12[01]'"
)


def _made_for_older(scene: Scene) -> bool:
    here, made = scene.words.get("here", ""), scene.words.get("made", "")
    return here.isdigit() and made.isdigit() and int(here) // 10 > int(made) // 10


def _computes_narrow(scene: Scene) -> bool:
    """Return whether the GPU computes in the narrow floats that the log speaks of."""
    return scene.from_(100) or (scene.from_(89) and not scene.says("(?i)fp4|float4"))


#: The CUDA that each branch of the driver came with.
_CAME_WITH = dict(
    zip(
        (440, 450, 455, 460, 465, 470, 495, 510, 515, 520, 525, 530, 535, 545, 550, 555, 560, 565, 570, 575, 580),
        ((10, 2), *((11, minor) for minor in range(9)), *((12, minor) for minor in range(10)), (13, 0)),
        strict=True,
    )
)


def _driver_of_earlier_cuda(scene: Scene) -> bool:
    named = re.match(r"\d{3}", scene.facts.driver)
    own = _CAME_WITH.get(int(named[0])) if named else None
    return own is not None and scene.facts.cuda is not None and own < scene.facts.cuda


RULES: tuple[Rule, ...] = (
    Rule(
        "target-without-letter",
        lambda s: _PLAIN_TARGET.search(s.text) is not None,
        {
            "build-wrong-arch-flags": 7,
            "fp8-fp4-unsupported-gpu": -5,
            "kernel-min-compute-capability": -3,
            "compiler-arch-unsupported": -2,
        },
        "the instruction exists on this generation, for code that names it with its letter only (sm_90a, sm_120a)",
        "NVIDIA, PTX ISA, architecture-specific features",
    ),
    Rule(
        "fell-back-on-newer-gpu",
        lambda s: s.has("weight-only-fallback") and (s.from_(100) or (s.from_(89) and not s.says("(?i)fp4"))),
        {"software-defect": 4.5, "slow-dtype-path": -2, "fp8-fp4-unsupported-gpu": -3},
        "{gpu} has compute capability {cc} and computes in this format: the program took it for an older one",
        _NVIDIA,
    ),
    Rule(
        "int8-method",
        lambda s: (
            s.has("quantisation-min-capability")
            and s.below(75)
            and re.search(r"(?i)w8a8|\bint8\b", f"{s.text} {s.said}") is not None
        ),
        {"int8-matmul-unsupported-gpu": 5, "kernel-min-compute-capability": -2.5},
        "{gpu} has compute capability {cc}; int8 matrix units came with 7.5",
        _NVIDIA,
    ),
    Rule(
        "int8-of-odd-shape",
        lambda s: s.has("int8-refused") and s.says(r"(?i)cublasLt status 7\b|CUBLAS_STATUS_INVALID_VALUE"),
        {"kernel-shape-constraint": 7, "int8-matmul-unsupported-gpu": -2.5},
        "cuBLASLt refuses the values and not the GPU: int8 wants dimensions that are multiples of 4",
        "cuBLAS documentation, cublasLtMatmul",
    ),
    Rule(
        "flashinfer-on-turing",
        lambda s: s.has("flashinfer-configuration") and s.below(80),
        {"kernel-min-compute-capability": 5, "kernel-shape-constraint": -2},
        "{gpu} has compute capability {cc}, and less shared memory than these kernels are laid out for",
        "FlashInfer, prefill.cuh",
    ),
    Rule(
        "narrow-floats-are-there",
        lambda s: (
            (s.has("topic-fp8", "scaled-product-left-out") and _computes_narrow(s))
            or (s.has("float8-scales-refused") and s.from_(90))
        ),
        {"fp8-fp4-unsupported-gpu": -2.5, "software-defect": 1},
        "{gpu} has compute capability {cc} and computes in this format",
        _NVIDIA,
    ),
    Rule(
        "narrow-types-on-apple",
        lambda s: s.has("topic-fp8", "topic-bf16") and s.says(r"\b(?:MPS|mps|Mac|MacBook|macOS|Apple|M[1-5])\b"),
        {"mps-dtype-unsupported": 4, "fp8-fp4-unsupported-gpu": -1, "bf16-unsupported-gpu": -1},
        "Apple's GPUs have no 8-bit floating point, and the first of them no bfloat16",
        "torch, MPS backend",
    ),
    Rule(
        "kernels-of-blackwell",
        lambda s: (
            s.from_(100)
            and (s.has("scaled-product-left-out", "gemm-without-tactic") or s.says(r"Arch must be one of \d"))
        ),
        {"build-lacks-new-arch": 3.5, "kernel-min-compute-capability": -1.5},
        "{gpu} has compute capability {cc}: newer than the kernels of many releases",
        "SGLang, sgl-kernel; TensorRT-LLM",
    ),
    Rule(
        "narrow-floats-before-ada",
        lambda s: s.has("scaled-product-left-out") and s.below(89),
        {"fp8-fp4-unsupported-gpu": 2.5, "build-lacks-new-arch": -2},
        "{gpu} has compute capability {cc}; 8-bit floating point is computed from 8.9 on",
        _NVIDIA,
    ),
    Rule(
        "product-in-narrow-floats",
        lambda s: s.has("cublas-not-supported") and s.says(_NARROW) and not s.from_(90),
        {"fp8-fp4-unsupported-gpu": 4.5, "cuda-toolkit-mismatch": -1, "software-defect": -1},
        "the refused multiplication is in 8- or 4-bit floating point",
        "cuBLAS documentation, cublasLtMatmul",
    ),
    Rule(
        "image-for-older-gpu",
        _made_for_older,
        {"build-lacks-new-arch": 3, "build-wrong-arch-flags": -1},
        "the GPU is of a later generation than the one compiled for",
        "Text Embeddings Inference, supported hardware",
    ),
    Rule(
        "compatibility-library-found",
        lambda s: s.has("driver-combination", "forward-compat") and s.about(r"cuda[\w.-]*/compat|libcuda.{0,20}compat"),
        {"cuda-toolkit-mismatch": 4, "driver-too-old": -1},
        "the compatibility library of a CUDA is found before the driver's own",
        "NVIDIA, CUDA compatibility",
    ),
    Rule(
        "driver-of-earlier-cuda",
        lambda s: s.has("forward-compat", "driver-combination") and _driver_of_earlier_cuda(s),
        {"driver-too-old": 2.4},
        "the driver named came with an earlier CUDA than the one that asks",
        "NVIDIA, CUDA toolkit release notes: drivers",
    ),
    Rule(
        "compatibility-in-container",
        lambda s: s.has("forward-compat") and s.about(r"(?i)docker|nvcr\.io|nvidia/cuda|/opt/conda/|\bcontainer\b"),
        {"driver-too-old": 1.8},
        "a container brings the library of its own CUDA, which only cards for servers run on an older driver",
        "NVIDIA, CUDA compatibility: forward compatibility",
    ),
    Rule(
        "driver-changed-under-it",
        lambda s: s.has("nvml") and s.says("Driver/library version mismatch"),
        {"gpu-not-visible": 3, "driver-too-old": -2},
        "the driver was updated and the old one is still loaded: a restart loads the new one",
        "NVML, NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    ),
    Rule(
        "device-type-without-gpu",
        lambda s: s.says("Failed to infer device type") and (s.facts.apple or s.facts.without_gpu or s.facts.windows),
        {"cpu-only-build": 4, "platform-binary-missing": 3, "gpu-not-visible": -5},
        "there is no GPU of CUDA or ROCm here, and the package installed is made for one",
        "vLLM, installation",
    ),
    Rule(
        "list-given-by-hand",
        lambda s: (
            s.has("cuda-no-kernel-image", "cuda-invalid-device-function", "ptx-feature", "requires-sm")
            and s.about(r"(?i)cuda_architectures|TORCH_CUDA_ARCH_LIST ?=|CUDAARCHS|NVCC_ARCHS|DISABLE_SM\d+")
        ),
        {"build-wrong-arch-flags": 3},
        "the list of architectures was given by hand",
        "CMake and torch, lists of architectures",
    ),
    Rule(
        "bf16-not-taken-before-ampere",
        lambda s: (
            s.has("dtype-not-taken", "dtype-without-operation")
            and s.facts.dtypes == {"bf16"}
            and s.below(80)
            and s.from_(50)
        ),
        {"bf16-unsupported-gpu": 4.5},
        "{gpu} has compute capability {cc}; bfloat16 is computed from 8.0 on",
        _NVIDIA,
    ),
    Rule(
        "attention-of-dropped-gpu",
        lambda s: s.has("memory-efficient-none") and s.below(60),
        {"build-lacks-old-arch": 5, "bf16-unsupported-gpu": -3},
        "{gpu} has compute capability {cc}: newer builds of torch hold no kernels for it",
        "torch, build configuration of the wheels",
    ),
    Rule(
        "device-taken-by-windows",
        lambda s: (
            s.has("device-suspended", "feature-level") and s.has("directml-npu", "directml-other", "topic-directml")
        ),
        {"xpu-directml-unsupported": -4.5, "gpu-out-of-memory": 1},
        "it is DirectX that lost the device, whatever runs on it",
        "DirectX, DXGI_ERROR",
    ),
    Rule(
        "memory-of-directml",
        lambda s: s.has("map-file-failed") and s.says(r"(?i)\bdml|directml|MLOperator|onnxruntime"),
        {"gpu-out-of-memory": 6, "host-out-of-memory": -4, "xpu-directml-unsupported": -1},
        "it is the GPU's memory that DirectML asked for",
        "DirectX, E_OUTOFMEMORY",
    ),
    Rule(
        "bindings-for-other-processor",
        lambda s: s.has("bindings-not-compiled") and s.about(r"(?i)\bjetson|\baarch64|\barm64|Python 3\.1[3-9]|\bmusl"),
        {"platform-binary-missing": 2.5},
        "there is no wheel with the compiled part for this processor or Python",
        "PyPI, files of the packages",
    ),
    Rule(
        "cudnn-of-older-torch",
        lambda s: (
            s.words.get("library", "").startswith("libcudnn")
            and s.words["library"].endswith(".so.8")
            and s.facts.torch is not None
            and s.facts.torch >= (2, 4)
        ),
        {"cuda-toolkit-mismatch": 3, "cuda-library-not-found": -1},
        "torch has brought cuDNN 9 since 2.4: what asks for cuDNN 8 was built for an older one",
        "torch, release notes of 2.4",
    ),
)
