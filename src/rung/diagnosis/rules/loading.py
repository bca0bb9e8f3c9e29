"""Hold what loads, trains, adapts and quantises models: where log or environment settle a message of several causes."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.packages import in_package

_TORCH = "torch, build configuration of the wheels"
#: How builds of torch without CUDA are named.
_CPU_BUILD = r"\d\+cpu\b|\bcpu_(?:generic|mkl|openblas)|\bcpuonly\b|\d_cpu_\d"
#: What a program says that found no GPU, in whatever words.
_WITHOUT_GPU = (
    "trainer-asks-for-gpu",
    "bf16-training-arguments",
    "gpu-demanded",
    "awq-needs-gpu",
    "half-cpu-symptom",
    "is-available-false",
    "gpu-unused-symptom",
    "no-cuda-device",
    "quantiser-without-gpu",
    "xformers-no-cuda",
    "xformers-none",
    "requires-accelerate",
    "quantised-on-processor",
    "bnb-cpu-library",
    "bnb-no-device",
    "type-of-cuda-missing",
    "environment-without-gpu",
)
#: What whisper says where torch shows it no GPU.
_WHISPER_ON_CPU = r"FP16 is not supported on CPU; using FP32 instead"
_MERGE = r"\bin (?:merge\w*|unload\w*|_unload\w*|get_delta_weight)\b|\.merge\(|fuse_lora|load_lora_weights"
#: What says first that something was not found; a name that is missing afterwards follows from it.
_NOT_FOUND = (
    "nvcc-not-there",
    "libcuda-missing",
    "no-cuda-device",
    "quantiser-without-gpu",
    "library-missing",
    "cuda-library-not-loaded",
    "bnb-setup-path",
    "bnb-setup-failed",
    "bnb-required-library",
    "dll-load",
    "no-toolkit-found",
)
_NAME = r"NameError: name '\w+' is not defined"
_NOTHING = r"'NoneType' object"
_EIGHT_BITS = r"(?i)load[-_]in_8bit|load-8bit|llm_int8|\bint8\b|\b8[- ]bit\b"


def _cpu_build(scene: Scene) -> bool:
    return scene.has(*_WITHOUT_GPU) and not scene.facts.without_gpu and scene.about(_CPU_BUILD)


def _half_of_shape(scene: Scene) -> bool:
    """Return whether a tensor holds half as many numbers as its shape: two 4-bit ones lie in each byte."""
    found = re.search(r"shape '\[(\d+), (\d+)\]' is invalid for input of size (\d+)", scene.said)
    return found is not None and int(found[1]) * int(found[2]) == 2 * int(found[3])


RULES: tuple[Rule, ...] = (
    Rule(
        "whisper-beside-a-gpu",
        lambda s: s.vendor == "nvidia" and not s.facts.without_gpu and s.says(_WHISPER_ON_CPU),
        {"cpu-only-build": 4.5, "gpu-not-visible": 2.5, "cpu-half-op-missing": -1},
        "whisper takes the GPU wherever torch sees it, and there is one of NVIDIA's",
        "openai/whisper, transcribe.py",
    ),
    Rule(
        "build-for-cpus-is-named",
        _cpu_build,
        {"cpu-only-build": 4.5, "gpu-not-visible": -2, "cuda-toolkit-mismatch": -2, "cpu-half-op-missing": -2},
        "the torch that is installed is a build without CUDA",
        _TORCH,
    ),
    Rule(
        "trainer-on-mac",
        lambda s: s.has("trainer-asks-for-gpu") and s.facts.apple,
        {"mps-dtype-unsupported": 5, "cpu-half-op-missing": -2},
        "on macOS the GPU is Apple's, which this training in half precision does not know",
        "accelerate; transformers, training_args.py",
    ),
    Rule(
        "trainer-beside-gpu",
        lambda s: s.has("trainer-asks-for-gpu") and s.vendor == "nvidia",
        {"gpu-not-visible": 1.6, "cpu-only-build": 1.6, "cpu-half-op-missing": -1.5},
        "{gpu} is named, and the training found none",
        "accelerate; transformers, training_args.py",
    ),
    Rule(
        "packed-beside-shape",
        lambda s: s.has("packed-weight-shape", "quantised-keys") and s.has("shape-mismatch"),
        {"not-a-compatibility-problem": -3.5, "kernel-shape-constraint": -1.5},
        "what does not fit is a packed, quantised weight",
        "bitsandbytes, Params4bit; GPTQ",
    ),
    Rule(
        "merging-quantised-layer",
        lambda s: s.has("quantised-layer-lacks") and re.search(_MERGE, s.said) is not None,
        {"quantized-lora-merge": 5.5, "quantized-model-operation": -1},
        "an adapter is being merged into the quantised layer",
        "PEFT, tuners/lora/layer.py",
    ),
    Rule(
        "variant-of-dtype",
        lambda s: s.has("broken-download") and re.search(r"unknown variant `\w+`, expected", s.said) is not None,
        {"format-or-arch-unknown": 6, "not-a-compatibility-problem": -3},
        "the file names a dtype that this safetensors does not know yet",
        "safetensors, tensor.rs",
    ),
    Rule(
        "type-of-model-unknown",
        lambda s: s.has("python-plain") and re.search(r"\bconfiguration_auto\.py\b", s.said) is not None,
        {"format-or-arch-unknown": 5, "not-a-compatibility-problem": -1},
        "the name that is missing is a type of model: this transformers does not know it",
        "transformers, models/auto/configuration_auto.py",
    ),
    Rule(
        "name-missing-in-package",
        lambda s: s.has("python-bug") and in_package(s) and re.search(_NAME, s.said) is not None,
        {"package-version-mismatch": 4.2, "software-defect": 3, "not-a-compatibility-problem": -2.5},
        "the name is missing inside a package: what it imports where it can is not there, or the release is broken",
        "Python, tracebacks",
    ),
    Rule(
        "eight-bits-before-turing",
        lambda s: s.has("nan-probabilities") and s.below(75) and s.about(_EIGHT_BITS),
        {"int8-matmul-unsupported-gpu": 8, "fp16-overflow": -1.5},
        "{gpu} has compute capability {cc}; before 7.5 bitsandbytes computes in 8 bits by a slower way that overflows",
        "bitsandbytes, requirements of LLM.int8()",
    ),
    Rule(
        "marlin-types-are-listed",
        lambda s: s.has("marlin-refused") and s.says(r"Only types = \[\w"),
        {"kernel-shape-constraint": 3.5, "kernel-min-compute-capability": -3},
        "the kernel runs on this GPU, and not for this width",
        "vLLM, marlin_utils.py",
    ),
    Rule(
        "compiler-before-ampere",
        lambda s: s.has("triton-assertion") and s.below(80),
        {"compiler-arch-unsupported": 2.5, "software-defect": -1},
        "{gpu} has compute capability {cc}; Triton's code for GPUs before 8.0 is little tried",
        "triton, compatibility",
    ),
    Rule(
        "fell-back-on-windows",
        lambda s: s.has("triton-fell-back") and s.facts.windows,
        {"platform-binary-missing": 4},
        "Triton ships no binary for Windows",
        "https://pypi.org/project/triton/",
    ),
    Rule(
        "transform-in-half-on-cpu",
        lambda s: (
            s.has("fft-half-on-cpu", "dtype-without-operation")
            and s.says(r"Unsupported dtype (?:Complex)?Half")
            and (s.facts.apple or s.facts.without_gpu or re.search(r"(?i)\bcpu\b", s.said) is not None)
        ),
        {"cpu-half-op-missing": 5, "gpu-dtype-op-missing": -1.5},
        "GPUs transform in half precision, CPUs do not",
        "torch, mkl/SpectralOps.cpp",
    ),
    Rule(
        "loss-in-half-on-cpu",
        lambda s: s.has("torch-dtype-not-implemented") and s.words.get("kernel", "") == "nll_loss_out_frame",
        {"cpu-half-op-missing": 6, "gpu-dtype-op-missing": -3},
        "the kernel that is missing is the CPU's",
        "torch, LossNLL.cpp",
    ),
    Rule(
        "two-in-a-byte",
        _half_of_shape,
        {"quantized-lora-merge": 5, "quantized-model-operation": 3.5, "not-a-compatibility-problem": -3},
        "the tensor holds half as many numbers as its shape: it is packed in 4 bits",
        "bitsandbytes, Params4bit",
    ),
    Rule(
        "added-to-bytes",
        lambda s: (
            s.has("writes-into-quantised", "dtype-index-put") and s.says(r"to the desired output type (?:Char|Byte)\b")
        ),
        {"quantized-lora-merge": 5, "quantized-model-operation": 3, "dtype-mix": -2.5},
        "a fraction is added to weights that are stored as whole numbers of 8 bits",
        "torch, type promotion; PEFT, merge",
    ),
    Rule(
        "name-after-what-is-not-found",
        lambda s: (
            s.has("python-bug", "python-plain")
            and s.has(*_NOT_FOUND)
            and re.search(f"{_NAME}|{_NOTHING}", s.said) is not None
        ),
        {"not-a-compatibility-problem": -4},
        "the name is missing because what would define it was not found",
        "Python, imports that are passed over",
    ),
    Rule(
        "too-large-beside-gpu",
        lambda s: s.has("quantised-on-processor", "dispatched-to-cpu") and s.vendor == "nvidia",
        {"gpu-out-of-memory": 2.8, "quantized-model-operation": -1},
        "{gpu} is there, and a part of the model did not fit on it",
        "accelerate, infer_auto_device_map",
    ),
    Rule(
        "bnb-beside-other-makers",
        lambda s: (
            s.has("bnb-cpu-library", "bnb-cpu-symbol", "bnb-native-missing", "bnb-setup-failed", "bnb-setup-path")
            and (s.vendor in ("amd", "intel", "apple") or s.about(r"(?i)\bnpu\b|\brocm|\bxpu\b|\bhpu\b"))
        ),
        {"platform-binary-missing": 3.5, "cpu-only-build": -1},
        "older bitsandbytes has libraries for NVIDIA's GPUs only",
        "bitsandbytes, release notes",
    ),
    Rule(
        "bnb-beside-nvidia",
        lambda s: s.has("bnb-cpu-symbol") and s.vendor == "nvidia" and not s.facts.windows,
        {"cuda-library-not-found": 4},
        "{gpu} is there: the run time of CUDA was not found beside it",
        "bitsandbytes, cuda_setup",
    ),
    Rule(
        "nvidia-asked-of-mac",
        lambda s: s.facts.apple and s.has("gpu-unused-symptom") and s.says(r"\bNVIDIA\b"),
        {"platform-binary-missing": 4.5, "cpu-only-build": -1.5, "gpu-not-visible": -2},
        "there is no NVIDIA GPU in a Mac: the program has no code for Apple's",
        "programs written for CUDA",
    ),
    Rule(
        "wheel-not-published",
        lambda s: s.has("hub-access") and s.says(r"Guessing wheel URL|\.whl\b"),
        {"platform-binary-missing": 5, "not-a-compatibility-problem": -3},
        "what was looked for and not found is a wheel: none was published for this system, torch and CUDA",
        "flash-attention, setup.py",
    ),
    Rule(
        "flash-asked-of-old-gpu",
        lambda s: (
            s.has("release-or-later", "attention-asserted") and s.below(80) and s.says(r"(?i)flash[-_ ]?att(?:entio)?n")
        ),
        {"kernel-min-compute-capability": 4.5, "package-version-mismatch": -1},
        "{gpu} has compute capability {cc}; flash-attention 2 begins at 8.0, whichever release it is",
        "flash-attention, requirements",
    ),
    Rule(
        "extension-on-windows",
        lambda s: s.has("extension-undefined", "extension-name-missing", "extension-missing") and s.facts.windows,
        {"platform-binary-missing": 3},
        "on Windows few extensions come ready-made, and compilers are rarely there",
        "Python; compiled extensions of torch",
    ),
    Rule(
        "merged-into-narrow-floats",
        lambda s: s.has("float8-promotion", "dtype-without-operation") and s.has("merge-call") and s.says("Float8"),
        {"quantized-lora-merge": 3.5, "gpu-dtype-op-missing": -1.5},
        "an adapter is being merged into weights in 8-bit floating point",
        "PEFT, merge",
    ),
    Rule(
        "ids-beside-late-error",
        lambda s: (
            s.has("cublas-alloc-failed", "cublas-not-initialized", "cudnn-not-initialized")
            and re.search(r"(?i)\bvocab|num_labels|resize_token_embeddings|embed_tokens|Assertion `", s.said)
            is not None
        ),
        {"async-bad-input": 2.8, "gpu-out-of-memory": -1},
        "sizes of a vocabulary or of labels are named: an index out of range breaks the context before CUDA says so",
        "CUDA, asynchronous errors",
    ),
)
