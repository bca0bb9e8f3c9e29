"""Cases of the rules of dtypes and kernels: a log, an environment, and the cause that is spoken for there."""

IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
CUBLAS = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k, "
NAN = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
ASSERTED = "Indexing.cu:1141: block: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
NOT_INITIALIZED = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
XFORMERS = "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:"
TYPE = "ValueError: Requested float16 compute type, but the target device or backend do not support efficient float16"
FEATURE = "Unable to launch matmul because a required feature is unavailable: types not there."
CMMA = "Cmma on inputs Float(F16) and outputs Float(F32) with shape m=16, n=16, k=16 not supported."
FUNCTIONALITY = "cuBLAS error 15 at ggml-cuda.cu:7956: the requested functionality is not supported"
NO_ATTENTION = "RuntimeError: cutlassF: no kernel found to launch!"
IGEMMLT = "NotImplementedError: igemmlt not available (probably built with NO_CUBLASLT)"
HALF_ADD = 'error: no instance of overloaded function "atomicAdd" matches the argument list types are: (half *, half)'


def op(kernel, dtype):
    return f"RuntimeError: \"{kernel}\" not implemented for '{dtype}'"


APPLIES = {
    "bf16-of-a-processor": (
        "bf16 runs on a CPU that does not support it, but performance is much worse than fp32",
        {},
        "slow-dtype-path",
    ),
    "compute-type-of-int8": (
        "ValueError: Requested int8 compute type, but the target device or backend do not support efficient int8",
        {"gpu": "RTX 5080"},
        "int8-matmul-unsupported-gpu",
    ),
    "cutlass-before-gpu": (
        "Got cutlass error: Error Internal at: 363",
        {"gpu": "GTX 1080 Ti"},
        "kernel-min-compute-capability",
    ),
    "merged-and-worse": (
        "4bit model with the adapter merged gives gibberish, with the adapter beside it it is right",
        {},
        "quantized-lora-merge",
    ),
    "merging-of-packed": (
        "Fusing a lora on GGUF fails: The size of tensor a (5440) must match the size of tensor b (5120)",
        {},
        "quantized-lora-merge",
    ),
    "merging-the-quantised": (
        "    model = model.merge_and_unload()\nAttributeError: 'QuantLinear' object has no attribute 'weight'",
        {},
        "quantized-lora-merge",
    ),
    "bf16-kernel-left-out": (
        'DriverError(CUDA_ERROR_NOT_FOUND, "named symbol not found") when loading badd_bf16',
        {"gpu": "Tesla T4"},
        "bf16-unsupported-gpu",
    ),
    "trainer-misses-bf16": (
        "ValueError: Your setup doesn't support bf16/gpu.",
        {"gpu": "RTX 4090"},
        "software-defect",
    ),
    "int8-units-are-there": (
        "Exception: cublasLt ran into an error!",
        {"gpu": "RTX 4090"},
        "software-defect",
    ),
    "hopper-kernels-on-later-gpu": (
        "CUDA error (flash-attention/hopper/flash_fwd_launch_template.h:188): invalid argument",
        {"gpu": "RTX 5090"},
        "build-lacks-new-arch",
    ),
    "not-released": (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        {"torch": "2.3.0.dev20240119+cu121"},
        "software-defect",
    ),
    "bf16-before-ampere": (CUBLAS + "a, CUDA_R_16BF, lda)", {"gpu": "Tesla M40"}, "bf16-unsupported-gpu"),
    "bf16-in-cublas-call": (CUBLAS + "a, CUDA_R_16BF, lda)", {}, "bf16-unsupported-gpu"),
    "bf16-after-ampere": (
        "RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16",
        {"gpu": "RTX 3090", "torch": "1.10+cu102"},
        "cuda-toolkit-mismatch",
    ),
    "f16-in-cublas-call": (CUBLAS + "a, CUDA_R_16F, lda)", {"gpu": "RTX 2080 Ti"}, "cuda-toolkit-mismatch"),
    "int8-in-cublas-call": (CUBLAS + "a, CUDA_R_8I, lda)", {"gpu": "V100"}, "int8-matmul-unsupported-gpu"),
    "fp8-in-cublas-call": (CUBLAS + "a, CUDA_R_8F_E4M3, lda)", {"gpu": "RTX 3090"}, "fp8-fp4-unsupported-gpu"),
    "lt-heuristic": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( h )`",
        {},
        "software-defect",
    ),
    "cublas-without-call": ("cuBLAS failed with status CUBLAS_STATUS_NOT_SUPPORTED", {}, "software-defect"),
    "kernel-of-the-cpu": (op("addmm_impl_cpu_", "BFloat16"), {}, "cpu-half-op-missing"),
    "kernel-of-the-gpu": (op("cumsum_cuda", "BFloat16"), {}, "gpu-dtype-op-missing"),
    "half-kernel": (op("something", "Half"), {}, "cpu-half-op-missing"),
    "bf16-kernel": (op("index_cuda", "BFloat16"), {}, "gpu-dtype-op-missing"),
    "float8-kernel": (op("add_stub", "Float8_e4m3fn"), {}, "gpu-dtype-op-missing"),
    "gtx-16-half": (NAN, {"gpu": "GTX 1660 Super"}, "fp16-broken-on-gpu"),
    "gtx-16-named": ("black images on my GTX 1650", {}, "fp16-broken-on-gpu"),
    "other-gpu-half": (NAN, {"gpu": "RTX 3090"}, "fp16-overflow"),
    "bf16-not-selected": ("LLVM ERROR: Cannot select: t61: bf16 = fmaxnum t58, t60", {}, "bf16-unsupported-gpu"),
    "bf16-fails-before-ampere": (
        "RuntimeError: No execution plans support the graph. dtype torch.bfloat16",
        {"gpu": "Tesla V100"},
        "bf16-unsupported-gpu",
    ),
    "bf16-source-since-ampere": (
        'norm.cu(57): error: no operator "*" matches these operands: __nv_bfloat16 * __nv_bfloat16',
        {"gpu": "RTX 4090"},
        "build-wrong-arch-flags",
    ),
    "wrong-in-both-halves": ("loss is nan with fp16 or bf16 mixed precision", {}, "software-defect"),
    "metal-of-one-release": (
        "RuntimeError: [metal::Device] Unable to load kernel s2n_copybfloat16bfloat16\nmlx 0.26.3 fails, 0.25.2 works",
        {},
        "software-defect",
    ),
    "bf16-gate-on-apple": (
        "ValueError: bf16 mixed precision requires PyTorch >= 1.10 and a supported device.",
        {"gpu": "Apple M2"},
        "mps-dtype-unsupported",
    ),
    "refused-before-ampere": (
        "CUBLAS_STATUS_NOT_SUPPORTED on an old Tesla",
        {"gpu": "Tesla M40", "torch": "2.5.1"},
        "bf16-unsupported-gpu",
    ),
    "operator-for-processor": (
        "No OpKernel was registered to support Op 'Conv2D' with these attrs: [T=DT_HALF] Registered devices: [CPU]",
        {},
        "cpu-half-op-missing",
    ),
    "graph-in-bfloat16": (
        "Type Error: Type 'tensor(bfloat16)' of input parameter (x) of operator (Resize) in node (/up) is invalid.",
        {},
        "gpu-dtype-op-missing",
    ),
    "one-operation-in-bf16": ("grid_sample in bfloat16 is unsupported", {}, "gpu-dtype-op-missing"),
    "kernel-of-other-maker": (op("mul_xpu", "Half"), {}, "xpu-directml-unsupported"),
    "kernel-of-metal": (op("arange_mps", "BFloat16"), {}, "mps-dtype-unsupported"),
    "narrow-types-on-apple": ("Float8_e4m3fn on a Mac", {}, "mps-dtype-unsupported"),
    "wrong-on-apple-in-float32": ("loss is nan on mps, same script fine on cpu", {}, "software-defect"),
    "flash-on-ampere": ("RuntimeError: FlashAttention only supports Ampere GPUs", {"gpu": "A800"}, "software-defect"),
    "kernels-before-dtype": (
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0.\n"
        "RuntimeError: GPUs with compute capability below 7.0 are not supported.",
        {},
        "kernel-min-compute-capability",
    ),
    "xformers-too-old": (
        XFORMERS + "\n    requires device with capability > (8, 0) but your GPU has capability (7, 5) (too old)",
        {},
        "kernel-min-compute-capability",
    ),
    "compute-type-on-gpu": (TYPE, {"gpu": "GTX 1080"}, "slow-dtype-path"),
    "compute-type-on-cpu": (TYPE, {}, "cpu-half-op-missing"),
    "compute-type-of-fast-gpu": (TYPE, {"gpu": "T4"}, "cpu-half-op-missing"),
    "compute-type-asked-of-cpu": (
        f'    model = WhisperModel(path, device="cpu", compute_type="float16")\n{TYPE}',
        {"gpu": "GTX 1080"},
        "cpu-half-op-missing",
    ),
    "flash-images-of-new-gpu": (
        f"    out, softmax_lse = flash_attn_gpu.fwd(\n{IMAGE}",
        {"gpu": "RTX 5090", "torch": "2.7.0+cu128"},
        "build-lacks-new-arch",
    ),
    "flash-wheel-of-old-gpu": (
        "ERROR: Failed building wheel for flash-attn",
        {"gpu": "Tesla M40"},
        "kernel-min-compute-capability",
    ),
    "floor-of-fp8": (
        "fp8_quantization.mojo:69:8: note: instantiation failed\nnote: this kernel is only supported on sm90 or newer",
        {"gpu": "RTX 3090"},
        "fp8-fp4-unsupported-gpu",
    ),
    "packed-in-int8": (op("normal_kernel_cpu", "Char"), {}, "quantized-model-operation"),
    "fp8-in-ptx": (
        "ptxas error   : Feature 'cvt.rn.satfinite.e4m3x2.f32' not supported on .target 'sm_86'",
        {"gpu": "RTX 3090"},
        "fp8-fp4-unsupported-gpu",
    ),
    "fp8-not-taken-before-ada": (
        "AssertionError: unsupported dtype of KV cache tensor, got torch.float8_e4m3fn.",
        {"gpu": "T4"},
        "fp8-fp4-unsupported-gpu",
    ),
    "dequantised-instead": (
        "MXFP4 quantization requires Triton and kernels installed: CUDA requires Triton >= 3.4.0, we will default to "
        "dequantizing the model to bf16\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.98 GiB.",
        {},
        "package-version-mismatch",
    ),
    "compiled-for-this-gpu": (
        "CUDA kernel flash_attn_tile has no device code compatible with CUDA arch 700. "
        "ggml-cuda.cu was compiled for: 700",
        {"gpu": "V100"},
        "software-defect",
    ),
    "made-for-hopper": (
        "FlashMLA does not work, decoding ends with an error",
        {"gpu": "A100"},
        "kernel-min-compute-capability",
    ),
    "adapter-into-ggml-types": (
        "[INFO ] lora.hpp - loading LoRA from 'loras/detail.safetensors'\n"
        "ggml_cuda_cpy: unsupported type combination (f32 to q4_K)",
        {},
        "quantized-lora-merge",
    ),
    "older-arch-asked": (
        "ptxas fatal   : Value 'sm_30' is not defined for option 'gpu-name'",
        {"gpu": "GTX 1650"},
        "build-wrong-arch-flags",
    ),
    "shared-memory-of-old-gpu": (
        "OutOfResources: out of resource: shared memory, Required: 98304, Hardware limit: 65536.",
        {"gpu": "T4"},
        "kernel-min-compute-capability",
    ),
    "half-operation-of-old-gpu": (HALF_ADD, {"gpu": "GTX 1060"}, "kernel-min-compute-capability"),
    "double-atomic": (HALF_ADD.replace("half", "double"), {"gpu": "Tesla P40"}, "build-wrong-arch-flags"),
    "compiled-for-older-too": (HALF_ADD, {"gpu": "V100"}, "build-wrong-arch-flags"),
    "queries-of-old-gpu": (
        "RuntimeError: Expected q_dtype == torch::kFloat16 || (is_sm8x && q_dtype == torch::kBFloat16) to be true",
        {"gpu": "T4"},
        "bf16-unsupported-gpu",
    ),
    "assertion-first": (f"{ASSERTED}\nCUDA error: device-side assert triggered", {}, "async-bad-input"),
    "assert-and-cublas": (f"{NOT_INITIALIZED}\nCUDA error: device-side assert triggered", {}, "async-bad-input"),
    "cuda-types-of-burn": (FEATURE, {"gpu": "RTX 2060"}, "software-defect"),
    "cmma-in-graphics": (f"{FEATURE}\n{CMMA}", {}, "graphics-api-feature-missing"),
    "int8-before-turing": (IGEMMLT, {"gpu": "V100"}, "int8-matmul-unsupported-gpu"),
    "int8-since-turing": (
        "Internal Error (Networks with QuantizeLayer/DequantizeLayer layers require hardware with Int8 support.)",
        {"gpu": "L4"},
        "build-lacks-new-arch",
    ),
    "fp8-before-ada": ("type fp8e4nv not supported in this architecture", {"gpu": "A100"}, "fp8-fp4-unsupported-gpu"),
    "merging": (f"model.merge_and_unload()\n{IGEMMLT}", {}, "int8-matmul-unsupported-gpu"),
    "slow-on-old-gpu": ("fp16 is slower than fp32", {"gpu": "Tesla P40"}, "slow-dtype-path"),
    "intel-gpu": ("Required aspect fp64 is not supported", {"gpu": "Intel Arc A770"}, "xpu-directml-unsupported"),
    "attention-in-bf16-before-ampere": (NO_ATTENTION, {"gpu": "RTX 2060"}, "bf16-unsupported-gpu"),
    "attention-since-ampere": (NO_ATTENTION, {"gpu": "A100"}, "kernel-shape-constraint"),
    "generation-is-here": (
        "AssertionError: SM90 kernel is not available. Make sure you GPUs with compute capability 9.0.",
        {"gpu": "H100"},
        "build-wrong-arch-flags",
    ),
    "generation-before-kernels": (
        "AssertionError: SM89 kernel is not available. Make sure you GPUs with compute capability 8.9.",
        {"gpu": "RTX 3090"},
        "kernel-min-compute-capability",
    ),
    "bf16-in-ptx": (
        "triton: ptxas a.ptx, line 77; error : Feature '.bf16' requires .target sm_80 or higher",
        {"gpu": "T4"},
        "bf16-unsupported-gpu",
    ),
    "image-by-compiler": (
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        {"gpu": "RTX 5090"},
        "compiler-arch-unsupported",
    ),
    "floor-of-compiler": (
        "triton.compiler.errors.CompilationError: at 42:15: sm_61 not supported",
        {},
        "compiler-arch-unsupported",
    ),
    "compiled-before-ampere": (
        "RuntimeError: Internal Triton PTX codegen error: ptxas /tmp/a.ptx, line 30; error",
        {"gpu": "RTX 2080 Ti"},
        "bf16-unsupported-gpu",
    ),
    "directml-named": (
        "Non-zero status code returned while running Resize node. Exception",
        {"os": "Windows 11", "library_versions": "onnxruntime-directml 1.17"},
        "xpu-directml-unsupported",
    ),
    "float8-matmul": (op("addmm_cuda", "Float8_e4m3fn"), {"gpu": "RTX 3090"}, "fp8-fp4-unsupported-gpu"),
    "fp8-method": (
        "The quantization method fp8 is not supported for the current GPU. Minimum capability: 89.",
        {},
        "fp8-fp4-unsupported-gpu",
    ),
    "kernel-on-a-gpu": (op("something_new", "BFloat16"), {"gpu": "RTX 3090"}, "gpu-dtype-op-missing"),
    "cublas-translated": (CUBLAS, {"library_versions": "ZLUDA 3.9"}, "software-defect"),
    "new-gpu-cublas": ("cuBLAS failed with status CUBLAS_STATUS_NOT_SUPPORTED", {"gpu": "RTX 5090"}, "software-defect"),
    "half-named-in-nan": ("fp16 gives black images, bf16 works", {}, "fp16-overflow"),
    "ptx-by-compiler": (
        "triton: Feature '.m16n8k16' requires .target sm_80 or higher",
        {},
        "compiler-arch-unsupported",
    ),
    "speeds-of-dtypes": ("fp16: 3.4 it/s", {}, "slow-dtype-path"),
    "functionality-of-old-gpu": (FUNCTIONALITY, {"gpu": "GTX 980"}, "kernel-min-compute-capability"),
    "functionality-of-new-gpu": (FUNCTIONALITY, {"gpu": "RTX 3090"}, "software-defect"),
    "xformers-before-gpu": (XFORMERS, {"gpu": "RTX 5060 Ti"}, "build-lacks-new-arch"),
    "hint-alone": (
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be",
        {},
        "software-defect",
    ),
    "fills-over-time": (
        "iteration 3200: memory usage grows\nRuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB",
        {},
        "software-defect",
    ),
    "full-in-later-epoch": (
        "Epoch 7/10: 40%|####  | 4/10\nRuntimeError: CUDA out of memory.\noptimizer.step()",
        {},
        "gpu-out-of-memory",
    ),
    "functionality-of-fp8": (f"{FUNCTIONALITY}\n./gemm -t fp8", {}, "fp8-fp4-unsupported-gpu"),
    "after-the-loss-scale": (
        "Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 5e-324\nZeroDivisionError: division",
        {},
        "fp16-overflow",
    ),
}
