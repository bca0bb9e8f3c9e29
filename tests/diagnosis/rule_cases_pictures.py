"""Cases of the rules of pictures and video: a log, an environment, and the cause that is spoken for there."""

IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
FULL = "RuntimeError: CUDA error: out of memory"
NANS = "NansException: A tensor with all NaNs was produced in Unet"
BLACK = "the output is a black image"
MIXED = "ValueError: bf16 mixed precision requires PyTorch >= 1.10 and a supported device."
HALF_MIXED = "ValueError: fp16 mixed precision requires a GPU"
CUBLAS = (
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( ltHandle, "
)
NO_GPU = "RuntimeError: Torch is not able to use GPU"
NO_DRIVER = "RuntimeError: Found no NVIDIA driver on your system."
PROVIDERS = "LoadLibrary failed with error 126 when trying to load onnxruntime_providers_cuda.dll"
DLL = "ImportError: DLL load failed while importing"

APPLIES = {
    "stopped-without-a-word": ("got prompt\nD:\\ComfyUI_windows_portable>pause", {}, "host-out-of-memory"),
    "slow-and-shared-memory": (
        "110 s/it\nDedicated GPU memory 15.7/16.0 GB, Shared GPU memory 9.8 GB",
        {},
        "gpu-out-of-memory",
    ),
    "smaller-fits": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR\nwith a smaller batch it runs",
        {},
        "gpu-out-of-memory",
    ),
    "tactics-without-memory": (
        "[TRT] [W] Device memory is insufficient to use tactic.\nCould not find any implementation for node {Foreign}",
        {},
        "gpu-out-of-memory",
    ),
    "bar-beside-an-error": (f"100%|####| 28/28 [00:09<00:00,  2.94it/s]\n{NANS}", {}, "fp16-overflow"),
    "nan-of-a-kernel": (f"{NANS} with --use-sage-attention, without it it is fine", {}, "software-defect"),
    "pictures-of-a-decoder": (f"hevc_cuvid: {BLACK} after seeking", {}, "software-defect"),
    "picture-after-an-error": (f"vkQueueSubmit failed -4\n{BLACK}", {}, "gpu-out-of-memory"),
    "nan-on-apple": (f"{NANS} on M3 Max", {"os": "macOS 15.5"}, "mps-dtype-unsupported"),
    "diverged-in-float32": (
        "FloatingPointError: Loss became infinite or NaN at iteration=1!",
        {},
        "not-a-compatibility-problem",
    ),
    "sizes-nearly-equal": (
        "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 96 but got size 95",
        {},
        "kernel-shape-constraint",
    ),
    "packed-and-fused": (
        "pipe.fuse_lora()\nRuntimeError: result type Float can't be cast to the desired output type Char",
        {},
        "quantized-lora-merge",
    ),
    "types-on-two-devices": (
        "RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
        {},
        "device-placement",
    ),
    "indices-of-yolo": (
        "yolov5/utils/loss.py\nRuntimeError: result type Float can't be cast to the desired output type long int",
        {},
        "package-version-mismatch",
    ),
    "half-on-the-processor": (
        "RuntimeError: \"upsample_bilinear2d_out_frame\" not implemented for 'Half', device cpu",
        {},
        "cpu-half-op-missing",
    ),
    "mixed-precision-has-a-gpu": (MIXED, {"gpu": "RTX 3090"}, "cpu-only-build"),
    "mixed-precision-without-cuda": (MIXED, {"torch": "2.1.2+cpu"}, "cpu-only-build"),
    "mixed-precision-in-container": (HALF_MIXED, {"os": "WSL2 Ubuntu"}, "gpu-not-visible"),
    "no-nvidia-at-all": (NO_DRIVER, {"gpu": "Intel HD 520"}, "not-a-compatibility-problem"),
    "webui-on-amd": (NO_GPU, {"gpu": "Radeon RX 580", "os": "Windows 10"}, "platform-binary-missing"),
    "driver-not-installed": (NO_GPU, {"driver": "none"}, "gpu-not-visible"),
    "onnxruntime-of-other-cuda": (
        PROVIDERS,
        {"torch": "2.4.1+cu124", "library_versions": "onnxruntime-gpu 1.17.1"},
        "cuda-toolkit-mismatch",
    ),
    "procedure-not-in-library": (
        "Could not load library cudnn_cnn_train64_8.dll. Error code 127",
        {},
        "cuda-toolkit-mismatch",
    ),
    "opencv-built-here": (
        f"{DLL} importing cv2: The specified module could not be found.",
        {"library_versions": "OpenCV 4.8 with CUDA"},
        "cuda-library-not-found",
    ),
    "processor-without-avx": (
        f"{DLL} _framework_bindings: A dynamic link library (DLL) initialization routine failed.",
        {"cpu": "Intel Xeon X5675"},
        "cpu-instruction-missing",
    ),
    "toolkit-and-its-consequence": (
        "gsplat: No CUDA toolkit found. gsplat will be disabled.\n"
        "AttributeError: 'NoneType' object has no attribute 'compute_sh_fwd'",
        {},
        "cuda-library-not-found",
    ),
    "sage-before-ampere": (f"{IMAGE}\nsageattention 2.1.1", {"gpu": "RTX 2060"}, "kernel-min-compute-capability"),
    "eight-bit-kernels-before-ada": (f"o = q8_mm_cuda(a, b)\n{IMAGE}", {"gpu": "RTX 3090"}, "fp8-fp4-unsupported-gpu"),
    "flash-absent-on-old-gpu": (
        "    assert FLASH_ATTN_2_AVAILABLE\nAssertionError",
        {"gpu": "Tesla T4"},
        "kernel-min-compute-capability",
    ),
    "fused-network-before-turing": (
        "Warning: FullyFusedMLP is not supported for the selected architecture 61. Falling back to CutlassMLP.",
        {"gpu": "GTX 1080"},
        "slow-dtype-path",
    ),
    "integer-units-left-out": (
        "error detectedException: cublasLt ran into an error!",
        {"gpu": "GTX 1660"},
        "int8-matmul-unsupported-gpu",
    ),
    "providers-asked-by-insightface": (
        "you are required to explicitly set the providers parameter when instantiating InferenceSession",
        {"library_versions": "insightface 0.2.1"},
        "package-version-mismatch",
    ),
    "quantiser-on-apple": (
        "ImportError: The bnb modules are not available.",
        {"os": "macOS 14"},
        "platform-binary-missing",
    ),
    "no-four-bit-units-on-hopper": (
        "ValueError: Unsupported GPU architecture 90 due to the lack of 4-bit tensorcores.",
        {"gpu": "H100 80GB"},
        "int8-matmul-unsupported-gpu",
    ),
    "optional-part-is-none": (
        "  File \"hyvideo/modules/attenion.py\", line 92, in attention\nTypeError: 'NoneType' object is not callable",
        {},
        "package-version-mismatch",
    ),
    "depth-that-no-encoder-has": (
        "[h264_nvenc @ 0x21f] 10 bit encode not supported",
        {},
        "not-a-compatibility-problem",
    ),
    "adapter-on-tensor-subclass": (
        "load_lora_weights: TypeError: WeightQBytesTensor.__new__() missing 6 required positional arguments",
        {},
        "quantized-lora-merge",
    ),
    "nan-of-a-known-release": (
        "xFormers 0.0.16 cannot be used for training in some GPUs.\nloss=nan, samples are black",
        {},
        "software-defect",
    ),
    "localhost-after-an-error": (
        "TypeError: argument of type 'bool' is not iterable\nValueError: When localhost is not accessible, a shareable",
        {},
        "package-version-mismatch",
    ),
    "shape-rounded-down": (
        "RuntimeError: shape '[1, 45, 8, 80, 8, 180]' is invalid for input of size 42120000",
        {},
        "kernel-shape-constraint",
    ),
    "numpy-of-later": (
        "ValueError: The requested array has an inhomogeneous shape after 1 dimensions.",
        {"library_versions": "numpy 1.24"},
        "package-version-mismatch",
    ),
    "no-sharing-on-windows": (
        "RuntimeError: CUDA error: operation not supported\ntorch.multiprocessing, rebuild_cuda_tensor",
        {"os": "Windows"},
        "platform-binary-missing",
    ),
    "network-floor-of-old-gpu": (
        "CUDA backend for DNN module requires CC 5.3 or higher.",
        {"gpu": "GTX 970M"},
        "kernel-min-compute-capability",
    ),
    "compiled-without-toolkit": (
        "NameError: name '_C' is not defined",
        {"os": "Ubuntu 22.04, CUDA_HOME empty at install"},
        "cuda-library-not-found",
    ),
    "later-kind-of-model": (
        'RuntimeError: Error(s) in loading state_dict for LatentDiffusion: Unexpected key(s): "double_blocks.0"',
        {},
        "format-or-arch-unknown",
    ),
    "schedule-past-its-end": (
        'File "diffusers/schedulers/scheduling_euler_discrete.py", line 345, in step\n'
        "IndexError: index 21 is out of bounds for dimension 0 with size 21",
        {},
        "software-defect",
    ),
}
