"""Every rule applies to a case of its own, and to no empty log."""

import pytest

from rung.diagnosis.explain import explain
from rung.diagnosis.explain import scene as scene_of
from rung.diagnosis.rules import RULES

IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
CUBLAS = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k, "
LISTED = "The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90."
NAN = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
ASSERTED = "Indexing.cu:1141: block: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
NOT_INITIALIZED = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
XFORMERS = "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:"
TYPE = "ValueError: Requested float16 compute type, but the target device or backend do not support efficient float16"
NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled"
SETUP = "CUDA_SETUP: WARNING! libcudart.so not found in any environmental path."
FEATURE = "Unable to launch matmul because a required feature is unavailable: types not there."
CMMA = "Cmma on inputs Float(F16) and outputs Float(F32) with shape m=16, n=16, k=16 not supported."
FUNCTIONALITY = "cuBLAS error 15 at ggml-cuda.cu:7956: the requested functionality is not supported"
NO_ATTENTION = "RuntimeError: cutlassF: no kernel found to launch!"
IGEMMLT = "NotImplementedError: igemmlt not available (probably built with NO_CUBLASLT)"


def op(kernel, dtype):
    return f"RuntimeError: \"{kernel}\" not implemented for '{dtype}'"


#: For every rule a log and an environment to which it applies, and the cause that it speaks for there.
HALF_ADD = 'error: no instance of overloaded function "atomicAdd" matches the argument list types are: (half *, half)'
APPLIES = {
    "program-for-cuda-only": (
        "This program needs a CUDA-Enabled GPU (with at least compute capability 2.0).",
        {"gpu": "AMD Radeon RX 6600"},
        "platform-binary-missing",
    ),
    "accelerator-of-its-own": (NO_CUDA, {"library_versions": "torch_npu 2.1"}, "xpu-directml-unsupported"),
    "allocator-of-the-gpu": (
        "MemoryError: std::bad_alloc: CUDA error at: include/rmm/mr/device/cuda_memory_resource.hpp",
        {},
        "gpu-out-of-memory",
    ),
    "backend-in-environment": ("float64", {"library_versions": "torch-directml 0.2"}, "xpu-directml-unsupported"),
    "operator-not-on-device": (
        "NotFoundError: No registered 'AddN' OpKernel for 'DML' devices compatible with node {{node AddN}}",
        {},
        "xpu-directml-unsupported",
    ),
    "bnb-on-arm": (SETUP, {"gpu": "Jetson Orin Nano"}, "platform-binary-missing"),
    "private-name-missing": (
        "AttributeError: '_Capture' object has no attribute '_set_device_from_string'",
        {},
        "package-version-mismatch",
    ),
    "tensorflow-on-metal": (
        "InvalidArgumentError: Could not satisfy explicit device specification '/device:GPU:0' because no supported "
        "kernel for GPU devices is available.",
        {"os": "macOS 13"},
        "mps-dtype-unsupported",
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
    "module-of-the-host": (
        'File "app/custom_nodes/my_nodes/__init__.py", line 3, in <module>\n'
        "ModuleNotFoundError: No module named 'comfy_execution.graph_utils'",
        {},
        "package-version-mismatch",
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
    "newer-than-the-build": (f"{IMAGE}\n{LISTED}", {"gpu": "RTX 5090"}, "build-lacks-new-arch"),
    "older-than-the-build": (f"{IMAGE}\n{LISTED}", {"gpu": "Tesla K40"}, "build-lacks-old-arch"),
    "new-gpu": (IMAGE, {"gpu": "RTX 5080"}, "build-lacks-new-arch"),
    "old-gpu": (IMAGE, {"gpu": "GTX 1080"}, "build-lacks-old-arch"),
    "middle-gpu": (IMAGE, {"gpu": "RTX 3080"}, "build-wrong-arch-flags"),
    "local-build": (f"{IMAGE} in csrc/ops.cu:12", {"gpu": "RTX 3080"}, "build-wrong-arch-flags"),
    "not-torch": ("Error: no kernel image is available for execution on the device", {}, "build-wrong-arch-flags"),
    "same-arch-in-list": (f"{IMAGE}\n{LISTED}", {"gpu": "RTX 2080 Ti"}, "build-wrong-arch-flags"),
    "old-card-dropped": ("Version 1.3 no longer supporting Tesla K40m", {"gpu": "K40"}, "build-lacks-old-arch"),
    "amd-missing-code": (IMAGE, {"gpu": "Radeon RX 6700 XT"}, "rocm-arch-unsupported"),
    "hip-missing-code": ("RuntimeError: HIP error: invalid device function", {}, "rocm-arch-unsupported"),
    "kernel-of-the-cpu": (op("addmm_impl_cpu_", "BFloat16"), {}, "cpu-half-op-missing"),
    "kernel-of-the-gpu": (op("cumsum_cuda", "BFloat16"), {}, "gpu-dtype-op-missing"),
    "half-kernel": (op("something", "Half"), {}, "cpu-half-op-missing"),
    "bf16-kernel": (op("index_cuda", "BFloat16"), {}, "gpu-dtype-op-missing"),
    "float8-kernel": (op("add_stub", "Float8_e4m3fn"), {}, "gpu-dtype-op-missing"),
    "gtx-16-half": (NAN, {"gpu": "GTX 1660 Super"}, "fp16-broken-on-gpu"),
    "gtx-16-named": ("black images on my GTX 1650", {}, "fp16-broken-on-gpu"),
    "other-gpu-half": (NAN, {"gpu": "RTX 3090"}, "fp16-overflow"),
    "flash-on-ampere": ("RuntimeError: FlashAttention only supports Ampere GPUs", {"gpu": "A800"}, "software-defect"),
    "ggml-floor-on-ampere": (
        "common.cuh:112: ggml was not compiled with any CUDA arch <= 750",
        {"gpu": "A100"},
        "software-defect",
    ),
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
    "older-than-all-of-ggml": (
        "CUDA kernel mul_mat_vec_q has no device code compatible with CUDA arch 520. "
        "ggml-cuda.cu was compiled for: 610,700,750,800,860",
        {"gpu": "GTX 980"},
        "build-lacks-old-arch",
    ),
    "narrow-floats-left-out": (
        "NotImplementedError: No compiled cutlass_scaled_mm for CUDA device capability: 120",
        {"gpu": "RTX 5090"},
        "build-lacks-new-arch",
    ),
    "packed-in-int8": (op("normal_kernel_cpu", "Char"), {}, "quantized-model-operation"),
    "fp8-in-ptx": (
        "ptxas error   : Feature 'cvt.rn.satfinite.e4m3x2.f32' not supported on .target 'sm_86'",
        {"gpu": "RTX 3090"},
        "fp8-fp4-unsupported-gpu",
    ),
    "tensorflow-without-windows": (
        ">>> tf.config.list_physical_devices('GPU')\n[]\n>>> tf.__version__\n'2.16.1'",
        {"os": "Windows 11", "gpu": "RTX 3080"},
        "cpu-only-build",
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
    "compiled-for-older-too": (HALF_ADD, {"gpu": "V100"}, "build-wrong-arch-flags"),
    "queries-of-old-gpu": (
        "RuntimeError: Expected q_dtype == torch::kFloat16 || (is_sm8x && q_dtype == torch::kBFloat16) to be true",
        {"gpu": "T4"},
        "bf16-unsupported-gpu",
    ),
    "cpu-wheel-on-windows": ("torch.cuda.is_available() False", {"os": "Windows 10"}, "cpu-only-build"),
    "cpu-wheel": ("No CUDA GPUs are available\ntorch 2.3.0+cpu", {}, "cpu-only-build"),
    "gpu-is-there": (NO_CUDA, {"driver": "535.1"}, "cpu-only-build"),
    "mac-without-cuda": (
        "ImportError: Using `load_in_8bit=True` requires Accelerate",
        {"os": "macOS"},
        "platform-binary-missing",
    ),
    "assertion-first": (f"{ASSERTED}\nCUDA error: device-side assert triggered", {}, "async-bad-input"),
    "assert-and-cublas": (f"{NOT_INITIALIZED}\nCUDA error: device-side assert triggered", {}, "async-bad-input"),
    "bnb-path-empty": (f"{SETUP}\nDEBUG: Possible options found for libcudart.so: set()", {}, "cuda-library-not-found"),
    "bnb-two-cudas": (SETUP, {"cuda": "12.3 (system), 11.8 (torch)"}, "cuda-toolkit-mismatch"),
    "bnb-on-windows": (SETUP, {"os": "Windows 11"}, "platform-binary-missing"),
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
    "build-before-gpu": (IMAGE, {"gpu": "RTX 3090", "torch": "1.7.0+cu101"}, "build-lacks-new-arch"),
    "released-before-gpu": (IMAGE, {"gpu": "RTX 5090", "torch": "2.5.1+cu124"}, "build-lacks-new-arch"),
    "attention-in-bf16-before-ampere": (NO_ATTENTION, {"gpu": "RTX 2060"}, "bf16-unsupported-gpu"),
    "attention-since-ampere": (NO_ATTENTION, {"gpu": "A100"}, "kernel-shape-constraint"),
    "processor-of-onnxruntime": (
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Erf(13), tensor(bfloat16)",
        {"os": "macOS"},
        "cpu-half-op-missing",
    ),
    "torch-before-gpu": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        {"gpu": "RTX 3070", "torch": "1.5.0", "cuda": "11.4"},
        "build-lacks-new-arch",
    ),
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
    "released-without-gpu": (IMAGE, {"gpu": "Tesla V100", "torch": "2.9.0+cu130"}, "build-lacks-old-arch"),
    "released-for-gpu": (
        f"grads = grads[sel]\n{IMAGE}",
        {"gpu": "RTX 5090", "torch": "2.7.1+cu128"},
        "build-wrong-arch-flags",
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
    "named-cuda-call": (f"    model = model.cuda()\n{NO_CUDA}", {}, "not-a-compatibility-problem"),
    "mac-asked-for-cuda": (NO_CUDA, {"os": "macOS"}, "not-a-compatibility-problem"),
    "in-a-container": ("GPU is not detected", {"os": "Docker on Ubuntu"}, "gpu-not-visible"),
    "jetson-wheel": ("torch.cuda.is_available() False", {"gpu": "Jetson Xavier NX"}, "cpu-only-build"),
    "page-file-before-library": (
        'OSError: [WinError 1455] The paging file is too small. Error loading "C:\\cudnn_ops64_9.dll" or its parts.',
        {},
        "host-out-of-memory",
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
    "cpu-version-named": ("torch 2.4.1+cpu, torch.cuda.is_available() is False", {}, "cpu-only-build"),
    "amd-crash": ("Segmentation fault (core dumped)", {"gpu": "gfx1102"}, "rocm-arch-unsupported"),
    "cublas-in-environment": (
        NOT_INITIALIZED,
        {"library_versions": "nvidia-cublas-cu11 11.10.3.66"},
        "cuda-toolkit-mismatch",
    ),
    "float8-matmul": (op("addmm_cuda", "Float8_e4m3fn"), {}, "fp8-fp4-unsupported-gpu"),
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
    "triton-on-windows": ("No module named 'triton'", {"os": "Windows 11"}, "platform-binary-missing"),
    "functionality-of-old-gpu": (FUNCTIONALITY, {"gpu": "GTX 980"}, "kernel-min-compute-capability"),
    "functionality-of-new-gpu": (FUNCTIONALITY, {"gpu": "RTX 3090"}, "software-defect"),
    "xformers-before-gpu": (XFORMERS, {"gpu": "RTX 5060 Ti"}, "build-lacks-new-arch"),
    "built-here": (IMAGE, {"gpu": "P100", "torch": "1.6, built from source"}, "build-wrong-arch-flags"),
    "no-gpu-named": (NO_CUDA, {"gpu": "no GPU"}, "not-a-compatibility-problem"),
    "module-of-the-program": ("ModuleNotFoundError: No module named 'roop'", {}, "not-a-compatibility-problem"),
    "module-of-others": ("ModuleNotFoundError: No module named 'einops.layers'", {}, "package-version-mismatch"),
    "driver-before-cuda": (
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        {"driver": "470.57.02", "cuda": "12.2", "gpu": "A100"},
        "driver-too-old",
    ),
    "assembler-named": (
        "ptxas add.ptx, line 5; fatal   : Unsupported .version 8.4; current version is '7.8'",
        {},
        "cuda-toolkit-mismatch",
    ),
    "crash-in-cuda-library": (
        "#1  0x0 in conv() from nvidia/cudnn/lib/libcudnn_cnn_infer.so.8\nSegmentation fault (core dumped)",
        {},
        "cuda-toolkit-mismatch",
    ),
    "driver-reads-ptx": (
        "LinkerError: [218] Call to cuLinkAddData results in UNKNOWN_CUDA_ERROR\n"
        "ptxas application ptx input, line 9; fatal   : Unsupported .version 6.3; current version is '6.1'",
        {},
        "driver-too-old",
    ),
    "library-of-other-cuda": (
        "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
        {"cuda": "12.4"},
        "cuda-toolkit-mismatch",
    ),
    "raised-in-a-package": (
        '  File "/venv/lib/python3.11/site-packages/transformers/trainer.py", line 9, in train\n'
        "KeyError: 'rope_type'",
        {},
        "package-version-mismatch",
    ),
    "moved-by-accelerate": (
        "    dispatch_model(model, **device_map_kwargs)\n"
        "ValueError: `.to` is not supported for `4-bit` or `8-bit` bitsandbytes models.",
        {},
        "package-version-mismatch",
    ),
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


def scene(log, environment):
    return scene_of([log.encode()], environment)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_applies_to_its_case_and_not_to_an_empty_log(rule):
    log, environment, cause = APPLIES[rule.id]
    here = scene(log, environment)
    assert rule.when(here)
    assert not rule.when(scene("training started", environment))
    assert explain(log, environment).cause == cause
    said = rule.says(here)
    assert "{" not in said
    assert "?" not in said


def test_every_case_has_a_rule():
    assert set(APPLIES) == {rule.id for rule in RULES}
