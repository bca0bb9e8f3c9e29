"""Cases of the rules of builds, makers, packages and releases: a log, an environment, and the cause spoken for."""

IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
LISTED = "The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90."
NOT_INITIALIZED = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled"
SETUP = "CUDA_SETUP: WARNING! libcudart.so not found in any environmental path."

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
    "build-is-for-gpu": (
        ">>> torch.cuda.is_available()\nFalse",
        {"torch": "2.5.1+rocm6.2"},
        "gpu-not-visible",
    ),
    "device-function-of-cuda": (
        "RuntimeError: CUDA error: invalid device function",
        {},
        "build-wrong-arch-flags",
    ),
    "cuda-extension-on-rocm": (
        "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        {"gpu": "MI100"},
        "platform-binary-missing",
    ),
    "nvidia-build-on-amd": (
        "RuntimeError: Found no NVIDIA driver on your system.",
        {"gpu": "RX 6800", "torch": "2.3.0+cu121"},
        "platform-binary-missing",
    ),
    "cudnn-on-amd": (
        "RuntimeError: GET was unable to find an engine to execute this computation",
        {"gpu": "RX 6800", "library_versions": "ZLUDA 3.8"},
        "platform-binary-missing",
    ),
    "metal-built-in": (
        ">>> torch.backends.mps.is_available()\nFalse\n>>> torch.backends.mps.is_built()\nTrue",
        {},
        "gpu-not-visible",
    ),
    "metal-not-built-in": (
        ">>> torch.backends.mps.is_available()\nFalse\n>>> torch.backends.mps.is_built()\nFalse",
        {},
        "cpu-only-build",
    ),
    "available-after-all": (
        ">>> torch.cuda.is_available()\nTrue\nRuntimeError: CUDA error: out of memory",
        {},
        "gpu-out-of-memory",
    ),
    "allocator-of-the-host": (
        "RuntimeError: CUDA error: out of memory\nin function ggml_cuda_host_malloc: cudaMallocHost failed",
        {},
        "host-out-of-memory",
    ),
    "ctranslate2-elsewhere": (
        "ValueError: This CTranslate2 package was not compiled with CUDA support",
        {"gpu": "Jetson Orin"},
        "platform-binary-missing",
    ),
    "refused-by-kfd": (
        "kfd kfd: amdgpu: OLAND not supported in kfd\nUnable to open /dev/kfd read-write: Cannot allocate memory",
        {},
        "rocm-arch-unsupported",
    ),
    "cublas-named-by-rocm": ("ROCm error: CUBLAS_STATUS_INTERNAL_ERROR\n  current device: 0", {}, "software-defect"),
    "symbol-of-backend": (
        "OSError: vendor/extension.so: undefined symbol: _ZN7c10_npu3acl14AclrtPeekErrorEv",
        {},
        "package-version-mismatch",
    ),
    "compiler-on-metal": (
        "BackendCompilerFailed: backend='inductor' raised: Unsupported device type: mps",
        {},
        "compiler-arch-unsupported",
    ),
    "official-amd-gpu": (
        "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.",
        {"gpu": "RX 7900 XTX"},
        "software-defect",
    ),
    "other-cudnn": (
        "OSError: libcudnn.so.8: cannot open shared object file: No such file or directory",
        {"library_versions": "cuDNN 9.1"},
        "cuda-toolkit-mismatch",
    ),
    "torch-does-not-know-arch": (
        'in _get_cuda_arch_flags\nraise ValueError(f"Unknown CUDA arch (12.0) or GPU not supported")',
        {},
        "compiler-arch-unsupported",
    ),
    "tensorflow-on-metal": (
        "InvalidArgumentError: Could not satisfy explicit device specification '/device:GPU:0' because no supported "
        "kernel for GPU devices is available.",
        {"os": "macOS 13"},
        "mps-dtype-unsupported",
    ),
    "module-of-the-host": (
        'File "app/custom_nodes/my_nodes/__init__.py", line 3, in <module>\n'
        "ModuleNotFoundError: No module named 'comfy_execution.graph_utils'",
        {},
        "package-version-mismatch",
    ),
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
    "ggml-floor-on-ampere": (
        "common.cuh:112: ggml was not compiled with any CUDA arch <= 750",
        {"gpu": "A100"},
        "software-defect",
    ),
    "narrow-floats-left-out": (
        "NotImplementedError: No compiled cutlass_scaled_mm for CUDA device capability: 120",
        {"gpu": "RTX 5090"},
        "build-lacks-new-arch",
    ),
    "tensorflow-without-windows": (
        ">>> tf.config.list_physical_devices('GPU')\n[]\n>>> tf.__version__\n'2.16.1'",
        {"os": "Windows 11", "gpu": "RTX 3080"},
        "cpu-only-build",
    ),
    "cpu-wheel-on-windows": ("torch.cuda.is_available() False", {"os": "Windows 10"}, "cpu-only-build"),
    "cpu-wheel": ("No CUDA GPUs are available\ntorch 2.3.0+cpu", {}, "cpu-only-build"),
    "gpu-is-there": (NO_CUDA, {"driver": "535.1"}, "cpu-only-build"),
    "mac-without-cuda": (
        "ImportError: Using `load_in_8bit=True` requires Accelerate",
        {"os": "macOS"},
        "platform-binary-missing",
    ),
    "bnb-path-empty": (f"{SETUP}\nDEBUG: Possible options found for libcudart.so: set()", {}, "cuda-library-not-found"),
    "bnb-two-cudas": (SETUP, {"cuda": "12.3 (system), 11.8 (torch)"}, "cuda-toolkit-mismatch"),
    "bnb-on-windows": (SETUP, {"os": "Windows 11"}, "platform-binary-missing"),
    "build-before-gpu": (IMAGE, {"gpu": "RTX 3090", "torch": "1.7.0+cu101"}, "build-lacks-new-arch"),
    "released-before-gpu": (IMAGE, {"gpu": "RTX 5090", "torch": "2.5.1+cu124"}, "build-lacks-new-arch"),
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
    "released-without-gpu": (IMAGE, {"gpu": "Tesla V100", "torch": "2.9.0+cu130"}, "build-lacks-old-arch"),
    "released-for-gpu": (
        f"grads = grads[sel]\n{IMAGE}",
        {"gpu": "RTX 5090", "torch": "2.7.1+cu128"},
        "build-wrong-arch-flags",
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
    "cpu-version-named": ("torch 2.4.1+cpu, torch.cuda.is_available() is False", {}, "cpu-only-build"),
    "amd-crash": ("Segmentation fault (core dumped)", {"gpu": "gfx1102"}, "rocm-arch-unsupported"),
    "cublas-in-environment": (
        NOT_INITIALIZED,
        {"library_versions": "nvidia-cublas-cu11 11.10.3.66"},
        "cuda-toolkit-mismatch",
    ),
    "triton-on-windows": ("No module named 'triton'", {"os": "Windows 11"}, "platform-binary-missing"),
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
}
