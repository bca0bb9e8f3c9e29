"""Cases of the rules of training and of torch's own messages: a log, an environment, and the cause spoken for."""

_SHIFTED = (
    "torch.utils.checkpoint.CheckpointError: Recomputed values for the following tensors have different metadata\n"
    "saved metadata: {'shape': torch.Size([1, 512]), 'dtype': torch.bfloat16}\n"
    "recomputed metadata: {'shape': torch.Size([1, 512]), 'dtype': torch.float32}"
)
_MISMATCH = "RuntimeError: CUDA error: CUBLAS_STATUS_ARCH_MISMATCH when calling `cublasGemmEx(handle, a, CUDA_R_16BF)`"

_HALF = "ValueError: fp16 mixed precision requires a GPU (not 'cpu')."

APPLIES = {
    "deepspeed-half-before-volta": (
        "ValueError: Type fp16 is not supported.",
        {"gpu": "Tesla P40"},
        "kernel-min-compute-capability",
    ),
    "gpu-nearly-full": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\nnvidia-smi: 11847MiB / 12045MiB",
        {},
        "gpu-out-of-memory",
    ),
    "sister-of-torch": (
        "OSError: /site-packages/torchaudio/lib/libtorchaudio.so: undefined symbol: _ZNK5torch8autograd4Node4nameEv",
        {},
        "package-version-mismatch",
    ),
    "sister-for-other-cuda": (
        "import torchaudio\nOSError: libcudart.so.12: cannot open shared object file: No such file or directory",
        {},
        "cuda-toolkit-mismatch",
    ),
    "triton-on-linux": (
        "RuntimeError: Cannot find a working triton installation.",
        {"os": "Ubuntu 22.04"},
        "package-version-mismatch",
    ),
    "absurd-allocation": (
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 5120000000000 bytes. Error code 12 (Cannot "
        "allocate memory)",
        {},
        "not-a-compatibility-problem",
    ),
    "integers-expected": (
        "RuntimeError: expected scalar type Long but found Int",
        {},
        "not-a-compatibility-problem",
    ),
    "integers-for-a-loss": (
        "RuntimeError: \"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Int'",
        {},
        "not-a-compatibility-problem",
    ),
    "complex-half-on-cpu": (
        "RuntimeError: \"mul_cpu\" not implemented for 'ComplexHalf'",
        {},
        "cpu-half-op-missing",
    ),
    "primitive-of-the-cpu": (
        "RuntimeError: could not create a primitive descriptor for a convolution forward propagation primitive",
        {"cpu": "Ryzen 5 5600X"},
        "cpu-half-op-missing",
    ),
    "shared-memory-of-container": (
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:825, unhandled system error; docker, /dev/shm 64M",
        {},
        "host-out-of-memory",
    ),
    "shared-memory-refused": (
        "include/shm.h:27 NCCL WARN Call to shm_open failed : Permission denied\n"
        "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-0-3-0 (size 4460544)\n"
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:290, unhandled system error",
        {},
        "not-a-compatibility-problem",
    ),
    "emptied-by-zero": (
        "size mismatch for lm_head.weight: copying a param with shape torch.Size([32000, 4096]) from checkpoint, the "
        "shape in current model is torch.Size([0]).",
        {},
        "software-defect",
    ),
    "flattens-quantised": (
        "ValueError: Must flatten tensors with uniform dtype but got torch.float16 and torch.uint8",
        {},
        "quantized-model-operation",
    ),
    "recomputed-in-other-dtype": (_SHIFTED, {}, "dtype-mix"),
    "ordinal-of-a-launcher": (
        "torch.cuda.set_device(args.local_rank)\nRuntimeError: CUDA error: invalid device ordinal",
        {},
        "not-a-compatibility-problem",
    ),
    "misaligned-address": ("RuntimeError: CUDA error: misaligned address", {}, "software-defect"),
    "deepspeed-on-old-gpu": (
        "RuntimeError: Unable to JIT load the inference_core_ops op due to hardware/software issue. None",
        {"gpu": "Tesla T4"},
        "kernel-min-compute-capability",
    ),
    "arch-newer-than-torch": (
        "in _get_cuda_arch_flags\nValueError: Unknown CUDA arch (8.9) or GPU not supported",
        {},
        "compiler-arch-unsupported",
    ),
    "factorised-without-quantiser": (
        "torch._C._LinAlgError: linalg.cholesky: The factorization could not be completed because the input is not "
        "positive-definite",
        {},
        "not-a-compatibility-problem",
    ),
    "products-in-bf16": (_MISMATCH, {"gpu": "GTX 1070"}, "bf16-unsupported-gpu"),
    "fp8-before-its-release": (
        "RuntimeError: torch._scaled_mm is only supported on devices with compute capability >= 9.0)",
        {"gpu": "RTX 4090"},
        "software-defect",
    ),
    "too-many-registers": (
        "RuntimeError: CUDA error: too many resources requested for launch",
        {"gpu": "Jetson Xavier NX"},
        "software-defect",
    ),
    "cuda-is-available": (
        ">>> torch.cuda.is_available()\nTrue\nRuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR",
        {"gpu": "RTX 4090", "torch": "1.12.1+cu116"},
        "build-lacks-new-arch",
    ),
    "library-before-generation": (
        "RuntimeError: NCCL Error 1: unhandled cuda error, NCCL version 2.4.8",
        {"gpu": "RTX 3090", "cuda": "10.2"},
        "build-lacks-new-arch",
    ),
    "opset-to-raise": (
        "RuntimeError: Exporting the operator upsample_bilinear2d to ONNX opset version 9 is not supported. Support "
        "for this operator was added in version 11",
        {},
        "not-a-compatibility-problem",
    ),
    "built-by-others": (
        "CUDA error 209 at /home/runner/work/x/ggml-cuda.cu:6902: no kernel image is available for execution on the "
        "device",
        {"gpu": "GTX 960M"},
        "build-lacks-old-arch",
    ),
    "bug-of-a-package": (
        'File ".../transformers/integrations/accelerate.py", line 62, in <module>\n'
        "NameError: name 'torch' is not defined",
        {},
        "software-defect",
    ),
    "kernels-before-their-floor": (
        'File "torchao/ops.py", in marlin_24_gemm\n'
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        {"gpu": "RTX 2080"},
        "kernel-min-compute-capability",
    ),
    "image-newer-than-driver": (
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        {"driver": "535.104.05", "cuda": "12.8"},
        "driver-too-old",
    ),
}
