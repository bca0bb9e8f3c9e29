"""Order fixes where the device, versions or the words around ask for another order than is learned.

The rows are (cause, when, labels that come first); of those that hold, the first counts. A row stays as long as a
public thread has its fix among the first two by it (``benchmarks/explain.py --rules`` counts them).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rung.diagnosis.evidence import Scene

#: GPUs whose drivers ended before Vulkan, or with a part of it.
_BEFORE_VULKAN = (
    r"(?i)\bHD (?:Graphics )?(?:[23]000|2500|4[0246]00)\b|\bGMA\b|\bFermi\b|\bTeraScale"
    r"|\bRadeon (?:HD )?[2-6]\d{3}\b"
)
#: Compilers of shaders in Rust, which reject what other GPUs take until a release does without.
_SHADERS_OF_RUST = r"cubecl|wgpu_core|wgpu error|WGSL compilation"
#: What a dtype is to blame for, and not an operation that is missing.
_ABOUT_DTYPES = (
    r"(?i)float64|\bfp?64\b|\bdouble\b|\bhalf\b|float16|\bfp16|autocast|_amp_foreach|\bblack\b|\bnoise"
    r"|invalid value encountered in cast"
)
_PLAIN_CODE = ("use-fallback-kernel", "change-hardware")


class Whole(tuple[str, ...]):
    """An order that stands as it is, not only its first fix."""


#: Layers of weights in 4 bits, whose compute dtype can be chosen.
_FOUR_BITS = r"(?i)bitsandbytes|\bbnb\b|4-?bit|nf4"
FIX_ORDER: tuple[tuple[str, Callable[[Scene], bool], Sequence[str]], ...] = (
    # the founding five, whatever helped in threads with such words
    ("graphics-api-feature-missing", lambda s: s.has("cmma-not-supported"), Whole(("upgrade-library", "use-fp32"))),
    (  # weights of 4 bits stay: only the products are computed in more
        "cuda-toolkit-mismatch",
        lambda s: s.has("cublas-not-supported") and s.says(r"CUDA_R_16F\b") and s.says(_FOUR_BITS),
        Whole(("use-fp32", "install-matching-build")),
    ),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.has("cublas-not-supported") and s.says(r"CUDA_R_16F\b"),
        Whole(("install-matching-build", "use-fp32")),
    ),
    (  # releases since bring 8-bit weights back without a product
        "int8-matmul-unsupported-gpu",
        lambda s: s.says(r"igemmlt not available|NO_CUBLASLT"),
        Whole(("upgrade-library", "dequantize-first")),
    ),
    (  # its code for all GPUs is in the program itself, so another release is another list
        "build-wrong-arch-flags",
        lambda s: s.has("ggml-no-device-code") and s.mentions.executable != "",
        Whole(("build-from-source", "downgrade-library", "upgrade-library")),
    ),
    (  # where there is none, none can be made visible
        "gpu-not-visible",
        lambda s: s.has("no-nvidia-driver") and s.facts.without_gpu,
        ("use-cpu", "fix-gpu-visibility"),
    ),
    (  # no driver gives these what came after them
        "graphics-api-feature-missing",
        lambda s: s.below(30) or s.about(_BEFORE_VULKAN),
        ("change-hardware", "use-other-backend"),
    ),
    (
        "graphics-api-feature-missing",  # what is granted to programs that ask for no more
        lambda s: s.says(r"maximum (?:buffer size \(268435456\)|binding size \(134217728\))"),
        ("fix-user-code", "reduce-memory"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says(_SHADERS_OF_RUST) and not s.says("(?i)buffer|limit"),
        ("upgrade-library", "upgrade-driver"),
    ),
    (
        "cpu-instruction-missing",  # published wheels for Arm that were compiled for newer cores
        lambda s: (
            s.about(r"(?i)\baarch64|raspberry|\bcortex-a|\b(?:jetson|orange ?pi|rock ?pi)")
            and not s.about(r"(?i)ggml|llama|\barmv?[67]|\bpi zero|snapdragon|android|termux")
        ),
        ("downgrade-library", "build-from-source"),
    ),
    (
        "cpu-instruction-missing",  # programs for Intel's processors under Rosetta
        lambda s: s.facts.apple and re.search(r"(?i)intel|\bi[3579]-", s.facts.cpu) is None,
        ("install-matching-build", "build-from-source"),
    ),
    (
        "rocm-arch-unsupported",
        lambda s: s.says(r"(?i)flash[-_ ]?att|xformers|sage_?att|aotriton"),
        ("use-fallback-kernel", "use-other-backend"),
    ),
    (
        "rocm-arch-unsupported",  # the HIP SDK, whose libraries are exchanged for those of others; it knows no override
        lambda s: s.facts.windows or s.says(r"(?i)\\(?:AMD\\)?ROCm\\\d|\bzluda\b"),
        ("install-matching-build", "set-environment-override"),
    ),
    ("mps-dtype-unsupported", lambda s: s.says(r"(?i)float8|\bfp8"), ("change-quantization", "upgrade-library")),
    (
        "mps-dtype-unsupported",
        lambda s: not s.says(_ABOUT_DTYPES) and not s.has("macos-release-demanded", "mlx-kernel", "metal-pipeline"),
        ("upgrade-library", "use-cpu"),
    ),
    (
        "xpu-directml-unsupported",
        lambda s: not s.says(_ABOUT_DTYPES),
        ("upgrade-library", "use-cpu"),
    ),
    ("slow-dtype-path", lambda s: s.has("compute-dtype-wide"), ("change-compute-dtype", "use-fp16")),
    ("slow-dtype-path", lambda s: s.has("kernel-not-for-arch"), ("change-hardware", "build-from-source")),
    (
        "slow-dtype-path",
        lambda s: s.below(70) and s.says(r"(?i)\bexl[23]\b|exllama|gptq|\bawq\b|\bnf4\b|load_in_[48]bit|[48]-?bit\b"),
        ("use-other-backend", "change-quantization"),
    ),
    ("fp16-overflow", lambda s: s.has("exclamation-marks"), ("use-bf16", "use-fp32")),
    (  # pictures are empty by their decoder
        "fp16-overflow",
        lambda s: s.says(r"(?i)\bvae\b|\bblack (?:image|picture|square|output|frame|screen)|image_processor\.py"),
        ("upcast-part", "use-fp32"),
    ),
    (
        "gpu-not-visible",
        lambda s: s.has("opencl-no-platform") and s.about(r"(?i)\bdocker|container|kubernetes"),
        ("fix-gpu-visibility", "install-cuda-libraries"),
    ),
    (  # the parts of torch for C++ that are gone: a line or two of the extension
        "package-version-mismatch",
        lambda s: s.says(r"\bAT_CHECK\b|\bTHC/|\bTHC headers|\bTHCState\b"),
        ("fix-user-code", "downgrade-library"),
    ),
    (  # an image is built where there is no GPU: the list of architectures says which one is meant
        "gpu-not-visible",
        lambda s: (
            s.has("no-nvidia-driver", "is-available-false") and s.about(r"(?i)docker build|buildkit|build_ext|bdist")
        ),
        ("set-environment-override", "fix-gpu-visibility"),
    ),
    (  # such messages come from releases with libraries for every system, made before this CUDA
        "platform-binary-missing",
        lambda s: s.says(r"Could not find the bitsandbytes \w+ binary"),
        ("upgrade-library", "install-matching-build"),
    ),
    ("build-lacks-old-arch", lambda s: s.below(35), ("change-hardware", "downgrade-library")),
    ("build-lacks-old-arch", lambda s: s.below(37), ("build-from-source", "use-cpu", "change-hardware")),
    (
        "platform-binary-missing",
        lambda s: s.facts.apple and not s.has("wrong-platform", "no-wheel", "metal-language-newer"),
        ("use-other-backend", "change-hardware"),
    ),
    (
        "platform-binary-missing",
        lambda s: s.vendor in ("amd", "intel") and s.has("cuda-gpu-demanded"),
        ("use-other-backend", "change-hardware"),
    ),
    (
        "platform-binary-missing",
        lambda s: s.says("(?i)triton|torch.compile") and not s.has("triton-notice"),
        ("use-fallback-kernel", "install-matching-build"),
    ),
    (
        "format-or-arch-unknown",  # GGUF files of picture and video models, which no program for text reads
        lambda s: s.says(
            r"architecture: '(?:sd[123x]\w*|flux\w*|aura|hidream|hyvid|wan|ltxv|cosmos|lumina2|qwen_image)'"
        ),
        ("use-other-backend", "change-quantization"),
    ),
    (
        "compiler-arch-unsupported",  # CUDA 12 dropped Kepler, CUDA 13 what is older than Turing
        lambda s: (
            s.has("target-not-known", "nvrtc-arch", "ptx-not-compiled")
            and (s.below(50) or (s.below(75) and s.facts.cuda is not None and s.facts.cuda >= (13, 0)))
        ),
        ("downgrade-library", "change-hardware"),
    ),
    ("kernel-min-compute-capability", lambda s: s.has("half-operation-missing"), _PLAIN_CODE),
    (  # the name of the option that does without is in the message
        "quantized-model-operation",
        lambda s: s.has("quantised-on-processor") and s.says("(?i)disable_exllama|use_exllama"),
        ("use-fallback-kernel", "reduce-memory"),
    ),
    (  # in int8, which releases before 4.7 choose by themselves there
        "software-defect",
        lambda s: (
            s.has("cublas-not-supported")
            and s.from_(100)
            and (s.about("(?i)whisper|ctranslate") or s.says_last("(?i)whisper|ctranslate"))
        ),
        ("use-fp16", "upgrade-library"),
    ),
    (
        "kernel-min-compute-capability",
        lambda s: s.says("(?i)nunchaku|gemv_awq|gemm_w4a4"),
        ("change-hardware", "change-quantization"),
    ),
    (
        "build-lacks-new-arch",  # a program that its user compiled with the toolkit named
        lambda s: s.says("cuDNN status Error") and s.facts.toolkit is not None,
        ("install-cuda-libraries", "build-from-source"),
    ),
    (
        "compiler-arch-unsupported",  # a toolkit that dropped what the list of the program still names
        lambda s: s.says(r"(?i)Unsupported gpu architecture:? '?(?:compute|sm)_[2-6]\d\b"),
        ("downgrade-library", "build-from-source"),
    ),
    (
        "gpu-not-visible",
        lambda s: s.has("opencl-no-platform") and not s.about("(?i)docker|container|podman"),
        ("upgrade-driver", "install-cuda-libraries"),
    ),
    ("cuda-toolkit-mismatch", lambda s: s.has("cudnn-versions"), ("install-cuda-libraries", "install-matching-build")),
    ("cuda-toolkit-mismatch", lambda s: s.has("ptx-version"), ("install-cuda-libraries", "set-environment-override")),
    ("rocm-arch-unsupported", lambda s: s.has("kfd-refuses-card"), ("change-hardware", "use-other-backend")),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.has("cublas-execution-failed"),
        ("set-library-path", "install-matching-build"),
    ),
    ("cuda-toolkit-mismatch", lambda s: s.has("cublas-invalid-value"), ("set-library-path", "install-matching-build")),
    ("quantized-model-operation", lambda s: s.has("dispatched-to-cpu"), ("offload", "reduce-memory")),
    ("kernel-min-compute-capability", lambda s: s.has("tf32-demanded"), ("fix-user-code", "use-fp16")),
    ("package-version-mismatch", lambda s: s.has("numpy-older"), ("upgrade-library", "align-package-versions")),
    ("platform-binary-missing", lambda s: s.has("triton-notice"), ("wait-or-none", "install-matching-build")),
    ("cpu-instruction-missing", lambda s: s.has("cpu-path-needs"), ("use-fp32", "change-hardware")),
    ("graphics-api-feature-missing", lambda s: s.has("vulkan-limit"), ("reduce-memory", "change-hardware")),
    ("package-version-mismatch", lambda s: s.has("libstdcxx-older"), ("set-library-path", "upgrade-library")),
    ("cuda-toolkit-mismatch", lambda s: s.has("undefined-symbol"), ("install-matching-build", "build-from-source")),
    ("package-version-mismatch", lambda s: s.has("extension-missing"), ("build-from-source", "install-matching-build")),
    (
        "package-version-mismatch",
        lambda s: s.has("extension-undefined"),
        ("build-from-source", "install-matching-build"),
    ),
    ("cuda-toolkit-mismatch", lambda s: s.has("jitify-failed"), ("set-library-path", "install-matching-build")),
    ("build-lacks-old-arch", lambda s: s.has("cudf-without-code"), ("change-hardware", "downgrade-library")),
)
