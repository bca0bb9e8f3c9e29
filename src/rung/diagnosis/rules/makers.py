"""Which maker's device, and whose memory, a message speaks of."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene

#: Accelerators that torch reaches by a package of its own.
_OTHERS = r"(?i)\btorch[_-](?:npu|gcu|mlu|musa|hpu|sdaa|xla|xmlir)\b|\bascend\b|\bHabana\b|\bCambricon\b"
#: What allocates on a GPU, in programs whose message is that of a machine's memory.
_ON_GPU = (
    r"CUDA error at|\bDirectML\b|\brmm\b|\bcudaError(?:MemoryAllocation|OutOfMemory)|(?:cuda|device)_memory_resource"
)
#: Backends that are packages of their own, as an environment lists them.
_BACKENDS = r"(?i)\b(?:(?:pytorch|torch|onnxruntime|tensorflow)[_-]directml|torch[_-](?:npu|gcu|mlu|musa|xla)|ipex)\b"
_ARM = r"(?i)\bjetson|\baarch64|\btegra|\barm64|\borin\b"
_AMISS = r"(?i)error|exception|\bfail|unsupported|not (?:supported|implemented)|\bfloat64\b|\bdouble\b"
#: An attribute that its own package does not promise to keep.
_PRIVATE = r"'(?!NoneType)\w+' object has no attribute '(?:_(?!_)\w+|experimental_\w+)"
#: Devices that TensorFlow names in its messages and that are neither a CPU nor a GPU of CUDA or ROCm.
_NAMED = r"(?i)'(?:DML|NPU|HPU|XLA_TPU\w*|TPU|IPU|XPU)' devices"


def _for_nvidia(scene: Scene) -> bool:
    return scene.vendor in ("amd", "intel", "apple") and scene.has("cuda-gpu-demanded", "awq-needs-gpu")


RULES: tuple[Rule, ...] = (
    Rule(
        "tensorflow-on-metal",
        lambda s: s.facts.apple and s.has("tensorflow-kernel-missing"),
        {"mps-dtype-unsupported": 5, "gpu-dtype-op-missing": -2},
        "on macOS the GPU is reached through Metal, which has kernels for part of the operations",
        "Apple, tensorflow-metal",
    ),
    Rule(
        "program-for-cuda-only",
        _for_nvidia,
        {"platform-binary-missing": 3.5, "gpu-not-visible": -2, "kernel-min-compute-capability": -3},
        "{gpu} is no NVIDIA GPU: the program has no code for it",
        "programs written for CUDA",
    ),
    Rule(
        "accelerator-of-its-own",
        lambda s: s.has("torch-without-cuda") and s.about(_OTHERS),
        {"xpu-directml-unsupported": 4, "cpu-only-build": -2, "not-a-compatibility-problem": -1},
        "the device is another accelerator than CUDA: what asks for CUDA by name was not written for it",
        "torch, PrivateUse1 backends",
    ),
    Rule(
        "allocator-of-the-gpu",
        lambda s: s.has("host-allocation", "host-out-of-memory") and s.says(_ON_GPU),
        {"gpu-out-of-memory": 5, "host-out-of-memory": -6},
        "it is the GPU's allocator that found no memory",
        "RAPIDS memory manager; CUDA runtime, cudaErrorMemoryAllocation",
    ),
    Rule(
        "backend-in-environment",
        lambda s: re.search(_BACKENDS, s.facts.stated) is not None and (bool(s.hits) or s.says(_AMISS)),
        {"xpu-directml-unsupported": 1.8},
        "the program runs on a backend that has fewer operations and dtypes than CUDA",
        "DirectML, IPEX, torch_npu",
    ),
    Rule(
        "processor-of-onnxruntime",
        lambda s: (
            s.has("operator-not-registered")
            and bool({"bf16", "f16"} & s.facts.dtypes)
            and s.says("ONNXRuntimeError")
            and (s.facts.apple or s.facts.without_gpu or s.says("CPUExecutionProvider"))
        ),
        {"cpu-half-op-missing": 3, "gpu-dtype-op-missing": -2, "xpu-directml-unsupported": -1},
        "ONNX Runtime ran on the processor, which has few operations in 16 bits",
        "ONNX Runtime, OperatorKernels.md",
    ),
    Rule(
        "operator-not-on-device",
        lambda s: s.has("operator-not-registered") and s.says(_NAMED),
        {"xpu-directml-unsupported": 4, "gpu-dtype-op-missing": -2},
        "the device named is another accelerator: its plug-in has not this operation in this dtype",
        "TensorFlow, op_kernel.cc",
    ),
    Rule(
        "bnb-on-arm",
        lambda s: s.has("bnb-setup-path", "bnb-required-library", "bnb-setup-failed") and s.about(_ARM),
        {"platform-binary-missing": 3.5},
        "older bitsandbytes has no libraries for Arm",
        "bitsandbytes, release notes",
    ),
    Rule(
        "private-name-missing",
        lambda s: s.has("python-plain") and s.says(_PRIVATE),
        {"package-version-mismatch": 2},
        "an inner name of another package is gone: the two were written for different versions",
        "Python, names that begin with an underscore",
    ),
)
