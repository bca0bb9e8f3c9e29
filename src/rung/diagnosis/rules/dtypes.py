"""Which dtype meets which device."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import NAN

_NVIDIA = "NVIDIA, CUDA C++ Programming Guide, compute capabilities"
_BF16 = (
    "cublas-not-supported",
    "torch-bf16-gemm-build",
    "bf16-symptom",
    "cudnn-not-supported",
    "xformers-none",
    "type-of-cuda-missing",
    "half-not-for-processor",
)
#: Products in int8 of programs that do not name the type in their call.
_INT8 = r"(?i:CUDA_R_8I)|abc?Type 3|_int_mm|int8_(?:dynamic|mode)|COL32|(?i:\bw8a8\b|\bint8\b)"
#: Releases of torch whose programs load models in bfloat16 unasked.
_UNASKED = (2, 1)
_FP8 = ("triton-no-fp8", "torch-fp8-gemm", "fp8-gate", "triton-lowering")
#: Names of kernels that only the CPU has.
_OF_CPU = (
    r"_?cpu|channels_last|KernelImpl|_vml|lastdim|unfolded2d|baddbmm|^addmm(?!_cuda)|_with_gemm|slow_conv|RoundKernel|host_softmax"
    r"|compute_indices_weights|avg_pool[23]d_out_frame|clamp_m\w+_scalar|GeluKernel|sorting_kernel|^lerp_kernel"
    r"|^(?:m(?:in|ax)_all|sort_stable|topk|multinomial|pdist|reflection_pad[123]d|dot|batch_norm|polar|\w+_pool[123]d)$"
)


def _int8_units(scene: Scene) -> bool:
    """Return whether the GPU is known to have int8 matrix units in Turing's layout: of 7.5, GeForce GTX 16 has none."""
    gpu = scene.facts.gpu
    return scene.below(90) and (scene.from_(80) or (scene.from_(75) and gpu is not None and not gpu.half_is_broken))


def _kernel(scene: Scene, pattern: str) -> bool:
    named = scene.words.get("kernel", "")
    return scene.has("torch-dtype-not-implemented") and re.search(pattern, named, re.IGNORECASE) is not None


RULES: tuple[Rule, ...] = (
    Rule(
        "attention-in-bf16-before-ampere",
        lambda s: s.has("memory-efficient-none") and s.below(80),
        {"bf16-unsupported-gpu": 2},
        "{gpu} has compute capability {cc}; of torch's kernels only those for bfloat16 are missing there",
        "torch, transformers/cuda/mem_eff_attention/kernels",
    ),
    Rule(
        "attention-since-ampere",
        lambda s: s.has("memory-efficient-none") and s.from_(80),
        {"bf16-unsupported-gpu": -5, "kernel-min-compute-capability": -2, "kernel-shape-constraint": 1.5},
        "{gpu} has compute capability {cc}: torch's kernels take every dtype there, if not every shape",
        "torch, transformers/cuda/mem_eff_attention/kernels",
    ),
    Rule(
        "queries-of-old-gpu",
        lambda s: s.has("flash-query-dtype") and s.below(80),
        {"bf16-unsupported-gpu": 4},
        "{gpu} has compute capability {cc}; flash-attention takes bfloat16 from 8.0 on",
        "flash-attention, requirements",
    ),
    Rule(
        "bf16-before-ampere",
        lambda s: s.below(80) and s.has(*_BF16) and ("bf16" in s.facts.dtypes or s.about(r"(?i)\bbf16\b|bfloat16")),
        {"bf16-unsupported-gpu": 3.5, "cuda-toolkit-mismatch": -1},
        "{gpu} has compute capability {cc}; bfloat16 matrices need 8.0, or a torch that emulates them",
        _NVIDIA,
    ),
    Rule(
        "bf16-in-cublas-call",
        lambda s: (
            s.has("cublas-not-supported")
            and (
                s.says("(?:CUDA|HIP)_R_16BF") or ("bf16" in s.facts.dtypes and not s.says("when calling|(?i:int8|fp8)"))
            )
            and not s.from_(80)
        ),
        {"bf16-unsupported-gpu": 2.5},
        "the refused multiplication is in bfloat16",
        "cuBLAS documentation, cublasGemmEx",
    ),
    Rule(
        "bf16-in-ptx",
        lambda s: s.has("ptx-bf16") and not s.from_(80),
        {"bf16-unsupported-gpu": 2.4},
        "the instruction that is missing is bfloat16's",
        "NVIDIA, PTX ISA",
    ),
    Rule(
        "bf16-not-selected",
        lambda s: (
            s.has("triton-lowering")
            and s.says("(?i)Cannot select.{0,80}(?:bf16|bfloat)")
            and not s.from_(80)
            and not s.says(r"\.jl:\d")
        ),
        {"bf16-unsupported-gpu": 4.8, "compiler-arch-unsupported": -0.5},
        "the instruction that LLVM cannot make is bfloat16's",
        "LLVM, NVPTX",
    ),
    Rule(
        "compiled-before-ampere",
        lambda s: s.below(80) and s.from_(70) and s.says("PTX codegen error") and not s.says("gpu-name"),
        {"bf16-unsupported-gpu": 4.2, "compiler-arch-unsupported": -1},
        "{gpu} has compute capability {cc}; what its assembler refuses in Triton's code is most often bfloat16",
        "PTX ISA, cvt",
    ),
    Rule(
        "bf16-after-ampere",
        lambda s: s.from_(80) and s.has("torch-bf16-gemm-build", "bf16-symptom", "bf16-autocast-refused"),
        {"bf16-unsupported-gpu": -4, "cuda-toolkit-mismatch": 2.2, "gpu-dtype-op-missing": 1},
        "{gpu} has compute capability {cc} and multiplies bfloat16, so the build is in the way",
        _NVIDIA,
    ),
    Rule(
        "bf16-kernel-left-out",
        lambda s: not s.from_(80) and s.has("named-symbol") and s.says("(?i)bf16|bfloat16"),
        {"bf16-unsupported-gpu": 5.5, "build-wrong-arch-flags": -2.5},
        "kernels in bfloat16 are compiled from compute capability 8.0 on",
        "candle, candle-kernels",
    ),
    Rule(
        "trainer-misses-bf16",
        lambda s: s.from_(80) and s.has("bf16-training-arguments"),
        {"bf16-unsupported-gpu": -5, "software-defect": 3.2, "cpu-only-build": 1.1, "gpu-not-visible": 1.1},
        "{gpu} has compute capability {cc} and computes bfloat16: the check asks too early, or sees no GPU",
        "transformers, utils/import_utils.py",
    ),
    Rule(
        "refused-before-ampere",
        lambda s: (
            s.has("cublas-not-supported")
            and s.below(75)
            and s.facts.torch is not None
            and s.facts.torch >= _UNASKED
            and not s.says("when calling|(?i:half|float16|fp16|int8|8.?bit)")
        ),
        {"bf16-unsupported-gpu": 3, "software-defect": -1},
        "{gpu} has compute capability {cc}; what cuBLAS refuses such a card is most often bfloat16",
        "cuBLAS documentation, cublasGemmEx",
    ),
    Rule(
        "f16-in-cublas-call",
        lambda s: s.has("cublas-not-supported") and s.says(r"(?i)CUDA_R_16F\b"),
        {"cuda-toolkit-mismatch": 1.5},
        "half precision is multiplied by every GPU since 5.3, so another cuBLAS than torch's own may answer",
        "cuBLAS documentation, cublasGemmEx",
    ),
    Rule(
        "int8-in-cublas-call",
        lambda s: s.has("cublas-not-supported") and (s.says(_INT8) or bool(re.search(r"\b_?igemm", s.said))),
        {"int8-matmul-unsupported-gpu": 6, "cuda-toolkit-mismatch": -1, "software-defect": -1},
        "the refused multiplication is in int8",
        "cuBLAS documentation, cublasLtMatmul",
    ),
    Rule(
        "fp8-in-cublas-call",
        lambda s: s.has("cublas-not-supported") and s.says("(?i)CUDA_R_8F|_scaled_mm"),
        {"fp8-fp4-unsupported-gpu": 3.8, "kernel-shape-constraint": 1},
        "the refused multiplication is in 8-bit floating point (CUDA_R_8F)",
        "cuBLAS documentation, cublasLtMatmul",
    ),
    Rule(
        "lt-heuristic",
        lambda s: (
            s.has("cublas-not-supported")
            and s.says("cublasLtMatmul")
            and not s.says(f"(?i:CUDA_R_8|CUDA_R_16BF|fp8|float8)|_scaled_mm|{_INT8}")
        ),
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
        "packed-in-int8",
        lambda s: (
            _kernel(s, "normal|uniform|random|fill|erfinv|trunc")
            and s.words.get("dtype", "").lower() in ("char", "byte", "int")
        ),
        {"quantized-model-operation": 8, "cpu-half-op-missing": -2},
        "weights in int8 are to be initialised anew: they are quantised",
        "transformers, _init_weights; bitsandbytes",
    ),
    Rule(
        "fp8-in-ptx",
        lambda s: s.has("ptx-feature", "ptx-bf16") and s.says(r"e4m3|e5m2|e2m1|e3m2|e2m3|ue8m0|mxf4|mxf8f6f4"),
        {"fp8-fp4-unsupported-gpu": 6, "kernel-min-compute-capability": -1},
        "the instruction that is missing converts to 8- or 4-bit floating point",
        "NVIDIA, PTX ISA",
    ),
    Rule(
        "kernel-of-the-cpu",
        lambda s: _kernel(s, _OF_CPU) and not _kernel(s, "cuda") and not s.says(r"_cuda\"|\bhip\b"),
        {"cpu-half-op-missing": 3, "gpu-dtype-op-missing": -2},
        "the kernel that is missing is the CPU's",
        "torch, names of ATen's kernels",
    ),
    Rule(
        "operator-for-processor",
        lambda s: (
            s.has("operator-not-registered")
            and s.says(r"=DT_HALF|float16")
            and s.says(r"devices: \[CPU(?:, ?XLA_CPU)?\]")
        ),
        {"cpu-half-op-missing": 4.5, "xpu-directml-unsupported": -1},
        "the processor is the only device, and the numbers are in half precision",
        "TensorFlow, op_kernel.cc",
    ),
    Rule(
        "graph-in-bfloat16",
        lambda s: s.has("onnx-graph-types") and s.says(r"Type 'tensor\(bfloat16\)' of"),
        {"gpu-dtype-op-missing": 5.5, "dtype-mix": -1.5},
        "the operator is not defined for bfloat16",
        "ONNX, operator schemas",
    ),
    Rule(
        "one-operation-in-bf16",
        lambda s: s.has("operation-in-narrow-type") and s.has("bf16-symptom") and not s.below(80),
        {"gpu-dtype-op-missing": 1.5, "bf16-unsupported-gpu": -1.5},
        "one operation alone is named that does not take bfloat16",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "kernel-of-the-gpu",
        lambda s: _kernel(
            s,
            r"cuda|(?<!avg_pool[23]d)_out_frame|upsample|interpolat|index_|scatter|fft|reduce|nll_loss|cdist|grid_sampl|roi_"
            r"|_gpu|_out_template|nms\w*_(?:impl|cuda)|cublas|cusolver|deform|im2col_(?!cpu)|align_\w*ward|dcn|_dim_kernel"
            # extensions that are written for GPUs
            r"|fused_bias|upfirdn|selective_scan|grid_encode|raymarch|wkv|rasteri|voxel|ball_query|furthest|three_(?:nn|interp)"
            r"|group_points|corr_|correlation|chamfer|spmm",
        ),
        {"gpu-dtype-op-missing": 3, "cpu-half-op-missing": -1.5},
        "the kernel that is missing is the GPU's",
        "torch, names of ATen's kernels",
    ),
    Rule(
        "kernel-of-metal",
        lambda s: _kernel(s, r"(?:^|_)mps(?:_|$)"),
        {"mps-dtype-unsupported": 6, "gpu-dtype-op-missing": -1},
        "the kernel that is missing is Metal's",
        "torch, names of ATen's kernels",
    ),
    Rule(
        "half-kernel",
        lambda s: s.has("torch-dtype-not-implemented") and s.words.get("dtype", "").lower() == "half",
        {"cpu-half-op-missing": 1},
        "half precision is what CPUs lack most often",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "bf16-kernel",
        lambda s: s.has("torch-dtype-not-implemented") and s.words.get("dtype", "").lower() == "bfloat16",
        {"gpu-dtype-op-missing": 0.8},
        "bfloat16 kernels came to GPUs one by one",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "float8-kernel",
        lambda s: s.has("torch-dtype-not-implemented") and s.words.get("dtype", "").lower().startswith("float8"),
        {"gpu-dtype-op-missing": 2},
        "8-bit floating point has few kernels anywhere",
        "torch, AT_DISPATCH macros",
    ),
    Rule(
        "gtx-16-half",
        lambda s: s.facts.gpu is not None and s.facts.gpu.half_is_broken and s.has(*NAN, "dtype-expected-found"),
        {"fp16-broken-on-gpu": 5, "fp16-overflow": -1.5, "dtype-mix": -1.5},
        "{gpu} gives NaN in half precision in several libraries",
        "https://github.com/pytorch/pytorch/issues/58123",
    ),
    Rule(
        "gtx-16-named",
        lambda s: (
            s.says(
                r"(?i)\bGTX ?16(?:\d\d|xx)\w*|\b16[356]0 ?(?:S|Super|Ti)?\b|\b16xx\b|\bT(?:[456]00|550|1[02]00|2000)\b"
                r"|\bMX[45]50\b|\bNavi ?1[0124]\b"
            )
            and s.has(*NAN)
        ),
        {"fp16-broken-on-gpu": 3},
        "a GeForce GTX 16 or its kin is named: half precision gives NaN there in several libraries",
        "https://github.com/pytorch/pytorch/issues/58123",
    ),
    Rule(
        "other-gpu-half",
        lambda s: (
            s.facts.gpu is not None
            and not s.facts.gpu.half_is_broken
            and s.has(*NAN)
            and not re.search(r"(?i)vega|gfx[89]\d\d|RX ?[45][6-9]0|\bU?HD\b", s.facts.gpu.name)
        ),
        {"fp16-overflow": 0.8, "fp16-broken-on-gpu": -1},
        "{gpu} computes half precision correctly",
        _NVIDIA,
    ),
    Rule(
        "int8-before-turing",
        lambda s: s.below(75) and s.has("int8-refused", "bitsandbytes-no-cublaslt", "int8-slow"),
        {"int8-matmul-unsupported-gpu": 1.5},
        "{gpu} has compute capability {cc}; int8 matrix units came with 7.5",
        _NVIDIA,
    ),
    Rule(
        "int8-since-turing",
        lambda s: s.from_(75) and s.has("tensorrt-int8"),
        {"build-lacks-new-arch": 3.5, "int8-matmul-unsupported-gpu": -2.5},
        "{gpu} has compute capability {cc} and int8 matrix units: the release is older than the GPU",
        _NVIDIA,
    ),
    Rule(
        "bf16-of-a-processor",
        lambda s: (
            s.has("bf16-symptom")
            and s.facts.gpu is None
            and s.facts.capability is None
            and s.says(r"\bCPUs?\b|\b(?i:processors?|xeon|epyc|ryzen)\b")
        ),
        {"bf16-unsupported-gpu": -3, "cpu-half-op-missing": 1},
        "it is the processor that has no bfloat16",
        "oneDNN, data types",
    ),
    Rule(
        "int8-units-are-there",
        lambda s: s.has("int8-refused") and _int8_units(s),
        {"int8-matmul-unsupported-gpu": -5, "software-defect": 2.5, "cuda-toolkit-mismatch": 1, "gpu-out-of-memory": 1},
        "{gpu} has compute capability {cc} and int8 matrix units in the layout that is asked for",
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
        "float8-matmul",
        lambda s: (
            s.below(89) and _kernel(s, "addmm|mm_|matmul|bmm") and s.words.get("dtype", "").lower().startswith("float8")
        ),
        {"fp8-fp4-unsupported-gpu": 6, "gpu-dtype-op-missing": -4},
        "the product is in 8-bit floating point, which plain matrix kernels do not take",
        "torch, Blas.cpp",
    ),
    Rule(
        "fp8-method",
        lambda s: (
            s.has("quantisation-min-capability")
            and s.says(r"(?i)method \S*(?:fp8|fp4|modelopt)|capability: (?:89|90|100)\b")
        ),
        {"fp8-fp4-unsupported-gpu": 3.6, "kernel-min-compute-capability": -2.5},
        "the format asked for is 8- or 4-bit floating point",
        "vLLM, quantization",
    ),
    Rule(
        "kernel-on-a-gpu",
        lambda s: (
            s.vendor == "nvidia"
            and s.has("torch-dtype-not-implemented")
            and (not _kernel(s, _OF_CPU) or _kernel(s, "cuda"))
        ),
        {"gpu-dtype-op-missing": 1.5},
        "{gpu} is named, and the kernel is not one of the CPU",
        "torch, names of ATen's kernels",
    ),
    Rule(
        "cublas-translated",
        lambda s: s.has("cublas-not-supported") and (s.vendor == "amd" or s.about("(?i)zluda")),
        {"software-defect": 2.5, "cuda-toolkit-mismatch": -1},
        "a translation of CUDA for another maker's GPU answers here",
        "ZLUDA",
    ),
    Rule(
        "new-gpu-cublas",
        lambda s: s.has("cublas-not-supported") and s.from_(100) and not s.says("when calling"),
        {"software-defect": 1.5},
        "{gpu} is newer than the layouts that the library asks for",
        "cuBLAS documentation, cublasLtMatmul",
    ),
)
