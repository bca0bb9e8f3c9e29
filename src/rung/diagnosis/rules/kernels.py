"""Hand-written kernels, late errors, speed, and what particular programs choose."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import LATE, MISSING

_NVIDIA = "NVIDIA, CUDA C++ Programming Guide, compute capabilities"
_UNRELEASED = (
    r"(?i)\bnightly\b|\d\.dev\d|-pre\b|\.pre\d|\d(?:rc|a)\d+\b|\+git[0-9a-f]|\bbuild: \d{4}"
    r"|\bb\d{4}\b|\bversion: \d{4}\b|\bmain branch\b|\bcommit [0-9a-f]{7}"
)
_COMPILERS = "(?i)triton|inductor|ptxas|cupy|CUDA_ERROR_INVALID_SOURCE"
_FULL = ("cuda-out-of-memory", "cuda-driver-oom", "gpu-oom-short")
_DOUBLE = r"\((?:const )?double \*, (?:const )?double\)"
_COMPLAINTS = ("slow-symptom", "slow-wording", "speeds-compared", "emulated-symptom")


def _xformers_too_old(scene: Scene) -> bool:
    asked = scene.has("xformers-none", "xformers-trace") and scene.has("requires-device-capability")
    return asked and scene.says(r"\(too old\)") and not scene.has("xformers-no-cuda")


def _unbuilt(scene: Scene) -> int | None:
    """The generation of GPUs, as a compute capability, whose kernels a message says are not there."""
    named = scene.words.get("generation")
    return int(named) if named else None


def _cuda_known(scene: Scene) -> bool:
    facts = scene.facts
    return facts.capability is not None or facts.cuda is not None or scene.says(r"device=.?cuda")


def _narrow_floats(scene: Scene) -> bool:
    """Return whether it is about 8- or 4-bit floats, on a GPU that may not compute in them."""
    if scene.says("(?i)fp4|fp_quant"):
        return not scene.from_(100)
    return ("fp8" in scene.facts.dtypes or scene.says("scaled_mm")) and not scene.from_(89)


def _older_arch_asked(scene: Scene) -> bool:
    """Return whether an assembler was asked for an architecture that is older than the GPU."""
    asked = re.match(r"(?:sm|compute)_(\d+)", scene.words.get("arch", ""))
    return scene.has("ptxas-arch", "nvcc-arch") and asked is not None and scene.from_(int(asked[1]) + 10)


def _type(scene: Scene) -> str:
    """The compute type that CTranslate2 was asked for, empty where it is not named."""
    return scene.words.get("type", "")


def _int8_of_gpu(scene: Scene) -> bool:
    """Return whether a GPU refuses int8, which CPUs take: alone, or with float16, which all from 7.0 on compute."""
    named = re.match("(?i)int8(?P<half>_b?float16)?", _type(scene))
    return scene.facts.capability is not None and named is not None and (not named["half"] or scene.from_(100))


RULES: tuple[Rule, ...] = (
    Rule(
        "flash-on-ampere",
        lambda s: s.from_(80) and s.has("flash-ampere"),
        {"software-defect": 3.5, "kernel-min-compute-capability": -3},
        "{gpu} has compute capability {cc}, which flash-attention takes: the check itself is wrong",
        "flash-attention, requirements",
    ),
    Rule(
        "kernels-before-dtype",
        lambda s: s.has("capability-floor") and s.has("bf16-gate"),
        {"kernel-min-compute-capability": 3.5},
        "the program's kernels need a newer GPU, whatever the dtype",
        "vLLM, supported hardware",
    ),
    Rule(
        "xformers-too-old",
        _xformers_too_old,
        {"kernel-min-compute-capability": 2.5},
        "each of xFormers' kernels was refused for the GPU's age",
        "xFormers, ops/fmha",
    ),
    Rule(
        "generation-is-here",
        lambda s: (generation := _unbuilt(s)) is not None and s.from_(generation),
        {"build-wrong-arch-flags": 2.5, "kernel-min-compute-capability": -3},
        "{gpu} has compute capability {cc}, enough for the kernels that are missing: they were not compiled",
        "the message names the generation",
    ),
    Rule(
        "generation-before-kernels",
        lambda s: (generation := _unbuilt(s)) is not None and s.below(generation),
        {"kernel-min-compute-capability": 2.5, "build-wrong-arch-flags": -3},
        "{gpu} has compute capability {cc}, older than the kernels asked for",
        "the message names the generation",
    ),
    Rule(
        "hopper-kernels-on-later-gpu",
        lambda s: s.from_(100) and bool(s.hits) and s.says(r"\bhopper/\w+\.(?:h|cu)"),
        {"build-lacks-new-arch": 3.5, "software-defect": 1},
        "{gpu} has compute capability {cc}: kernels for Hopper run on Hopper alone",
        "flash-attention, hopper/",
    ),
    Rule(
        "flash-images-of-new-gpu",
        lambda s: s.from_(100) and s.has(*MISSING) and s.says(r"(?i)flash_?attn"),
        {"build-lacks-new-arch": 3, "build-wrong-arch-flags": -1},
        "{gpu} has compute capability {cc}: many releases of flash-attention end at 9.0",
        "flash-attention, setup.py",
    ),
    Rule(
        "flash-wheel-of-old-gpu",
        lambda s: s.below(75) and s.has("wrong-platform", "wheel-not-built") and s.says(r"(?i)flash[-_]?attn"),
        {"kernel-min-compute-capability": 6},
        "{gpu} has compute capability {cc}; flash-attention has no kernels below 7.5, however it is built",
        "flash-attention, requirements",
    ),
    Rule(
        "dequantised-instead",
        lambda s: s.has(*_FULL) and s.says("(?:will|we) default to dequantiz"),
        {"package-version-mismatch": 6, "gpu-out-of-memory": -2},
        "the weights were unpacked for lack of a package, and fill the GPU so",
        "transformers, quantizer_mxfp4.py",
    ),
    Rule(
        "fp8-not-taken-before-ada",
        lambda s: s.has("dtype-not-taken") and "fp8" in s.facts.dtypes and s.below(89),
        {"fp8-fp4-unsupported-gpu": 4.5},
        "{gpu} has compute capability {cc}; 8-bit floating point is computed from 8.9 on",
        _NVIDIA,
    ),
    Rule(
        "floor-of-fp8",
        lambda s: s.has("requires-sm", "capability-floor", "arch-guard-in-source") and _narrow_floats(s),
        {"fp8-fp4-unsupported-gpu": 4, "kernel-min-compute-capability": -1},
        "the kernel that asks for a newer GPU computes in 8- or 4-bit floating point",
        _NVIDIA,
    ),
    Rule(
        "compiled-for-this-gpu",
        lambda s: s.has("ggml-no-device-code") and s.facts.compiled_for == (s.facts.capability,),
        {"software-defect": 5, "build-wrong-arch-flags": -4},
        "it was compiled for {cc} and for nothing else: the program chose a kernel that has no code there",
        "ggml-cuda, choice of kernels",
    ),
    Rule(
        "adapter-into-ggml-types",
        lambda s: s.has("ggml-copy-types") and "lora" in s.said.lower() and s.says(r"\bto i?q\d"),
        {"quantized-lora-merge": 3},
        "an adapter is added to weights of a block format",
        "stable-diffusion.cpp, lora.hpp",
    ),
    Rule(
        "older-arch-asked",
        _older_arch_asked,
        {"build-wrong-arch-flags": 6, "compiler-arch-unsupported": -3},
        "{gpu} has compute capability {cc}: the list of architectures asks for an older one, which the toolkit dropped",
        _NVIDIA,
    ),
    Rule(
        "not-released",
        lambda s: bool(s.hits) and s.about(_UNRELEASED),
        {"software-defect": 1},
        "it is no release but a build in between, of which more are defective",
        "public threads: a quarter of those that name one, a tenth of all",
    ),
    Rule(
        "xformers-before-gpu",
        lambda s: (
            s.has("xformers-none") and s.from_(100) and not s.has("xformers-no-cuda", "requires-device-capability")
        ),
        {"build-lacks-new-arch": 3},
        "{gpu} has compute capability {cc}, newer than the kernels of many xFormers",
        "xFormers, release notes",
    ),
    Rule(
        "compute-type-on-gpu",
        lambda s: s.has("compute-type-refused") and not s.facts.on_cpu and _cuda_known(s),
        {"slow-dtype-path": 1.5},
        "the GPU is known, and this dtype is slow on it",
        "CTranslate2, types.cc",
    ),
    Rule(
        "compute-type-on-cpu",
        lambda s: s.has("compute-type-refused") and not _cuda_known(s) and s.facts.gpu is None,
        {"cpu-half-op-missing": 1},
        "no GPU is known: CPUs have no fast half precision",
        "CTranslate2, types.cc",
    ),
    Rule(
        "compute-type-asked-of-cpu",
        lambda s: s.has("compute-type-refused") and s.facts.on_cpu,
        {"cpu-half-op-missing": 3},
        "the model is put on the CPU, which has no fast half precision",
        "CTranslate2, types.cc",
    ),
    Rule(
        "compute-type-of-fast-gpu",
        lambda s: (
            s.has("compute-type-refused") and s.from_(70) and not re.match("(?i)bfl|int8$|int8_float32", _type(s))
        ),
        {"cpu-half-op-missing": 3, "slow-dtype-path": -3},
        "{gpu} is quick in half precision: the model is on the CPU, which CTranslate2 takes unless told",
        "CTranslate2, types.cc",
    ),
    Rule(
        "compute-type-of-int8",
        lambda s: s.has("compute-type-refused") and not s.facts.on_cpu and _int8_of_gpu(s),
        {"int8-matmul-unsupported-gpu": 6, "slow-dtype-path": -2, "cpu-half-op-missing": -2},
        "{gpu} has compute capability {cc}: CTranslate2 multiplies int8 from 6.1 on, and on 12.0 in some releases only",
        "CTranslate2, cuda/utils.cc",
    ),
    Rule(
        "cutlass-before-gpu",
        lambda s: s.has("cutlass-internal", "cutlass-error-internal") and s.below(80),
        {"kernel-min-compute-capability": 2},
        "{gpu} has compute capability {cc}, and such kernels are written for 8.0 and later",
        "CUTLASS, functionality",
    ),
    Rule(
        "shared-memory-of-old-gpu",
        lambda s: (
            s.has("shared-memory-limit")
            and s.vendor != "amd"
            and not s.says("too many resources")
            and (s.below(80) or s.says(r"limit: (?:49152|65536)\b"))
        ),
        {"kernel-min-compute-capability": 3.5, "kernel-shape-constraint": -1},
        "a block has 64 KB of shared memory or less before compute capability 8.0: the kernel is made for newer GPUs",
        _NVIDIA,
    ),
    Rule(
        "half-operation-of-old-gpu",
        lambda s: s.has("half-operation-missing") and s.below(70) and not s.says(_DOUBLE),
        {"kernel-min-compute-capability": 2},
        "{gpu} has compute capability {cc}; atomics of 16-bit numbers came with 7.0",
        _NVIDIA,
    ),
    Rule(
        "double-atomic",
        lambda s: s.has("half-operation-missing") and s.says(_DOUBLE) and not s.below(60),
        {"build-wrong-arch-flags": 3, "kernel-min-compute-capability": -1},
        "atomics of 64-bit numbers came with 6.0: the code is compiled for a GPU older than any that is named here",
        _NVIDIA,
    ),
    Rule(
        "compiled-for-older-too",
        lambda s: (
            s.has("half-operation-missing")
            and not s.says(_DOUBLE)
            and not s.below(70)
            and (s.from_(70) or s.says(r"arch=compute_[2-6]\d"))
        ),
        {"build-wrong-arch-flags": 3, "kernel-min-compute-capability": -1},
        "the code is compiled for a GPU older than 7.0, which no card here needs",
        _NVIDIA,
    ),
    Rule(
        "assertion-first",
        lambda s: s.has("index-assertion") and s.has(*LATE),
        {"async-bad-input": 2},
        "an assertion about an index came first; what follows is its consequence",
        "CUDA, asynchronous errors",
    ),
    Rule(
        "assert-and-cublas",
        lambda s: s.has("cublas-not-initialized") and s.says("device-side assert"),
        {"async-bad-input": 2.5, "gpu-out-of-memory": -2},
        "a device-side assert broke the context before cuBLAS was asked",
        "CUDA, asynchronous errors",
    ),
    Rule(
        "hint-alone",
        lambda s: s.ids == {"launch-blocking-hint"},
        {"async-bad-input": -4, "software-defect": 1.5},
        "torch says so of every CUDA error: the error itself is not in the log",
        "torch, CUDAException",
    ),
    Rule(
        "fills-over-time",
        lambda s: s.has("memory-grows") and s.has(*_FULL),
        {"software-defect": 4.5, "gpu-out-of-memory": -2},
        "it fitted at first and grew until it no longer did: memory that nothing needs is kept",
        "torch, frequently asked questions: history across a training loop",
    ),
    Rule(
        "full-in-later-epoch",
        lambda s: s.has(*_FULL) and bool(re.search(r"(?i)\bepoch:?\s*\[?(?:[2-9]|\d\d+)\b", s.said)),
        {"software-defect": 3.4, "gpu-out-of-memory": -1},
        "the first epoch fitted: a later one needs more only where its batches are larger or memory is kept",
        "torch, frequently asked questions: history across a training loop",
    ),
    Rule(
        "cuda-types-of-burn",
        lambda s: s.has("matmul-feature") and s.facts.capability is not None and not s.has("cmma-not-supported"),
        {"software-defect": 1},
        "the GPU is known: the choice of kernel is the library's",
        "cubecl",
    ),
    Rule(
        "units-not-offered",
        lambda s: s.has("cmma-not-supported") and s.from_(70),
        {"graphics-api-feature-missing": 0.6},
        "{gpu} itself has matrix units (compute capability {cc}): the program does not get them by this interface",
        "NVIDIA, CUDA C++ programming guide, compute capabilities",
    ),
    Rule(
        "cmma-in-graphics",
        lambda s: s.has("matmul-feature") and s.has("cmma-not-supported"),
        {"graphics-api-feature-missing": 1.5},
        "matrix units are a feature that the interface must offer",
        "cubecl, Cmma",
    ),
    Rule(
        "merging",
        lambda s: s.has("merge-call") and s.has("bitsandbytes-no-cublaslt"),
        {"quantized-lora-merge": -1},
        "the multiplication that the merge needs is refused",
        "PEFT, merge through an int8 product",
    ),
    Rule(
        "slow-on-old-gpu",
        lambda s: s.has(*_COMPLAINTS) and s.facts.capability is not None,
        {"slow-dtype-path": 1},
        "{gpu} has compute capability {cc}",
        _NVIDIA,
    ),
    Rule(
        "directml-named",
        lambda s: "directml" in s.facts.stated.lower() and bool(re.search("(?i)exception|HRESULT|error|fail", s.said)),
        {"xpu-directml-unsupported": 3.5},
        "it runs through DirectML, which implements fewer operations",
        "ONNX Runtime, DirectML execution provider",
    ),
    Rule(
        "intel-gpu",
        lambda s: s.vendor == "intel" and s.has("xpu-other", "xpu-no-f64", "directml-npu", "operator-not-registered"),
        {"xpu-directml-unsupported": 2},
        "{gpu} is an Intel GPU",
        "Intel, XPU backend",
    ),
    Rule(
        "ptx-by-compiler",
        lambda s: s.has("ptx-feature") and s.says("(?i)triton|inductor|tmp/torchinductor"),
        {"compiler-arch-unsupported": 2.8},
        "the kernel was made by a compiler at run time",
        "Triton",
    ),
    Rule(
        "floor-of-compiler",
        lambda s: s.has("requires-sm", "capability-floor") and s.says("(?i)triton.compiler|inductor|CompilationError"),
        {"compiler-arch-unsupported": 3.5, "kernel-min-compute-capability": -1},
        "it is the compiler that refuses",
        "Triton",
    ),
    Rule(
        "image-by-compiler",
        lambda s: s.has("invalid-ptx") and s.about(_COMPILERS) and not s.says("cuLinkComplete"),
        {"compiler-arch-unsupported": 2.5},
        "the kernel was made by a compiler at run time",
        "Triton",
    ),
    Rule(
        "speeds-of-dtypes",
        lambda s: s.has("speed-figures", "speeds-compared") and bool(s.facts.dtypes),
        {"slow-dtype-path": 1},
        "the speed of a dtype was measured",
        "wording of reports",
    ),
    Rule(
        "after-the-loss-scale",
        lambda s: s.has("loss-scale") and s.has("python-bug"),
        {"fp16-overflow": 4, "not-a-compatibility-problem": -3},
        "the division by zero follows from the loss scale",
        "apex, amp/scaler.py",
    ),
    Rule(
        "functionality-of-old-gpu",
        lambda s: (
            s.has("functionality-not-supported", "cublas-not-supported") and s.below(60) and not s.says("_R_16BF")
        ),
        {"kernel-min-compute-capability": 3},
        "{gpu} has compute capability {cc}; products of 16- and 8-bit numbers came later",
        _NVIDIA,
    ),
    Rule(
        "functionality-of-new-gpu",
        lambda s: (
            s.has("functionality-not-supported") and (s.from_(75) or s.about("(?i)zluda")) and not s.says("(?i)fp8")
        ),
        {"software-defect": 2.2, "kernel-min-compute-capability": -1.5},
        "the GPU multiplies these types: the call is the library's choice",
        _NVIDIA,
    ),
    Rule(
        "functionality-of-fp8",
        lambda s: s.has("functionality-not-supported") and "fp8" in s.facts.dtypes,
        {"fp8-fp4-unsupported-gpu": 3},
        "the multiplication is in 8-bit floating point",
        "cuBLAS documentation, cublasLtMatmul",
    ),
)
