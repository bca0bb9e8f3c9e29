"""Which maker's device, and whose memory, a message speaks of."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene

#: Accelerators that torch reaches by a package of its own.
_OTHERS = r"(?i)\btorch[_-](?:npu|gcu|mlu|musa|hpu|sdaa|xla|xmlir)\b|\bascend\b|\+xpu\b|\bHabana\b|\bCambricon\b"
#: What allocates on a GPU, in programs whose message is that of a machine's memory.
_ON_GPU = (
    r"CUDA error at|\bDirectML\b|\bDml(?:ExecutionProvider\b|\w*Allocator)|\brmm\b"
    r"|\bcudaError(?:MemoryAllocation|OutOfMemory)|(?:cuda|device)_memory_resource"
)
#: Backends that are packages of their own, as an environment lists them.
_BACKENDS = r"(?i)\b(?:(?:pytorch|torch|onnxruntime|tensorflow)[_-]directml|torch[_-](?:npu|gcu|mlu|musa|xla)|ipex)\b"
_ARM = r"(?i)\bjetson|\baarch64|\btegra|\barm64|\borin\b"
_AMISS = r"(?i)error|exception|\bfail|unsupported|not (?:supported|implemented)|\bfloat64\b|\bdouble\b"
#: What says that a library was not found or is another's.
_LOADING = ("library-missing", "undefined-symbol", "dll-load", "cuda-module-missing")
#: Libraries of packages that bring a backend to torch.
_BACKEND_LIBRARY = (
    r"libtorch_npu|\d(?:c10|at|torch)_npu\d|_ZNK?2ge\d|libintel-ext|intel_extension_for|_XLAC|torch_xla"
    r"|torch_directml|habana"
)
#: AMD GPUs that ROCm's own builds hold code for.
_OFFICIAL = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1200", "gfx1201")
#: An attribute that its own package does not promise to keep.
_PRIVATE = r"'(?!NoneType)\w+' object has no attribute '(?:_(?!_)\w+|experimental_\w+)"
#: Where an operation is missing that is neither a CPU's nor one of CUDA or ROCm.
_OTHER_MAKER = r"(?i)(?:\b|_)(?:xpu|npu|hpu)\b|\bipex_llm|\bbigdl\b|\bxe_(?:addons|linear|batch)"
#: Devices that TensorFlow names in its messages and that are neither a CPU nor a GPU of CUDA or ROCm.
_NAMED = r"(?i)'(?:DML|NPU|HPU|XLA_TPU\w*|TPU|IPU|XPU)' devices"


def _for_nvidia(scene: Scene) -> bool:
    return scene.vendor in ("amd", "intel", "apple") and scene.has("cuda-gpu-demanded", "awq-needs-gpu")


def _on_amd(scene: Scene) -> bool:
    return scene.vendor == "amd" or scene.about(r"(?i)\+rocm|\bROCm\b|zluda|amdgpu")


def _other_cudnn(scene: Scene) -> bool:
    named = re.match(r"libcudnn\w*\.so\.(\d+)", scene.words.get("library") or scene.words.get("loaded") or "")
    here = re.search(r"(?i)cudnn(?:[-_]cu\d+)?[ =:v]{0,3}(\d{1,2})\b", scene.facts.stated)
    return named is not None and here is not None and named[1] != here[1]


def _build_for_gpu(scene: Scene) -> bool:
    stated = re.search(r"\d\+(?:cu\d|rocm|xpu)", f"{scene.facts.stated} {scene.said}")
    shown = re.search(r"torch\.version\.(?:hip|cuda)\b\W{0,6}\d", scene.said)
    return scene.has("is-available-false") and bool(stated or shown) and "+cpu" not in scene.facts.stated


RULES: tuple[Rule, ...] = (
    Rule(
        "kernel-of-other-maker",
        lambda s: (
            s.has("torch-dtype-not-implemented", "dtype-not-taken")
            and s.says(_OTHER_MAKER)
            and "cpu" not in s.words.get("kernel", "").lower()
        ),
        {"xpu-directml-unsupported": 5.5, "gpu-dtype-op-missing": -1.5, "cpu-half-op-missing": -1.5},
        "the operation that is missing is that of another maker's backend",
        "torch, dispatcher; IPEX-LLM",
    ),
    Rule(
        "build-is-for-gpu",
        _build_for_gpu,
        {"gpu-not-visible": 3, "cpu-only-build": -3},
        "the torch installed was built for GPUs: it finds none",
        "torch.version.cuda, torch.version.hip",
    ),
    Rule(
        "device-function-of-cuda",
        lambda s: s.has("cuda-invalid-device-function") and s.says(r"RuntimeError: CUDA error") and not _on_amd(s),
        {"rocm-arch-unsupported": -3, "build-wrong-arch-flags": 0.7},
        "torch names HIP where it runs on AMD's GPUs: this is a build for CUDA",
        "torch, c10/cuda and c10/hip",
    ),
    Rule(
        "cuda-extension-on-rocm",
        lambda s: s.has("undefined-symbol") and _on_amd(s) and s.says(r"undefined symbol.{0,80}cuda"),
        {"platform-binary-missing": 7, "cuda-toolkit-mismatch": -2},
        "the extension was compiled for CUDA, the torch here for ROCm",
        "torch, c10/hip",
    ),
    Rule(
        "nvidia-build-on-amd",
        lambda s: s.has("no-nvidia-driver") and s.vendor in ("amd", "intel"),
        {"platform-binary-missing": 6, "gpu-not-visible": -2},
        "{gpu} is no NVIDIA GPU: the torch installed was built for CUDA",
        "torch, builds for ROCm and XPU",
    ),
    Rule(
        "refused-by-kfd",
        lambda s: s.has("kfd-refuses-card") and s.has("kfd", "hsa-resources"),
        {"rocm-arch-unsupported": 1, "gpu-not-visible": -4},
        "what cannot be opened is what the kernel's driver left out for this card",
        "Linux, amdkfd",
    ),
    Rule(
        "cublas-named-by-rocm",
        lambda s: s.has("cublas-execution-failed", "cublas-invalid-value") and s.says("ROCm error"),
        {"software-defect": 2, "rocm-arch-unsupported": 2, "cuda-toolkit-mismatch": -3},
        "it is rocBLAS, which the program calls by the names of cuBLAS",
        "ggml, vendors/hip.h",
    ),
    Rule(
        "cudnn-on-amd",
        lambda s: s.has("cudnn-not-supported") and _on_amd(s),
        {"platform-binary-missing": 3.6, "cuda-toolkit-mismatch": -1},
        "there is no cuDNN for AMD GPUs: it must be switched off",
        "ZLUDA",
    ),
    Rule(
        "metal-built-in",
        lambda s: s.has("mps-not-available") and s.says_last(r"mps\.is_built\(\)\W{0,8}True"),
        {"gpu-not-visible": 2.5, "cpu-only-build": -2},
        "torch was built for Apple's GPU: it finds none",
        "torch.backends.mps",
    ),
    Rule(
        "metal-not-built-in",
        lambda s: s.has("mps-not-available") and s.says_last(r"mps\.is_built\(\)\s*(?:False|>>>|In \[|\Z)"),
        {"cpu-only-build": 4.5, "gpu-not-visible": -1},
        "torch was built without Apple's GPU",
        "torch.backends.mps",
    ),
    Rule(
        "available-after-all",
        lambda s: s.has("is-available-false") and s.says_last(r"cuda\.is_available\(\)\W{0,8}True"),
        {"gpu-not-visible": -3, "cpu-only-build": -3},
        "torch sees the GPU",
        "torch.cuda.is_available",
    ),
    Rule(
        "allocator-of-the-host",
        lambda s: (
            s.has("hip-out-of-memory", "cuda-driver-oom", "cuda-out-of-memory")
            and s.says(r"(?:hip|cuda|cu)(?:HostMalloc|MallocHost|HostAlloc|HostRegister)|host_malloc")
        ),
        {"host-out-of-memory": 6.5, "gpu-out-of-memory": -3},
        "what failed is memory of the machine, pinned for the GPU",
        "CUDA and HIP run times, pinned memory",
    ),
    Rule(
        "ctranslate2-elsewhere",
        lambda s: s.has("cpu-only-package") and s.says("CTranslate2") and (s.vendor == "amd" or s.about(_ARM)),
        {"platform-binary-missing": 8, "cpu-only-build": -3},
        "CTranslate2's own builds compute on the GPUs of x86 machines and of NVIDIA only",
        "CTranslate2, installation",
    ),
    Rule(
        "symbol-of-backend",
        lambda s: s.has("undefined-symbol") and s.says(_BACKEND_LIBRARY),
        {"package-version-mismatch": 5, "cuda-toolkit-mismatch": -2},
        "the package that brings the backend was built for another release of torch",
        "torch_npu, IPEX, torch_xla: the releases of torch that they belong to",
    ),
    Rule(
        "compiler-on-metal",
        lambda s: s.has("torch-compiler-failed") and s.about(r"(?i)device type: mps|\bmps\b"),
        {"compiler-arch-unsupported": 4.5, "platform-binary-missing": -1},
        "torch's compiler has little for Apple's GPUs",
        "torch._inductor",
    ),
    Rule(
        "official-amd-gpu",
        lambda s: (
            s.has("gpu-fell-off", "amd-memory-fault", "hsa-exception", "amd-gpu-hang")
            and s.facts.gpu is not None
            and s.facts.gpu.arch in _OFFICIAL
            and not s.says("HSA_OVERRIDE")
        ),
        {"software-defect": 3.4, "rocm-arch-unsupported": -2.4},
        "ROCm's own builds hold code for {gpu}",
        "AMD, ROCm compatibility matrix",
    ),
    Rule(
        "other-cudnn",
        _other_cudnn,
        {"cuda-toolkit-mismatch": 3.5, "cuda-library-not-found": -1},
        "the library that is missing belongs to another cuDNN than the one here",
        "cuDNN, names of its libraries",
    ),
    Rule(
        "torch-does-not-know-arch",
        lambda s: s.has("nvrtc-arch") and s.says(r"Unknown CUDA arch \(\d"),
        {"compiler-arch-unsupported": 3, "build-wrong-arch-flags": -4},
        "this torch does not know the architecture that it was asked to compile for",
        "torch.utils.cpp_extension",
    ),
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
        lambda s: s.has("host-allocation", "host-out-of-memory", "map-file-failed") and s.says(_ON_GPU),
        {"gpu-out-of-memory": 5, "host-out-of-memory": -6},
        "it is the GPU's allocator that found no memory",
        "RAPIDS memory manager; CUDA runtime, cudaErrorMemoryAllocation",
    ),
    Rule(
        "backend-in-environment",
        lambda s: (
            re.search(_BACKENDS, s.facts.stated) is not None
            and (bool(s.hits) or s.says(_AMISS))
            and not s.has(*_LOADING)
        ),
        {"xpu-directml-unsupported": 1.8},
        "the program runs on a backend that has fewer operations and dtypes than CUDA",
        "DirectML, IPEX, torch_npu",
    ),
    Rule(
        "processor-of-onnxruntime",
        lambda s: (
            s.has("operator-not-registered")
            and bool({"bf16", "f16"} & s.facts.dtypes)
            and s.says("ONNXRuntimeError|NOT_IMPLEMENTED : Could not find an implementation")
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
