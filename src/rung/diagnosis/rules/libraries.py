"""Which CUDA a library or a binary belongs to, and who compiled it."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import FROM_SOURCE, MISSING, PREBUILT

#: Numbers of the libraries' files, by the CUDA that they came with; others bear that of CUDA itself.
_NUMBERS = {
    "cusparse": {10: (10,), 11: (11,), 12: (12, 13)},
    "cusolver": {10: (10, 11), 11: (11, 12), 12: (13,)},
    "cufft": {10: (10, 11), 11: (12,), 12: (13,)},
    "cudart": {},
    "cublas": {},
    "cublasLt": {},
    "nvrtc": {},
}
_LIBRARY = re.compile(r"lib(cudart|cublasLt|cublas|nvrtc|cusparse|cusolver|cufft)\.so\.(\d+)(?:\.(\d+))?")
#: Kernels that say nothing of the GPU they were written for, and the compute capability where they begin.
_FLOORS = (
    (
        80,
        re.compile(
            r"(?i)marlin|sage_?att|flash_?attn|flash_?attention|flashinfer|BatchPrefill|BatchDecode|BatchMLA|sgl_kernel"
            r"|machete|deep_?gemm|ktransformers|exllama_?v3|\bexl3_"
        ),
    ),
    (75, re.compile(r"(?i)\bawq_(?:ext|inference)|autoawq|exllama")),
)
#: What ONNX Runtime of CUDA 11 looks for, as against cuDNN, which is never in CUDA.
_PROVIDER_OF_11 = r"onnxruntime_providers_cuda\S* with error: lib(?:cublas(?:Lt)?|cudart|cufft)\.so\.1[01]\b"
#: Extensions of torch, which use the CUDA that torch brings.
_OF_TORCH = (
    r"(?i)\bmmcv|\bmmdet|deform_conv|detectron2|torchvision|torchaudio|torch_(?:scatter|sparse|cluster|spline)|flash_attn"
    r"|\bapex\b|pytorch3d|exllama|auto_?gptq|pointnet|nvdiffrast|maskrcnn|causal_conv1d|selective_scan|mamba_ssm|fairseq|roi_?align|_rasterization"
)
#: Kernels for Hopper and what came after it.
_FOR_HOPPER = re.compile(r"(?i)flash_?mla|deep_?gemm|flash_?att(?:entio)?n[-_ ]?3\b|\bfa3\b")


def _below_floor(scene: Scene) -> bool:
    named = scene.has(*MISSING, "named-symbol")
    return named and any(scene.below(floor) and words.search(scene.said) for floor, words in _FLOORS)


def _missing(scene: Scene) -> list[str]:
    found = ("library-missing", "cuda-library-not-loaded")
    return [hit.line for hit in scene.hits if hit.signature.id in found]


def _other_cuda(scene: Scene) -> bool:
    here = scene.facts.cuda
    for line in _missing(scene) if here else ():
        found = _LIBRARY.search(line)
        if found is None or here is None:
            continue
        number, minor = int(found[2]), found[3]
        if number < 10 or (number == 10 and minor is not None):  # their names had the number of CUDA, all of it
            return number != here[0] or (minor is not None and int(minor) != here[1])
        return here[0] not in _NUMBERS[found[1]].get(number, (number,))
    return False


RULES: tuple[Rule, ...] = (
    Rule(
        "library-of-other-cuda",
        _other_cuda,
        {"cuda-toolkit-mismatch": 3, "cuda-library-not-found": -1},
        "the library that is missing belongs to another version of CUDA than the one here",
        "CUDA toolkit, names of its libraries",
    ),
    Rule(
        "provider-of-cuda-11",
        lambda s: s.says(_PROVIDER_OF_11) and not _other_cuda(s),
        {"cuda-toolkit-mismatch": 2.5, "cuda-library-not-found": -0.5},
        "this ONNX Runtime was built for CUDA 11, and the machine has another",
        "ONNX Runtime, CUDA execution provider: releases of the package index before 1.19",
    ),
    Rule(
        "runtime-of-extension",
        lambda s: any("libcudart" in line for line in _missing(s)) and s.about(_OF_TORCH) and not _other_cuda(s),
        {"cuda-toolkit-mismatch": 2.2, "cuda-library-not-found": -0.5},
        "torch brings its own CUDA run time: this extension was built for another",
        "torch, wheels and extensions",
    ),
    Rule(
        "built-by-others",
        lambda s: s.has(*MISSING) and s.about(PREBUILT) and not s.about(FROM_SOURCE),
        {"build-wrong-arch-flags": -3, "build-lacks-old-arch": 0.5, "build-lacks-new-arch": 0.5},
        "the binary was compiled by those who publish it, not here",
        "builders of published binaries",
    ),
    Rule(
        "kernels-before-their-floor",
        _below_floor,
        {"kernel-min-compute-capability": 5, "build-wrong-arch-flags": -2, "build-lacks-old-arch": -2},
        "{gpu} has compute capability {cc}, and kernels of this name begin with newer ones",
        "flash-attention, Marlin, FlashInfer, AutoAWQ, ExLlama and KTransformers, requirements",
    ),
    Rule(
        "made-for-hopper",
        lambda s: s.below(90) and _FOR_HOPPER.search(s.said) is not None and all(h.signature.general for h in s.hits),
        {"kernel-min-compute-capability": 3.5},
        "{gpu} has compute capability {cc}, and the kernels named are written for 9.0 and later",
        "FlashMLA, DeepGEMM, FlashAttention-3, requirements",
    ),
)
