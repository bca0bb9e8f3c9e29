"""Cases of the rules of programs that run models on the desk: a log, an environment, and the cause spoken for."""

IMAGE = "CUDA error: no kernel image is available for execution on the device in function ggml_cuda_compute_forward"
REFUSED = "compute type, but the target device or backend do not support efficient computation."
LIMIT = "ggml_vulkan: Requested buffer size exceeds device memory allocation limit: ErrorOutOfDeviceMemory"
LIBRARY = "/opt/miniconda3/envs/a/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by ext.so)"

APPLIES = {
    "wheel-for-processors": ("llama-cpp-python runs on CPU only, the GPU is not used", {}, "cpu-only-build"),
    "ready-made-before-gpu": (IMAGE, {"gpu": "RTX 5090"}, "build-lacks-new-arch"),
    "ready-made-after-gpu": (IMAGE, {"gpu": "GTX 970"}, "build-lacks-old-arch"),
    "bf16-compute-type": (f"ValueError: Requested bfloat16 {REFUSED}", {"gpu": "T4"}, "bf16-unsupported-gpu"),
    "int8-compute-type": (f"ValueError: Requested int8 {REFUSED}", {"gpu": "GTX 970"}, "int8-matmul-unsupported-gpu"),
    "weights-widened": (
        "[warning] The compute type inferred from the saved model is float16, but the target device or backend do not "
        "support efficient float16 computation. The model weights have been automatically converted to use the float32 "
        "compute type instead.",
        {},
        "slow-dtype-path",
    ),
    "ollama-leaves-out-old-gpu": (
        'level=INFO source=gpu.go:386 msg="no compatible GPUs were discovered"',
        {"gpu": "Tesla K80"},
        "build-lacks-old-arch",
    ),
    "limit-and-not-memory": (
        f"ggml_vulkan: Device memory allocation of size 4831838208 failed.\n{LIMIT}",
        {},
        "graphics-api-feature-missing",
    ),
    "rocblas-counts-none": (
        "rocBLAS error: Could not initialize Tensile host: No devices found",
        {"gpu": "RX 6700 XT"},
        "rocm-arch-unsupported",
    ),
    "driver-said-first": (
        "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version\n"
        "whisper_backend_init_gpu: no GPU found",
        {},
        "driver-too-old",
    ),
    "amd-targets-named": (
        "ROCm error: invalid device function\ncmake -DAMDGPU_TARGETS=gfx1030",
        {"gpu": "RX 7900 XTX"},
        "build-wrong-arch-flags",
    ),
    "operation-on-processor": (
        "Error: unsupported dtype BF16 for op matmul\n   1: candle_core::cpu_backend::MatMul::f",
        {},
        "cpu-half-op-missing",
    ),
    "mac-without-toolkit": (
        "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        {"os": "macOS 14"},
        "platform-binary-missing",
    ),
    "cuda-asked-of-amd": (
        "RuntimeError: CUDA failed with error no CUDA-capable device is detected",
        {"gpu": "RX 7800 XT"},
        "platform-binary-missing",
    ),
    "cpp-library-of-conda": (f"ImportError: {LIBRARY}", {}, "package-version-mismatch"),
    "type-on-gpu": (
        "ggml-cuda/im2col.cu:119: GGML_ASSERT(dst->type == GGML_TYPE_F16) failed",
        {},
        "gpu-dtype-op-missing",
    ),
    "quantised-file-for-other-reader": (
        "OSError: Error no file named pytorch_model.bin, model.safetensors found in directory models/small-GGUF.",
        {},
        "format-or-arch-unknown",
    ),
    "bf16-type-before-ampere": (
        'kernels/flash_fwd.cu: error: identifier "__nv_bfloat162" is undefined',
        {"gpu": "T4"},
        "kernel-min-compute-capability",
    ),
    "old-card-in-ready-made": (
        "Error loading model. (Exit code: 18446744072635812000). Unknown error. Try a different model and/or config.",
        {"gpu": "GT 730"},
        "build-lacks-old-arch",
    ),
    "symbol-of-candle": (
        'Error: DriverError(CUDA_ERROR_NOT_FOUND, "named symbol not found") when loading is_u32_bf16',
        {"gpu": "RTX 4090"},
        "build-wrong-arch-flags",
    ),
    "cuda-translated-to-hip": (
        "Error named symbol not found at line 90 in file C:\\build\\bitsandbytes\\csrc\\ops.cu",
        {"gpu": "RX 6600 XT", "os": "Windows 11"},
        "platform-binary-missing",
    ),
    "four-bit-kernels-left-out": (
        "CUDA error: no kernel image is available for execution on the device (at src/kernels/awq/gemv_awq.cu:313)",
        {"gpu": "GTX 1080"},
        "kernel-min-compute-capability",
    ),
    "left-out-for-bfloat": ("This kernel is not supported on your GPU", {"gpu": "T4"}, "bf16-unsupported-gpu"),
    "binaries-with-avx": (
        "ImportError: DLL load failed while importing _pywrap_tensorflow_internal: A dynamic link library (DLL) "
        "initialization routine failed.",
        {},
        "cpu-instruction-missing",
    ),
}
