"""Which build of a library, on which device: what picture programs' messages leave open and the device settles."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import MISSING

#: Processors older than AVX.
_WITHOUT_AVX = (
    r"(?i)\bXeon\S* [XELW]5[56]\d\d\b|\bCore ?2\b|\bi[357]-[2-9]\d\d\b(?!\d)"
    r"|\bPhenom|\bAthlon (?:II|64)|\bPentium\b|\bOpteron"
)


def shown(scene: Scene) -> str:
    """Return what was kept of the log, its last lines, and what the environment says."""
    return f"{scene.text}\n{scene.said}\n{scene.facts.os} {scene.facts.stated}"


def says(scene: Scene, pattern: str) -> bool:
    """Return whether any of that holds a pattern."""
    return re.search(pattern, shown(scene)) is not None


def _runtime_of_cuda_11(scene: Scene) -> bool:
    """Return whether a release of ONNX Runtime made for CUDA 11 stands beside a torch of CUDA 12, or the other way
    round."""
    found = re.search(r"(?i)onnxruntime[-_]gpu[ =:]*1\.(\d+)", shown(scene))
    if found is None or scene.facts.cuda is None:
        return False
    return (int(found[1]) < 19) == (scene.facts.cuda[0] >= 12)


RULES: tuple[Rule, ...] = (
    Rule(
        "numpy-of-later",
        lambda s: s.has("ragged-array", "dlib-picture") and says(s, r"(?i)\bnumpy\W{0,4}(?:1\.2[4-9]|2\.\d)"),
        {"package-version-mismatch": 3},
        "the NumPy here is later than the program was written for",
        "NumPy, release notes",
    ),
    Rule(
        "mixed-precision-has-a-gpu",
        lambda s: s.has("bf16-gate", "trainer-asks-for-gpu") and s.from_(80),
        {"bf16-unsupported-gpu": -5, "cpu-half-op-missing": -3, "cpu-only-build": 5, "gpu-not-visible": 3},
        "{gpu} has compute capability {cc} and computes in it: accelerate sees no GPU",
        "accelerate, accelerator.py",
    ),
    Rule(
        "bf16-fails-before-ampere",
        lambda s: (
            s.has("cublas-execution-failed", "cublas-invalid-value", "cudnn-no-plan")
            and s.below(80)
            and "bf16" in s.facts.dtypes
        ),
        {"bf16-unsupported-gpu": 4},
        "{gpu} has compute capability {cc}, which does not compute in bfloat16",
        "NVIDIA, cuBLAS and cuDNN, types by compute capability",
    ),
    Rule(
        "bf16-source-since-ampere",
        lambda s: s.has("bf16-in-source") and s.from_(80),
        {"bf16-unsupported-gpu": -4, "build-wrong-arch-flags": 2, "software-defect": 1},
        "{gpu} has compute capability {cc} and these operators: the source is compiled for older ones, or without them",
        "CUDA, cuda_bf16.hpp",
    ),
    Rule(
        "metal-of-one-release",
        lambda s: s.has("mlx-kernel") and s.has("known-regression"),
        {"software-defect": 3, "mps-dtype-unsupported": -3.5},
        "another release of MLX has the kernel on the same machine",
        "https://github.com/ml-explore/mlx/releases",
    ),
    Rule(
        "bf16-gate-on-apple",
        lambda s: s.has("bf16-gate", "bf16-training-arguments") and s.facts.apple,
        {"mps-dtype-unsupported": 6, "bf16-unsupported-gpu": -2.5},
        "the GPU is Apple's, on which this release does not train in bfloat16",
        "accelerate, utils/imports.py",
    ),
    Rule(
        "mixed-precision-without-cuda",
        lambda s: (
            s.has("bf16-gate", "trainer-asks-for-gpu") and says(s, "mixed precision requires") and says(s, r"\+cpu\b")
        ),
        {"cpu-only-build": 6, "bf16-unsupported-gpu": -4, "cpu-half-op-missing": -3},
        "the torch installed is a CPU build (+cpu)",
        "torch, versions of its wheels",
    ),
    Rule(
        "mixed-precision-in-container",
        lambda s: s.has("trainer-asks-for-gpu") and says(s, r"(?i)docker|\bwsl"),
        {"gpu-not-visible": 6, "cpu-half-op-missing": -3},
        "the program runs in a container or a virtual machine that shows it no GPU",
        "accelerate, accelerator.py",
    ),
    Rule(
        "no-nvidia-at-all",
        lambda s: s.has("no-nvidia-driver") and (s.facts.apple or s.vendor in ("intel", "apple")),
        {"not-a-compatibility-problem": 5.5, "gpu-not-visible": -3},
        "there is no NVIDIA GPU here: the program must ask for another device",
        "torch, Tensor.cuda",
    ),
    Rule(
        "no-gpu-to-see",
        lambda s: s.has("no-nvidia-driver") and s.facts.without_gpu and not s.facts.apple,
        {"gpu-not-visible": 2, "not-a-compatibility-problem": -1},
        "there is no NVIDIA GPU here: the program must ask for another device",
        "torch, Tensor.cuda",
    ),
    Rule(
        "no-sharing-on-windows",
        lambda s: (
            s.has("cuda-not-supported-here")
            and says(s, r"(?i)windows|\bWSL")
            and says(s, r"expandable_segments|multiprocessing|rebuild_cuda|cudaIpc|\bIPC\b")
        ),
        {"platform-binary-missing": 4},
        "Windows has no memory that processes share, or that grows, on the GPU",
        "CUDA, programming guide: interprocess communication",
    ),
    Rule(
        "network-floor-of-old-gpu",
        lambda s: s.has("opencv-arch-list") and s.below(53),
        {"kernel-min-compute-capability": 4},
        "{gpu} has compute capability {cc}, below that floor",
        "OpenCV, modules/dnn/CMakeLists.txt",
    ),
    Rule(
        "compiled-without-toolkit",
        lambda s: s.has("extension-name-missing", "bnb-optimisers-missing") and says(s, "CUDA_HOME"),
        {"cuda-library-not-found": 4.5},
        "the compiler of CUDA was not known when it was built",
        "torch, utils/cpp_extension.py",
    ),
    Rule(
        "later-kind-of-model",
        lambda s: (
            s.has("shape-mismatch")
            and says(s, r"(?i)double_blocks|joint_blocks|single_blocks|Wan\w*VAE|\bflux|\bsd3|model failed to load")
        ),
        {"format-or-arch-unknown": 4.5, "not-a-compatibility-problem": -1.5},
        "the checkpoint is of a kind that came after the program's release",
        "Stable Diffusion web UI, ComfyUI",
    ),
    Rule(
        "schedule-past-its-end",
        lambda s: (
            says(s, r"scheduling_\w+\.py") and says(s, r"index (\d+) is out of bounds for dimension 0 with size \1\b")
        ),
        {"software-defect": 4.5, "not-a-compatibility-problem": -0.5},
        "the scheduler counted one step more than it has",
        "diffusers, schedulers",
    ),
    Rule(
        "webui-on-amd",
        lambda s: s.has("webui-without-gpu") and s.vendor == "amd" and s.facts.windows,
        {"platform-binary-missing": 5, "cpu-only-build": -0.5},
        "torch has no build for AMD's GPUs on Windows, but for the newest",
        "torch, installation",
    ),
    Rule(
        "driver-not-installed",
        lambda s: (
            s.has("webui-without-gpu", "is-available-false", "no-cuda-device")
            and re.match(r"(?i)none|no\b|not |basic|nouveau", s.facts.driver) is not None
        ),
        {"gpu-not-visible": 4.5, "cpu-only-build": -1},
        "no driver of NVIDIA's is installed",
        "NVIDIA, driver",
    ),
    Rule(
        "onnxruntime-of-other-cuda",
        lambda s: (
            s.has("onnxruntime-cuda-not-loaded", "provider-load-failed", "cuda-library-not-loaded", "library-missing")
            and _runtime_of_cuda_11(s)
        ),
        {"cuda-toolkit-mismatch": 4, "cuda-library-not-found": -1},
        "ONNX Runtime up to 1.18 wants CUDA 11, later ones CUDA 12: the one here is the other",
        "ONNX Runtime, CUDA execution provider: requirements",
    ),
    Rule(
        "procedure-not-in-library",
        lambda s: s.has("cuda-library-not-loaded") and says(s, r"(?i)error code 127\b"),
        {"cuda-toolkit-mismatch": 5, "cuda-library-not-found": -2},
        "the library is there and lacks a function: it is of another version",
        "Windows, ERROR_PROC_NOT_FOUND",
    ),
    Rule(
        "opencv-built-here",
        lambda s: (
            s.has("dll-load") and says(s, r"importing cv2|import cv2") and says(s, "(?i)CUDA|self-built|from source")
        ),
        {"cuda-library-not-found": 3},
        "the published OpenCV needs no CUDA: this one was compiled with it and does not find its libraries",
        "OpenCV, Python bindings",
    ),
    Rule(
        "processor-without-avx",
        lambda s: (
            s.has("dll-initialisation", "tensorflow-dll-start", "dll-load", "crash")
            and re.search(_WITHOUT_AVX, s.facts.cpu) is not None
        ),
        {"cpu-instruction-missing": 5},
        "the processor is older than AVX, which many builds use",
        "Intel and AMD, instruction sets",
    ),
    Rule(
        "toolkit-and-its-consequence",
        lambda s: s.has("no-toolkit-found") and s.has("python-plain", "splats-left-none"),
        {"cuda-library-not-found": 4.5, "not-a-compatibility-problem": -1},
        "what failed is the part that was switched off for lack of a compiler of CUDA",
        "gsplat, cuda/_backend.py",
    ),
    Rule(
        "sage-before-ampere",
        lambda s: s.has(*MISSING) and s.below(80) and says(s, r"(?i)sage[-_ ]?att"),
        {"kernel-min-compute-capability": 5.5, "build-wrong-arch-flags": -2},
        "{gpu} has compute capability {cc}; SageAttention 2 has kernels from 8.0 on",
        "SageAttention, requirements",
    ),
    Rule(
        "eight-bit-kernels-before-ada",
        lambda s: s.has(*MISSING) and s.below(89) and says(s, r"(?i)\bq8_\w+|fp8_\w*kernel|fp8_gemm"),
        {"fp8-fp4-unsupported-gpu": 5.5, "build-wrong-arch-flags": -2},
        "{gpu} has compute capability {cc}; the kernels are those of 8-bit floating point, which came with 8.9",
        "LTX-Video-Q8-Kernels",
    ),
    Rule(
        "flash-absent-on-old-gpu",
        lambda s: s.has("attention-asserted") and s.below(80),
        {"kernel-min-compute-capability": 3},
        "{gpu} has compute capability {cc}; flash-attention 2 needs 8.0",
        "flash-attention, requirements",
    ),
    Rule(
        "fused-network-before-turing",
        lambda s: s.has("kernel-not-for-arch", "extension-for-older-gpu") and s.below(75) and says(s, "FullyFusedMLP"),
        {"slow-dtype-path": 5, "build-wrong-arch-flags": -2},
        "{gpu} has compute capability {cc}: the fused network needs 7.5, and the slower one is taken",
        "tiny-cuda-nn, requirements",
    ),
    Rule(
        "integer-units-left-out",
        lambda s: (
            s.facts.gpu is not None and s.vendor == "nvidia" and s.facts.gpu.half_is_broken and s.has("int8-refused")
        ),
        {"int8-matmul-unsupported-gpu": 5, "software-defect": -1.5},
        "{gpu} has compute capability {cc} and no matrix units",
        "NVIDIA, TU116 and TU117",
    ),
    Rule(
        "providers-asked-by-insightface",
        lambda s: s.has("providers-not-named") and says(s, "(?i)insightface"),
        {"package-version-mismatch": 5, "not-a-compatibility-problem": -2},
        "it is a package that does not name them: one older than this ONNX Runtime",
        "insightface, release notes",
    ),
    Rule(
        "no-four-bit-units-on-hopper",
        lambda s: s.has("four-bit-units-gone") and s.from_(90),
        {"int8-matmul-unsupported-gpu": 4},
        "{gpu} has compute capability {cc}: it is not too old, its generation dropped these units",
        "NVIDIA, PTX ISA",
    ),
    Rule(
        "optional-part-is-none",
        lambda s: (
            says(s, "'NoneType' object is not callable")
            and says(s, r"(?i)File .{0,120}(?:atten|flash|xformers|norm|fused|ops)")
        ),
        {"package-version-mismatch": 4, "not-a-compatibility-problem": -1},
        "a function of an optional package is called that could not be imported",
        "programs that go on without flash-attention, apex or xFormers",
    ),
    Rule(
        "depth-that-no-encoder-has",
        lambda s: s.has("video-units-refused") and says(s, "h264_nvenc") and says(s, "10 bit encode not supported"),
        {"not-a-compatibility-problem": 5, "kernel-min-compute-capability": -1},
        "H.264 is encoded in 8 bits: the format of the pixels must be converted",
        "NVIDIA Video Codec SDK, support matrix",
    ),
    Rule(
        "localhost-after-an-error",
        lambda s: s.has("gradio-schema", "type-of-other-version") and says(s, "localhost is not accessible"),
        {"package-version-mismatch": 4, "not-a-compatibility-problem": -4},
        "the page could not be made, which gradio takes for a lack of network",
        "gradio, blocks.py",
    ),
    Rule(
        "quantiser-on-apple",
        lambda s: s.has("quantiser-not-on-platform") and s.facts.apple,
        {"platform-binary-missing": 2.5},
        "bitsandbytes has no GPU code for macOS",
        "bitsandbytes, installation",
    ),
)
