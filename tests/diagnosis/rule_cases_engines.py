"""Cases of the rules of inference engines: a log, an environment, and the cause that is spoken for there."""

CUBLASLT = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( h )`"
SCALED = "RuntimeError: No implemented fp8_blockwise_scaled_mm for current compute capability"
DRIVER = "Error 803: system has unsupported display driver / cuda driver combination"

APPLIES = {
    "driver-of-earlier-cuda": (
        "Error 804: forward compatibility was attempted on non supported HW",
        {"driver": "460.80", "cuda": "11.3", "gpu": "GTX 1650"},
        "driver-too-old",
    ),
    "compatibility-in-container": (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on "
        "non supported HW",
        {"os": "docker nvcr.io/nvidia/pytorch:24.05-py3"},
        "driver-too-old",
    ),
    "target-without-letter": (
        "ptxas error   : Feature '.kind::mxf4' not supported on .target 'sm_120'",
        {"gpu": "RTX 5090"},
        "build-wrong-arch-flags",
    ),
    "fell-back-on-newer-gpu": (
        "Your GPU does not have native support for FP8 computation but FP8 quantization is being used.",
        {"gpu": "H100"},
        "software-defect",
    ),
    "int8-method": (
        "Quantization scheme is not supported for the current GPU. Min capability: 75. Current capability: 70. W8A8",
        {"gpu": "V100"},
        "int8-matmul-unsupported-gpu",
    ),
    "int8-of-odd-shape": (
        "RuntimeError: igemmlt failed: cublasLt status 7 shapeA=torch.Size([3, 1026])",
        {},
        "kernel-shape-constraint",
    ),
    "flashinfer-on-turing": (
        "FlashInfer Internal Error: Invalid configuration : NUM_MMA_Q=2 NUM_MMA_D_QK=16",
        {"gpu": "T4"},
        "kernel-min-compute-capability",
    ),
    "narrow-floats-are-there": (
        "RuntimeError: Error Internal in cutlass_scaled_mm, an fp8 model crashes",
        {"gpu": "RTX 5090"},
        "software-defect",
    ),
    "kernels-of-blackwell": (SCALED, {"gpu": "RTX 5090"}, "build-lacks-new-arch"),
    "narrow-floats-before-ada": (SCALED, {"gpu": "RTX 3090"}, "fp8-fp4-unsupported-gpu"),
    "product-in-narrow-floats": (CUBLASLT + " in torch._scaled_mm", {"gpu": "A100"}, "fp8-fp4-unsupported-gpu"),
    "image-for-older-gpu": (
        "Could not start backend: Runtime compute cap 120 is not compatible with compile time compute cap 90",
        {},
        "build-lacks-new-arch",
    ),
    "compatibility-library-found": (
        DRIVER + "\nlibcuda.so.1 => /usr/local/cuda/compat/libcuda.so.1",
        {},
        "cuda-toolkit-mismatch",
    ),
    "driver-changed-under-it": (
        "Failed to initialize NVML: Driver/library version mismatch\n" + DRIVER,
        {},
        "gpu-not-visible",
    ),
    "device-type-without-gpu": ("RuntimeError: Failed to infer device type", {"os": "macOS 15"}, "cpu-only-build"),
    "list-given-by-hand": (
        "CUDA error: no kernel image is available for execution on the device\nbuild_wheel.py --cuda_architectures 90",
        {"gpu": "L4"},
        "build-wrong-arch-flags",
    ),
    "bf16-not-taken-before-ampere": (
        "ValueError: Data type torch.bfloat16 is not supported by current accelerator",
        {"gpu": "Quadro RTX 6000"},
        "bf16-unsupported-gpu",
    ),
    "attention-of-dropped-gpu": (
        "RuntimeError: cutlassF: no kernel found to launch!",
        {"gpu": "Tesla M60"},
        "build-lacks-old-arch",
    ),
    "device-taken-by-windows": (
        "DmlExecutionProvider: 887A0005 The GPU device instance has been suspended.\nwith DirectML",
        {},
        "gpu-out-of-memory",
    ),
    "memory-of-directml": (
        "onnxruntime: 8007000E Not enough memory resources are available to complete this operation.",
        {},
        "gpu-out-of-memory",
    ),
    "bindings-for-other-processor": (
        "ModuleNotFoundError: No module named '_turbomind'",
        {"os": "Jetson Orin, aarch64"},
        "platform-binary-missing",
    ),
    "cudnn-of-older-torch": (
        "OSError: libcudnn_cnn_infer.so.8: cannot open shared object file: No such file or directory",
        {"torch": "2.5.1+cu124"},
        "cuda-toolkit-mismatch",
    ),
}
