"""Hold what surrounds torch's messages settles: memory that is full, packages that belong to torch, processes,
symbols."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.builds import first_cuda

#: How much of a memory is taken, as nvidia-smi and people write it: 11847MiB / 12045MiB, 23.6 of 23.7 GiB.
_TAKEN = re.compile(
    r"\b(\d{1,6}(?:\.\d{1,2})?) ?(?:[MG]i?B)? ?(?:/|of|out of) ?(\d{1,6}(?:\.\d{1,2})?) ?[MG]i?B\b", re.IGNORECASE
)
_NEARLY = 0.93
#: What libraries of CUDA say, among other things, where they find no memory.
_STARVED = (
    "cublas-not-initialized",
    "cublas-alloc-failed",
    "cublas-execution-failed",
    "cudnn-not-initialized",
    "cudnn-internal",
    "cudnn-not-supported",
    "cudnn-algorithm",
    "cufft-internal",
    "collective-timeout",
)
#: What they say, among other things, where they hold no code for the GPU.
_WITHOUT_CODE = ("cublas-not-initialized", "cudnn-algorithm", "collective-timeout")
#: Branches of NVIDIA's driver and the CUDA that each came with.
_DRIVERS = (
    (450, (11, 0)),
    (455, (11, 1)),
    (460, (11, 2)),
    (465, (11, 3)),
    (470, (11, 4)),
    (495, (11, 5)),
    (510, (11, 6)),
    (515, (11, 7)),
    (520, (11, 8)),
    (525, (12, 0)),
    (530, (12, 1)),
    (535, (12, 2)),
    (545, (12, 3)),
    (550, (12, 4)),
    (555, (12, 5)),
    (560, (12, 6)),
    (565, (12, 7)),
    (570, (12, 8)),
    (575, (12, 9)),
    (580, (13, 0)),
)
#: Packages without CUDA of their own that are released with torch, each for one release of it.
_SISTERS = r"torchvision|torchaudio|torchtext|torchcodec|torchdata|functorch|torch_xla|_XLAC|horovod"
#: A thousand gigabytes: no model asks so much of one tensor.
_ABSURD = re.compile(r"allocate (\d{13,30})\b")
_LINUX = r"(?i)\b(?:ubuntu|linux|debian|centos|fedora|rhel|arch|mint|wsl)\b"
_LAUNCHER = r"nproc_per_node|torchrun|set_device\(|local_rank|device_map|CUDA_VISIBLE_DEVICES|accelerate launch"
#: Shared memory that the system does not give, however much there is.
_SHARED_REFUSED = (
    r"shm_open failed ?: Permission denied|(?:/dev/shm|/torch_\d)[^\n]{0,160}Permission denied"
    r"|Permission denied[^\n]{0,60}/dev/shm"
)
_QUANTIZER = r"(?i)gptq|quanti|hessian|damp|sparsegpt|hinv"
_METADATA = re.compile(r"(saved|recomputed) metadata: .{0,200}'dtype': (torch\.\w+)")


def _nearly_full(scene: Scene) -> bool:
    if not scene.has(*_STARVED):
        return False
    return any(
        float(whole) > 0 and _NEARLY <= float(taken) / float(whole) <= 1 for taken, whole in _TAKEN.findall(scene.said)
    )


def _recomputed_dtype(scene: Scene) -> bool:
    found: dict[str, str] = {}
    for when, dtype in _METADATA.findall(scene.said):
        found.setdefault(when, dtype)
    return scene.has("recomputed-otherwise") and len(set(found.values())) > 1


def _sister(scene: Scene) -> bool:
    """Return whether the line that could not be loaded belongs to a package that is released with torch."""
    lines = [
        hit.line for hit in scene.hits if hit.signature.id in ("undefined-symbol", "dll-load", "dll-of-other-version")
    ]
    return any(re.search(_SISTERS, line) for line in lines)


def _built_for_other_cuda(scene: Scene) -> bool:
    named = scene.has("library-missing") and re.match(r"libcu(?:dart|blas)", scene.words.get("library", ""))
    return bool(named) and re.search(r"\btorch(?:audio|vision|text)\b", scene.said) is not None


def _answers_true(scene: Scene) -> bool:
    """Return whether a line of the log is a bare True, as an interpreter answers, and none a bare False."""
    return re.search(r"(?m)^\s*True\s*$", scene.said) is not None and "False" not in scene.said


def _before_its_generation(scene: Scene) -> bool:
    """Return whether CUDA is older than the first GPU of the same generation: what holds code for that one runs on
    it."""
    facts = scene.facts
    if facts.capability is None or facts.cuda is None or not scene.has(*_WITHOUT_CODE):
        return False
    first = first_cuda(facts.capability // 10 * 10)
    return first is not None and facts.cuda < first


def _newer_than_driver(scene: Scene) -> bool:
    """Return whether the CUDA at hand is newer than the one that the driver came with."""
    found = re.match(r"\d+", scene.facts.driver)
    known = max((row for row in _DRIVERS if found and row[0] <= int(found[0])), default=None)
    return known is not None and scene.facts.cuda is not None and scene.facts.cuda > known[1]


#: An adapter merged into a model, and one merged into weights that are packed.
_MERGED = r"(?i)\bmerg(?:e|ed|ing)\b.{0,80}\b(?:lora|adapters?)\b|\b(?:lora|adapters?)\b.{0,80}\bmerg(?:e|ed|ing)\b"
_PACKED = r"(?:gguf|nf4|\b[48]-?bit|quanti[sz]|gptq|awq)"
_INTO_PACKED = (
    rf"\b(?:fus|merg)(?:e|ed|ing)\b.{{0,60}}\blora.{{0,60}}{_PACKED}|lora.{{0,60}}\b(?:fus|merg).{{0,60}}{_PACKED}"
)

RULES: tuple[Rule, ...] = (
    Rule(
        "merging-the-quantised",
        lambda s: (
            s.has("quantised-layer-lacks", "training-of-quantised", "quantised-operator-elsewhere")
            and re.search(r"merge_and_unload|merge_lora|merge_adapter|\bmerge\(|fuse_lora", s.said) is not None
        ),
        {"quantized-lora-merge": 5, "quantized-model-operation": -1},
        "it is the merge of an adapter that the quantised layer does not know",
        "PEFT, tuners/lora",
    ),
    Rule(
        "merged-and-worse",
        lambda s: s.has("bad-output-quantised", "quantised-and-bad") and s.says(_MERGED),
        {"quantized-lora-merge": 5.5, "quantization-accuracy": -1.5},
        "the adapter was merged into weights that are quantised, which rounds it away",
        "PEFT, tuners/lora/bnb.py",
    ),
    Rule(
        "merging-of-packed",
        lambda s: s.has("shape-mismatch") and s.says(f"(?i){_INTO_PACKED}"),
        {"quantized-lora-merge": 5, "not-a-compatibility-problem": -2},
        "packed weights have another shape than the adapter is for",
        "diffusers, fusing of LoRA; bitsandbytes",
    ),
    Rule(
        "deepspeed-half-before-volta",
        lambda s: s.has("half-not-for-processor") and s.vendor == "nvidia" and s.below(70),
        {"kernel-min-compute-capability": 6, "cpu-half-op-missing": -2},
        "{gpu} has compute capability {cc}; DeepSpeed takes float16 from 7.0 on",
        "DeepSpeed, cuda_accelerator.py",
    ),
    Rule(
        "gpu-nearly-full",
        _nearly_full,
        {"gpu-out-of-memory": 3.2},
        "the memory of the GPU is all but taken, and a library that starts wants some",
        "nvidia-smi",
    ),
    Rule(
        "sister-of-torch",
        _sister,
        {"package-version-mismatch": 5, "cuda-toolkit-mismatch": -4},
        "the package is released with torch, each release of it for one of torch",
        "torchvision, torchaudio and torch_xla, tables of releases",
    ),
    Rule(
        "sister-for-other-cuda",
        _built_for_other_cuda,
        {"cuda-toolkit-mismatch": 3.2, "cuda-library-not-found": -1},
        "the package was built for another CUDA than the torch beside it",
        "torchaudio, installation",
    ),
    Rule(
        "triton-on-linux",
        lambda s: s.has("triton-missing") and s.about(_LINUX) and not s.facts.windows and not s.facts.apple,
        {"package-version-mismatch": 1.5, "platform-binary-missing": -1.5},
        "Triton has binaries for Linux: it is not installed, or in another version",
        "https://pypi.org/project/triton/",
    ),
    Rule(
        "absurd-allocation",
        lambda s: s.has("host-allocation", "host-out-of-memory") and _ABSURD.search(s.said) is not None,
        {"not-a-compatibility-problem": 7, "host-out-of-memory": -6},
        "no machine has so much memory: a size in the program is wrong",
        "torch, CPUAllocator",
    ),
    Rule(
        "integers-expected",
        lambda s: s.has("dtype-expected-found") and s.words.get("expected", "").lower() in ("long", "int"),
        {"not-a-compatibility-problem": 5.5, "dtype-mix": -4},
        "labels or indices have another integer type than the function takes",
        "torch, nll_loss",
    ),
    Rule(
        "integers-for-a-loss",
        lambda s: (
            s.has("torch-dtype-not-implemented", "other-type-not-implemented")
            and re.search(
                r"(?:nll_loss|cross_entropy|softmax|mse|smooth_l1|binary_cross)\w*\" not implemented for"
                r" '(?:Int|Long|Char|Short|Bool|Byte)'",
                s.said,
            )
            is not None
        ),
        {"not-a-compatibility-problem": 6, "gpu-dtype-op-missing": -5, "cpu-half-op-missing": -4},
        "a loss is given integers where it takes others: the program passes the wrong thing",
        "torch, nn.functional",
    ),
    Rule(
        "complex-half-on-cpu",
        lambda s: re.search(r"_cpu\" not implemented for 'ComplexHalf'", s.said) is not None,
        {"cpu-half-op-missing": 3.4},
        "the kernel that is missing is the CPU's, for complex numbers in half precision",
        "torch, names of ATen's kernels",
    ),
    Rule(
        "primitive-of-the-cpu",
        lambda s: (
            s.has("onednn-no-primitive")
            and s.vendor != "intel"
            and not s.about(r"(?i)\bxpu\b|\bipex\b|\barc\b|intel.extension|directml|\biris\b|sycl")
        ),
        {"cpu-half-op-missing": 1.5, "xpu-directml-unsupported": -1.5},
        "no Intel GPU is named: oneDNN computes on the CPU",
        "oneDNN",
    ),
    Rule(
        "shared-memory-of-container",
        lambda s: (
            s.has("collective-timeout")
            and s.about(r"/dev/shm|\bshm\b|posix_fallocate|shared memory segment")
            and not s.says(_SHARED_REFUSED)
        ),
        {"host-out-of-memory": 5.5},
        "NCCL passes data through shared memory, of which a container has 64 MB unless told",
        "NCCL, troubleshooting",
    ),
    Rule(
        "shared-memory-refused",
        lambda s: s.says(_SHARED_REFUSED),
        {"not-a-compatibility-problem": 5, "host-out-of-memory": -5},
        "the system refused the file in /dev/shm: its rights are wrong, there is room",
        "shm_open(3)",
    ),
    Rule(
        "emptied-by-zero",
        lambda s: s.has("shape-mismatch") and s.says(r"torch\.Size\(\[0\]\)"),
        {"software-defect": 4.4, "not-a-compatibility-problem": -1.5},
        "a weight is empty because it is spread over processes: it was saved or loaded outside that",
        "DeepSpeed, ZeRO 3",
    ),
    Rule(
        "flattens-quantised",
        lambda s: s.has("dtypes-equal") and s.says(r"(?:uniform|the same) `?dtype`? but got .{0,40}torch\.u?int8"),
        {"quantized-model-operation": 6, "dtype-mix": -3},
        "some of the weights are quantised, and are not to be flattened with the rest",
        "torch, FSDP",
    ),
    Rule(
        "recomputed-in-other-dtype",
        _recomputed_dtype,
        {"dtype-mix": 4.4, "software-defect": -1},
        "the second computation has another dtype than the first: autocast is not on in both",
        "torch, utils/checkpoint.py",
    ),
    Rule(
        "ordinal-of-a-launcher",
        lambda s: s.has("invalid-device-ordinal") and re.search(_LAUNCHER, s.said) is not None,
        {"not-a-compatibility-problem": 5},
        "more processes were started, or another GPU named, than there are",
        "torch, distributed/launch.py",
    ),
    Rule(
        "misaligned-address",
        lambda s: s.has("misaligned-address", "cuda-launch-failure") and s.says("misaligned address"),
        {"software-defect": 2.6, "async-bad-input": -1},
        "a kernel reads in larger pieces than its input lies in memory",
        "CUDA runtime, cudaErrorMisalignedAddress",
    ),
    Rule(
        "deepspeed-on-old-gpu",
        lambda s: s.has("deepspeed-operator") and s.below(80),
        {"kernel-min-compute-capability": 2.5},
        "{gpu} has compute capability {cc}; newer kernels of DeepSpeed begin at 8.0",
        "DeepSpeed, op_builder",
    ),
    Rule(
        "arch-newer-than-torch",
        lambda s: s.has("architectures-unknown") and s.says(r"Unknown CUDA arch \(\d+\.\d\) or"),
        {"compiler-arch-unsupported": 7, "build-wrong-arch-flags": -3},
        "torch's own list of GPUs ends before this one",
        "torch, utils/cpp_extension.py",
    ),
    Rule(
        "factorised-without-quantiser",
        lambda s: s.has("hessian-singular") and re.search(_QUANTIZER, s.said) is None,
        {"not-a-compatibility-problem": 3, "quantization-accuracy": -2},
        "nothing is quantised here: the matrix of the program has no such root",
        "torch, linalg",
    ),
    Rule(
        "products-in-bf16",
        lambda s: s.has("cublas-arch-mismatch") and s.says("(?i)CUDA_R_16BF") and not s.from_(80),
        {"bf16-unsupported-gpu": 7, "build-lacks-old-arch": -3},
        "the refused multiplication is in bfloat16 (CUDA_R_16BF)",
        "cuBLAS documentation, cublasGemmEx",
    ),
    Rule(
        "fp8-before-its-release",
        lambda s: s.has("torch-fp8-gemm") and s.from_(89) and s.below(90),
        {"software-defect": 5, "fp8-fp4-unsupported-gpu": -4},
        "{gpu} has compute capability {cc} and multiplies 8-bit floating point: this release of torch asks for more",
        "torch 2.2, Blas.cpp",
    ),
    Rule(
        "too-many-registers",
        lambda s: s.has("shared-memory-limit") and s.says("too many resources requested for launch"),
        {"software-defect": 1.8},
        "the kernel was compiled to use more registers than a block of its size may",
        "CUDA runtime, cudaErrorLaunchOutOfResources",
    ),
    Rule(
        "cuda-is-available",
        lambda s: s.has("is-available-false") and _answers_true(s),
        {"cpu-only-build": -3.5, "gpu-not-visible": -3.5, "build-lacks-new-arch": 0.5},
        "torch says that CUDA is available",
        "torch, cuda/__init__.py",
    ),
    Rule(
        "library-before-generation",
        _before_its_generation,
        {"build-lacks-new-arch": 4.2, "gpu-out-of-memory": -1.5, "not-a-compatibility-problem": -1.5},
        "{gpu} has compute capability {cc}: a generation that the CUDA of this build does not know yet",
        "NVIDIA, CUDA toolkit release notes, first toolkit of an architecture",
    ),
    Rule(
        "opset-to-raise",
        lambda s: s.has("onnx-exporter-opset") and s.says("Support for this operator was added in version"),
        {"not-a-compatibility-problem": 1.6},
        "a newer opset has it, and need only be asked for",
        "torch, onnx",
    ),
    Rule(
        "image-newer-than-driver",
        lambda s: s.has("invalid-ptx", "ptx-version") and _newer_than_driver(s),
        {"driver-too-old": 5, "compiler-arch-unsupported": -2, "build-wrong-arch-flags": -2},
        "the kernel was made by a CUDA that is newer than the driver",
        "NVIDIA, CUDA toolkit release notes, drivers of each toolkit",
    ),
)
