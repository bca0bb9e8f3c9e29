"""The rules themselves; see ``evidence.py`` for what a rule is. To add one: a row here and its case in the tests."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene

_NVIDIA = "NVIDIA, CUDA C++ Programming Guide, compute capabilities"
_TORCH = "torch, build configuration of the wheels"
_NO_GPU = ("torch-without-cuda", "no-cuda-device", "deserialize-cuda", "cuda-init-unknown")
_BITSANDBYTES = ("bnb-setup-path", "bnb-required-library", "bnb-native-missing", "bnb-cpu-library")
_LATE = ("cublas-not-initialized", "cuda-launch-failure", "cublas-execution-failed")
_BF16 = ("cublas-not-supported", "torch-bf16-gemm-build", "bf16-symptom", "find-engine")
_FP8 = ("triton-no-fp8", "scaled-mm-gate", "fp8-gate", "triton-lowering")
_MISSING = ("cuda-no-kernel-image", "cuda-invalid-device-function", "named-symbol", "invalid-ptx")
_NAN = ("nan-symptom", "half-nan-symptom", "nan-probabilities", "invalid-cast")


def _kernel(scene: Scene, pattern: str) -> bool:
    return scene.has("torch-dtype-not-implemented") and bool(re.search(pattern, scene.words.get("kernel", "")))


def _newer_than_build(scene: Scene) -> bool:
    facts = scene.facts
    return bool(facts.capability and facts.compiled_for and facts.capability > max(facts.compiled_for))


def _older_than_build(scene: Scene) -> bool:
    facts = scene.facts
    return bool(facts.capability and facts.compiled_for and facts.capability < min(facts.compiled_for))


def _xformers_too_old(scene: Scene) -> bool:
    asked = scene.has("xformers-none", "xformers-trace") and scene.has("requires-device-capability")
    return asked and not scene.has("xformers-no-cuda")


def _gpu_is_there(scene: Scene) -> bool:
    there = scene.vendor == "nvidia" or bool(scene.facts.driver) or scene.facts.cuda is not None
    return scene.has("torch-without-cuda") and there


def _two_cudas(scene: Scene) -> bool:
    found = (scene.facts.toolkit, scene.facts.cuda)
    return scene.has("bnb-setup-path") and None not in found and found[0] != found[1]


RULES: tuple[Rule, ...] = (
    Rule(
        "bf16-before-ampere",
        lambda s: "bf16" in s.facts.dtypes and s.below(80) and s.has(*_BF16),
        {"bf16-unsupported-gpu": 3.5, "cuda-toolkit-mismatch": -1},
        "{gpu} has compute capability {cc}; bfloat16 matrices need 8.0, or a torch that emulates them",
        _NVIDIA,
    ),
    Rule(
        "bf16-in-cublas-call",
        lambda s: s.has("cublas-not-supported") and s.says("CUDA_R_16BF") and not s.from_(80),
        {"bf16-unsupported-gpu": 2.5},
        "the refused multiplication is in bfloat16 (CUDA_R_16BF)",
        "cuBLAS documentation, cublasGemmEx",
    ),
    Rule(
        "bf16-after-ampere",
        lambda s: s.from_(80) and s.has("torch-bf16-gemm-build", "bf16-symptom", "bf16-autocast-refused"),
        {"bf16-unsupported-gpu": -3, "cuda-toolkit-mismatch": 1.5, "gpu-dtype-op-missing": 1},
        "{gpu} has compute capability {cc} and multiplies bfloat16, so the build is in the way",
        _NVIDIA,
    ),
    Rule(
        "f16-in-cublas-call",
        lambda s: s.has("cublas-not-supported") and s.says(r"CUDA_R_16F\b"),
        {"cuda-toolkit-mismatch": 1.5},
        "half precision is multiplied by every GPU since 5.3, so another cuBLAS than torch's own may answer",
        "cuBLAS documentation, cublasGemmEx",
    ),
    Rule(
        "int8-in-cublas-call",
        lambda s: s.has("cublas-not-supported") and s.says("CUDA_R_8I"),
        {"int8-matmul-unsupported-gpu": 3.5},
        "the refused multiplication is in int8 (CUDA_R_8I)",
        "cuBLAS documentation, cublasLtMatmul",
    ),
    Rule(
        "fp8-in-cublas-call",
        lambda s: s.has("cublas-not-supported") and s.says("CUDA_R_8F"),
        {"fp8-fp4-unsupported-gpu": 3.2, "kernel-shape-constraint": 1},
        "the refused multiplication is in 8-bit floating point (CUDA_R_8F)",
        "cuBLAS documentation, cublasLtMatmul",
    ),
    Rule(
        "lt-heuristic",
        lambda s: s.has("cublas-not-supported") and s.says("cublasLtMatmul") and not s.says("CUDA_R_8|CUDA_R_16BF"),
        {"software-defect": 1.6, "kernel-shape-constraint": 1},
        "cuBLASLt found no algorithm for this layout: a choice of the library, or a shape",
        "cuBLAS documentation, cublasLtMatmulAlgoGetHeuristic",
    ),
    Rule(
        "cublas-without-call",
        lambda s: s.has("cublas-not-supported") and not s.says("when calling"),
        {"software-defect": 1},
        "the program calls cuBLAS itself and does not say how",
        "cuBLAS documentation, cublasStatus_t",
    ),
    Rule(
        "newer-than-the-build",
        lambda s: _newer_than_build(s) and s.has("torch-arch-warning", "torch-arch-list", *_MISSING),
        {"build-lacks-new-arch": 3.5, "build-lacks-old-arch": -3, "build-wrong-arch-flags": -1},
        "{gpu} has compute capability {cc}; the build holds code for {archs} only",
        _TORCH,
    ),
    Rule(
        "older-than-the-build",
        lambda s: _older_than_build(s) and s.has("torch-arch-warning", "torch-arch-list", *_MISSING),
        {"build-lacks-old-arch": 3.5, "build-lacks-new-arch": -3, "build-wrong-arch-flags": -1},
        "{gpu} has compute capability {cc}; the build holds code for {archs} only",
        _TORCH,
    ),
    Rule(
        "new-gpu",
        lambda s: s.from_(89) and s.has("torch-arch-warning", *_MISSING),
        {"build-lacks-new-arch": 2, "build-lacks-old-arch": -3},
        "{gpu} has compute capability {cc}: newer than many builds",
        _TORCH,
    ),
    Rule(
        "old-gpu",
        lambda s: s.below(70) and s.has("torch-arch-warning", "cudnn-arch", "cublas-arch-mismatch", *_MISSING),
        {"build-lacks-old-arch": 2, "build-lacks-new-arch": -3},
        "{gpu} has compute capability {cc}: newer builds have dropped it",
        _TORCH,
    ),
    Rule(
        "middle-gpu",
        lambda s: s.from_(70) and s.below(89) and s.has(*_MISSING),
        {"build-wrong-arch-flags": 1.5, "build-lacks-old-arch": -0.7, "build-lacks-new-arch": -0.7},
        "{gpu} has compute capability {cc}, which the official builds hold",
        _TORCH,
    ),
    Rule(
        "local-build",
        lambda s: (
            s.has(*_MISSING)
            and s.says(
                r"ggml|llama_cpp|llama-cpp|llama\.cpp|csrc|setup\.py|docker|build_ext|_ext\b|rasteriz|pointnet"
                r"|\.cu:\d+"
            )
        ),
        {"build-wrong-arch-flags": 2},
        "the code that is missing belongs to an extension that was compiled apart",
        "ggml and torch extensions are compiled for a list of architectures",
    ),
    Rule(
        "not-torch",
        lambda s: s.has("cuda-no-kernel-image") and not s.says("RuntimeError: CUDA error|PyTorch|torch"),
        {"build-wrong-arch-flags": 1.2},
        "the message is not torch's: a program with kernels of its own raised it",
        "CUDA runtime, cudaErrorNoKernelImageForDevice",
    ),
    Rule(
        "same-arch-in-list",
        lambda s: s.facts.capability is not None and s.facts.capability in s.facts.compiled_for and s.has(*_MISSING),
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
        lambda s: s.vendor == "amd" and s.has(*_MISSING, "triton-lowering"),
        {"rocm-arch-unsupported": 4},
        "{gpu} is an AMD GPU: the ROCm build holds no code for it",
        "AMD, ROCm compatibility matrix",
    ),
    Rule(
        "hip-missing-code",
        lambda s: s.has(*_MISSING) and s.says(r"\bHIP error|\bhip[A-Z]|\bROCm\b"),
        {"rocm-arch-unsupported": 3},
        "the message is HIP's, AMD's runtime",
        "HIP runtime",
    ),
    Rule(
        "kernel-of-the-cpu",
        lambda s: _kernel(
            s,
            r"_?cpu|KernelImpl|_vml|lastdim|unfolded2d|baddbmm|^addmm|_with_gemm|slow_conv|RoundKernel"
            r"|host_softmax",
        ),
        {"cpu-half-op-missing": 3, "gpu-dtype-op-missing": -2},
        "the kernel that is missing is the CPU's",
        "torch, names of ATen's kernels",
    ),
    Rule(
        "kernel-of-the-gpu",
        lambda s: _kernel(
            s, r"cuda|_out_frame|upsample|interpolat|index_|scatter|fft|reduce|nll_loss|cdist|grid_sampl|roi_"
        ),
        {"gpu-dtype-op-missing": 3, "cpu-half-op-missing": -1.5},
        "the kernel that is missing is the GPU's",
        "torch, names of ATen's kernels",
    ),
    Rule(
        "half-kernel",
        lambda s: s.has("torch-dtype-not-implemented") and s.words.get("dtype") == "Half",
        {"cpu-half-op-missing": 1},
        "half precision is what CPUs lack most often",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "bf16-kernel",
        lambda s: s.has("torch-dtype-not-implemented") and s.words.get("dtype") == "BFloat16",
        {"gpu-dtype-op-missing": 0.8},
        "bfloat16 kernels came to GPUs one by one",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "float8-kernel",
        lambda s: s.has("torch-dtype-not-implemented") and s.words.get("dtype", "").startswith("Float8"),
        {"gpu-dtype-op-missing": 2},
        "8-bit floating point has few kernels anywhere",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "gtx-16-half",
        lambda s: s.facts.gpu is not None and s.facts.gpu.half_is_broken and s.has(*_NAN, "dtype-expected-found"),
        {"fp16-broken-on-gpu": 5, "fp16-overflow": -1.5, "dtype-mix": -1.5},
        "{gpu} gives NaN in half precision in several libraries",
        "https://github.com/pytorch/pytorch/issues/58123",
    ),
    Rule(
        "gtx-16-named",
        lambda s: s.says(r"(?i)\bGTX ?16(?:\d\d|xx)\w*|\b16[0-9]0 ?(?:S|Super|Ti)\b") and s.has(*_NAN),
        {"fp16-broken-on-gpu": 3},
        "a GeForce GTX 16 is named: half precision gives NaN there in several libraries",
        "https://github.com/pytorch/pytorch/issues/58123",
    ),
    Rule(
        "other-gpu-half",
        lambda s: s.facts.gpu is not None and not s.facts.gpu.half_is_broken and s.has(*_NAN),
        {"fp16-overflow": 0.8, "fp16-broken-on-gpu": -1},
        "{gpu} computes half precision correctly",
        _NVIDIA,
    ),
    Rule(
        "flash-on-ampere",
        lambda s: s.from_(80) and s.has("flash-ampere"),
        {"software-defect": 3.5, "kernel-min-compute-capability": -3},
        "{gpu} has compute capability {cc}, which flash-attention takes: the check itself is wrong",
        "flash-attention, requirements",
    ),
    Rule(
        "ggml-floor-on-ampere",
        lambda s: s.from_(80) and s.has("ggml-arch-floor"),
        {"software-defect": 1.5},
        "{gpu} has compute capability {cc}, above the floor named: the comparison itself is wrong",
        "https://github.com/ggml-org/llama.cpp/issues/15589",
    ),
    Rule(
        "kernels-before-dtype",
        lambda s: s.has("capability-floor") and s.has("bf16-gate"),
        {"kernel-min-compute-capability": 3.5},
        "the program's kernels need a newer GPU, whatever the dtype",
        "vLLM, supported hardware",
    ),
    Rule(
        "xformers-too-old",
        _xformers_too_old,
        {"kernel-min-compute-capability": 2.5},
        "each of xFormers' kernels was refused for the GPU's age",
        "xFormers, ops/fmha",
    ),
    Rule(
        "compute-type-on-gpu",
        lambda s: s.has("compute-type-refused") and (s.facts.capability is not None or s.says(r"device=.?cuda")),
        {"slow-dtype-path": 1.5},
        "the GPU is known, and this dtype is slow on it",
        "CTranslate2, types.cc",
    ),
    Rule(
        "compute-type-on-cpu",
        lambda s: s.has("compute-type-refused") and s.facts.capability is None and s.facts.gpu is None,
        {"cpu-half-op-missing": 1},
        "no GPU is known: CPUs have no fast half precision",
        "CTranslate2, types.cc",
    ),
    Rule(
        "cpu-wheel",
        lambda s: s.says(r"\+cpu\b") and s.has(*_NO_GPU),
        {"cpu-only-build": 4, "gpu-not-visible": -2},
        "the torch installed is a CPU build (+cpu)",
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
        lambda s: s.facts.apple and s.has("torch-without-cuda", "requires-accelerate", "bnb-cpu-library"),
        {"platform-binary-missing": 2.5},
        "there is no CUDA on macOS",
        "Apple, macOS",
    ),
    Rule(
        "assertion-first",
        lambda s: s.has("index-assertion") and s.has(*_LATE),
        {"async-bad-input": 2},
        "an assertion about an index came first; what follows is its consequence",
        "CUDA, asynchronous errors",
    ),
    Rule(
        "assert-and-cublas",
        lambda s: s.has("cublas-not-initialized") and s.says("device-side assert"),
        {"async-bad-input": 2.5, "gpu-out-of-memory": -2},
        "a device-side assert broke the context before cuBLAS was asked",
        "CUDA, asynchronous errors",
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
        "cuda-types-of-burn",
        lambda s: s.has("matmul-feature") and s.facts.capability is not None and not s.has("cmma-not-supported"),
        {"software-defect": 1},
        "the GPU is known: the choice of kernel is the library's",
        "cubecl",
    ),
    Rule(
        "cmma-in-graphics",
        lambda s: s.has("matmul-feature") and s.has("cmma-not-supported"),
        {"graphics-api-feature-missing": 1.5},
        "matrix units are a feature that the interface must offer",
        "cubecl, Cmma",
    ),
    Rule(
        "int8-before-turing",
        lambda s: s.below(75) and s.has("int8-refused", "bitsandbytes-no-cublaslt", "int8-slow"),
        {"int8-matmul-unsupported-gpu": 1.5},
        "{gpu} has compute capability {cc}; int8 matrix units came with 7.5",
        _NVIDIA,
    ),
    Rule(
        "fp8-before-ada",
        lambda s: s.below(89) and "fp8" in s.facts.dtypes and s.has(*_FP8),
        {"fp8-fp4-unsupported-gpu": 1.5, "compiler-arch-unsupported": -0.5},
        "{gpu} has compute capability {cc}; 8-bit floating point came with 8.9",
        _NVIDIA,
    ),
    Rule(
        "merging",
        lambda s: s.has("merge-call") and s.has("bitsandbytes-no-cublaslt"),
        {"quantized-lora-merge": -1},
        "the multiplication that the merge needs is refused",
        "PEFT, merge through an int8 product",
    ),
    Rule(
        "slow-on-old-gpu",
        lambda s: s.has("slow-symptom", "speed-figures", "emulated-symptom") and s.facts.capability is not None,
        {"slow-dtype-path": 1},
        "{gpu} has compute capability {cc}",
        _NVIDIA,
    ),
    Rule(
        "intel-gpu",
        lambda s: s.vendor == "intel" and s.has("xpu-other", "xpu-fp64", "directml-npu"),
        {"xpu-directml-unsupported": 2},
        "{gpu} is an Intel GPU",
        "Intel, XPU backend",
    ),
)
