"""Hold in which order fixes are named where the device, versions or the words around ask for another than a message
alone.

The rows are (cause, when, labels that come first); of ``when`` that hold, the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rung.diagnosis.evidence import Scene
from rung.diagnosis.fix_order_dtypes import BY_DTYPE
from rung.diagnosis.fix_order_makers import BY_MAKER
from rung.diagnosis.rules.known import MISSING

#: The first CUDA whose compiler takes no GPU before Turing.
_WITHOUT_PASCAL = 13
#: The Kepler that released builds held code for the longest.
_KEPLER_LAST = 37
#: Classes of models, which come with releases.
_CLASS_OF_MODEL = (
    r"cannot import name '\w*(?:Pipeline|Transformer\w*Model|For(?:CausalLM|ConditionalGeneration|MaskedLM)|Config"
    r"|Scheduler|Autoencoder\w*)' from '(?:diffusers|transformers|torchao|peft)\b"
)
#: Extensions whose wheels come some time after a generation of GPUs.
_WHEELS_LATE = r"(?i)flash_?att|xformers|sage_?att|spconv"
#: GPUs that reach each other only through the host: what NCCL is told then.
_BETWEEN_CARDS = r"NCCL_(?:P2P|IB|SHM)_DISABLE|peer access is not supported"


class Whole(tuple[str, ...]):
    """An order that stands as it is: of the others only the first fix does, whatever the words say."""


#: Layers of weights in 4 bits, whose compute dtype can be chosen.
_FOUR_BITS = r"(?i)bitsandbytes|\bbnb\b|4-?bit|nf4"

_PLAIN_CODE = ("use-fallback-kernel", "change-hardware")


def _names_newer_gpu(scene: Scene) -> bool:
    named = re.search(r"\d+", scene.words.get("arch", "")) if scene.has("nvcc-arch") else None
    return named is not None and scene.facts.capability is not None and int(named[0]) > scene.facts.capability


#: They outrank the rows of ``fix_order``.
BY_FACT: tuple[tuple[str, Callable[[Scene], bool], Sequence[str]], ...] = (
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
    (
        "software-defect",
        lambda s: s.says(r"fbgemm\.dll"),
        Whole(("upgrade-library", "set-library-path", "fix-user-code")),
    ),
    (  # its code for all GPUs is in the program itself, so another release is another list
        "build-wrong-arch-flags",
        lambda s: s.has("ggml-no-device-code") and s.mentions.executable != "",
        Whole(("build-from-source", "downgrade-library", "upgrade-library")),
    ),
    *BY_MAKER,
    *BY_DTYPE,
    (
        "gpu-not-visible",
        lambda s: s.has("opencl-no-platform") and s.about(r"(?i)\bdocker|container|kubernetes"),
        ("fix-gpu-visibility", "install-cuda-libraries"),
    ),
    (
        "package-version-mismatch",  # parts of apex, which its plain installation leaves out
        lambda s: s.has("extension-missing") and s.says(r"named '?(?:fused_\w+|amp_C|apex_C|scaled_\w+_cuda)"),
        ("build-from-source", "use-fallback-kernel"),
    ),
    (
        "package-version-mismatch",
        lambda s: "." in s.words.get("package", "") and s.has("package-missing"),
        ("align-package-versions", "downgrade-library"),
    ),
    (  # attention that this GPU or system cannot have
        "package-version-mismatch",
        lambda s: (
            s.says(r"(?i)flash_?att\w*.{0,80}(?:not (?:seem to be )?installed|toggled on|No module)")
            and (s.below(80) or s.facts.windows or s.facts.apple)
        ),
        ("use-fallback-kernel", "align-package-versions"),
    ),
    (  # the parts of torch for C++ that are gone: a line or two of the extension
        "package-version-mismatch",
        lambda s: s.says(r"\bAT_CHECK\b|\bTHC/|\bTHC headers|\bTHCState\b"),
        ("fix-user-code", "downgrade-library"),
    ),
    (  # what newer releases of torch have no more
        "package-version-mismatch",
        lambda s: s.says(
            r"module 'torch' has no attribute '(?:i?rfft|i?fft|symeig|solve|lstsq|eig|gels|_six|btrifact)\b"
        ),
        ("downgrade-library", "fix-user-code"),
    ),
    (  # a class of a newer model, or what a torch, accelerate or diffusers lacks that is too old for the rest
        "package-version-mismatch",
        lambda s: s.says(
            r"'transformers' has no attribute '(?!Auto)\w{1,60}For[A-Z]"
            r"|name '(?!Auto)\w{1,60}For[A-Z]\w+' from 'transformers"
            r"|module 'torch(?:\.[\w.]+)?' has no attribute|name '\w+' from '(?:accelerate|peft|diffusers)\b"
        ),
        ("upgrade-library", "align-package-versions"),
    ),
    (  # two copies of one library: the program itself names the variable that lets it go on
        "package-version-mismatch",
        lambda s: s.says(r"OMP: Error #15|MKL_THREADING_LAYER"),
        ("set-environment-override", "align-package-versions"),
    ),
    (
        "package-version-mismatch",
        lambda s: s.has("cannot-import-name") and s.says(_CLASS_OF_MODEL),
        ("upgrade-library", "align-package-versions"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says("(?i)shader-f16"),
        ("use-fp32", "use-other-backend"),
    ),
    (
        "gpu-not-visible",
        lambda s: re.search(r"CUDA_VISIBLE_DEVICES\W{0,4}[=:] ?\W?[\dM]", s.said) is not None,
        ("set-environment-override", "fix-user-code"),
    ),
    (  # Ray gives a worker the GPUs that it asks for
        "gpu-not-visible",
        lambda s: (
            s.says("No CUDA GPUs are available") and re.search(r"\bray\b|ServeReplica|num_gpus", s.said) is not None
        ),
        ("fix-user-code", "fix-gpu-visibility"),
    ),
    (  # torch holds CUDA, and a mask or a container hides the GPU; a driver that fails says so in other words
        "gpu-not-visible",
        lambda s: s.says("No CUDA GPUs are available") and not s.about(r"(?i)nvidia-smi|driver|NVML|\bray\b|Replica"),
        ("fix-gpu-visibility", "set-environment-override"),
    ),
    (
        "gpu-not-visible",  # the driver's module says itself that another one is needed for this card
        lambda s: s.says(r"NVIDIA open kernel modules|xx Legacy drivers|is not supported by the (?:NVIDIA )?\d{3}"),
        ("upgrade-driver", "fix-gpu-visibility"),
    ),
    (  # an image is built where there is no GPU: the list of architectures says which one is meant
        "gpu-not-visible",
        lambda s: (
            s.has("no-nvidia-driver", "is-available-false") and s.about(r"(?i)docker build|buildkit|build_ext|bdist")
        ),
        ("set-environment-override", "fix-gpu-visibility"),
    ),
    (  # where there is none, none can be made visible
        "gpu-not-visible",
        lambda s: s.has("no-nvidia-driver") and s.facts.without_gpu,
        ("use-cpu", "fix-gpu-visibility"),
    ),
    ("gpu-not-visible", lambda s: s.says(_BETWEEN_CARDS), ("set-environment-override", "fix-gpu-visibility")),
    ("not-a-compatibility-problem", lambda s: s.says(_BETWEEN_CARDS), ("set-environment-override", "fix-user-code")),
    (  # the name of flash-attn 1, which 2 has no more
        "package-version-mismatch",
        lambda s: s.has("extension-missing") and s.says("flash_attn_cuda"),
        ("upgrade-library", "align-package-versions"),
    ),
    (  # such messages come from releases with libraries for every system, made before this CUDA
        "platform-binary-missing",
        lambda s: s.says(r"Could not find the bitsandbytes \w+ binary"),
        ("upgrade-library", "install-matching-build"),
    ),
    (
        "platform-binary-missing",
        lambda s: s.has("named-symbol") and (s.vendor == "amd" or s.about("(?i)zluda")),
        ("change-quantization", "use-other-backend"),
    ),
    (  # their publishers are late, and they are compiled in minutes
        "build-lacks-new-arch",
        lambda s: s.from_(100) and s.has(*MISSING, "kernels-end-before") and s.about(_WHEELS_LATE),
        ("build-from-source", "upgrade-library"),
    ),
    ("build-lacks-old-arch", lambda s: s.has("runner-died"), ("use-cpu", "use-other-backend")),
    ("build-lacks-old-arch", lambda s: s.below(35), ("change-hardware", "downgrade-library")),
    ("build-lacks-old-arch", lambda s: s.below(37), ("build-from-source", "use-cpu", "change-hardware")),
    ("build-lacks-old-arch", lambda s: s.facts.capability == _KEPLER_LAST, ("downgrade-library", "build-from-source")),
    (
        "platform-binary-missing",
        lambda s: s.says(r"incompatible architecture \(have") or s.about(r"(?i)\bjetson|jetpack|\borin\b|xavier"),
        ("install-matching-build", "build-from-source"),
    ),
    (
        "platform-binary-missing",
        lambda s: s.says(r"quantized engine|find engine for operation quantized|NoQEngine"),
        ("set-environment-override", "install-matching-build"),
    ),
    (
        "platform-binary-missing",  # programs for Intel's processors under Rosetta
        lambda s: s.facts.apple and s.has("illegal-instruction"),
        ("install-matching-build", "build-from-source"),
    ),
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
        "cuda-toolkit-mismatch",
        lambda s: s.says(
            r"undefined symbol: _*(?:nvJit|cublas|cudnn|nccl|ZN5cudnn)|libnvJitLink|cuDNN version incompat"
        ),
        ("set-library-path", "install-matching-build"),
    ),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.says("unsupported GNU version"),
        ("downgrade-library", "set-environment-override"),
    ),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.says("unsupported (?:Microsoft Visual Studio|clang) version"),
        ("downgrade-library", "install-cuda-libraries"),
    ),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.says(r"is not defined for option 'std'|Unknown option '-std"),
        ("upgrade-library", "install-cuda-libraries"),
    ),
    (
        "compiler-arch-unsupported",  # CUDA 12 dropped Kepler, CUDA 13 what is older than Turing
        lambda s: (
            s.has("target-not-known", "nvrtc-arch", "ptx-not-compiled")
            and (s.below(50) or (s.below(75) and s.facts.cuda is not None and s.facts.cuda >= (13, 0)))
        ),
        ("downgrade-library", "change-hardware"),
    ),
    (
        "platform-binary-missing",
        lambda s: not s.facts.apple and s.about(r"(?i)\baarch64\b|\btegra"),
        ("build-from-source", "install-matching-build"),
    ),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.says("SUBLIBRARY_"),
        ("set-library-path", "install-cuda-libraries"),
    ),
    ("kernel-min-compute-capability", lambda s: s.has("half-operation-missing"), _PLAIN_CODE),
    (
        "kernel-min-compute-capability",
        lambda s: s.has("cutlass-internal", "cutlass-error-internal"),
        ("build-from-source", "use-fallback-kernel"),
    ),
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
    (  # DeepSpeed has a variable for GPUs of compute capability 6
        "kernel-min-compute-capability",
        lambda s: s.has("half-not-for-processor"),
        ("use-fp32", "set-environment-override"),
    ),
    (
        "kernel-min-compute-capability",
        lambda s: s.has("marlin-refused"),
        ("change-quantization", "use-fallback-kernel"),
    ),
    (
        "kernel-min-compute-capability",
        lambda s: s.says("(?i)nunchaku|gemv_awq|gemm_w4a4") and s.from_(75),
        ("upgrade-library", "change-hardware"),
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
        "kernel-min-compute-capability",
        lambda s: s.says("(?i)flash|sage|xformers|memory_efficient"),
        ("use-fallback-kernel", "change-quantization"),
    ),
    (
        "kernel-min-compute-capability",
        lambda s: s.says(r"(?i)\bawq|gptq|marlin|quanti[sz]"),
        ("change-quantization", "use-other-backend"),
    ),
    (
        "compiler-arch-unsupported",  # the list names a newer GPU than the one that is here
        _names_newer_gpu,
        ("set-environment-override", "upgrade-library"),
    ),
    (
        "compiler-arch-unsupported",  # a toolkit that dropped what the list of the program still names
        lambda s: s.says(r"(?i)Unsupported gpu architecture:? '?(?:compute|sm)_[2-6]\d\b"),
        ("downgrade-library", "build-from-source"),
    ),
    (
        "compiler-arch-unsupported",
        lambda s: s.below(70) and not s.has("nvcc-arch", "nvrtc-arch", "nvcc-native-unknown"),
        ("use-fallback-kernel", "change-hardware"),
    ),
    (  # files for readers of their own, met by transformers
        "format-or-arch-unknown",
        lambda s: (
            s.says(r"quantization (?:type|method).{0,12}\bexl[23]\b|\bmlx-community/")
            or (s.has("hub-access") and s.says(r"(?i)[-_/.](?:gguf|ggml)\b"))
        ),
        ("use-other-backend", "change-quantization"),
    ),
    (
        "kernel-min-compute-capability",
        lambda s: s.says("VLLM_USE_V1"),
        ("set-environment-override", "use-fallback-kernel"),
    ),
    (
        "quantized-model-operation",
        lambda s: s.says("only supported for F16"),
        ("dequantize-first", "requantize-or-reconvert"),
    ),
    (
        "format-or-arch-unknown",
        lambda s: s.has("saved-by-other-release") and s.says("has no field named"),
        ("install-matching-build", "build-from-source"),
    ),
    ("format-or-arch-unknown", lambda s: s.says("is intended for"), ("fix-user-code", "change-quantization")),
    (
        "format-or-arch-unknown",
        lambda s: s.says(r"(?i)no longer supported|magic|engine plan|please rebuild|serializ\w*(?: \w+){0,2} ?engine"),
        ("requantize-or-reconvert", "upgrade-library"),
    ),
    (
        "compiler-arch-unsupported",  # the newest toolkits left out what is older than Turing
        lambda s: (
            s.has("nvcc-arch") and s.below(75) and s.facts.cuda is not None and s.facts.cuda[0] >= _WITHOUT_PASCAL
        ),
        ("downgrade-library", "build-from-source"),
    ),
    (
        "format-or-arch-unknown",
        lambda s: s.has("llama-path-refused") and s.says(r"\.bin\b|(?i:ggml-)"),
        ("requantize-or-reconvert", "downgrade-library"),
    ),
    (
        "gpu-not-visible",
        lambda s: s.has("opencl-no-platform") and s.about(r"(?i)android|termux|adreno|\bmali\b|snapdragon"),
        ("set-library-path", "change-hardware"),
    ),
    (
        "gpu-not-visible",
        lambda s: s.has("opencl-no-platform") and not s.about("(?i)docker|container|podman"),
        ("upgrade-driver", "install-cuda-libraries"),
    ),
)
