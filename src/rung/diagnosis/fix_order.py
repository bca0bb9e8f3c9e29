"""In which order fixes are named where a message, the device or the words around ask for another than the cause's own.

The rows are (cause, when, labels that come first); of ``when`` that hold, the first counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rung.diagnosis.evidence import Scene

#: The first CUDA whose compiler takes no GPU before Turing.
_WITHOUT_PASCAL = 13
#: Classes of models, which come with releases.
_CLASS_OF_MODEL = (
    r"cannot import name '\w*(?:Pipeline|Transformer\w*Model|For(?:CausalLM|ConditionalGeneration|MaskedLM)|Config"
    r"|Scheduler|Autoencoder\w*)' from '(?:diffusers|transformers|torchao|peft)\b"
)
#: GPUs that reach each other only through the host: what NCCL is told then.
_BETWEEN_CARDS = r"NCCL_(?:P2P|IB|SHM)_DISABLE|peer access is not supported"

#: Where facts change the order: (cause, when, labels that come first).
FIRST: tuple[tuple[str, str, Sequence[str]], ...] = (
    ("kernel-min-compute-capability", "quantisation-min-capability", ("change-quantization", "use-other-backend")),
    ("kernel-min-compute-capability", "trainer-gpu-too-old", ("change-hardware", "use-other-backend")),
    ("kernel-min-compute-capability", "engine-kernel-not-found", ("use-other-backend", "use-fallback-kernel")),
    ("kernel-shape-constraint", "engine-kernel-not-found", ("use-other-backend", "use-fallback-kernel")),
    ("kernel-min-compute-capability", "capability-floor", ("use-other-backend", "change-hardware")),
    ("cuda-toolkit-mismatch", "bnb-setup-path", ("set-environment-override", "install-cuda-libraries")),
    ("cuda-toolkit-mismatch", "bnb-duplicates", ("set-environment-override", "set-library-path")),
    ("cuda-toolkit-mismatch", "llamafile-gpu-refused", ("install-cuda-libraries", "upgrade-library")),
    ("cuda-toolkit-mismatch", "llamafile-compiles", ("build-from-source", "downgrade-library")),
    ("cuda-toolkit-mismatch", "xformers-no-cuda", ("install-matching-build", "use-fallback-kernel")),
    ("cuda-toolkit-mismatch", "xformers-none", ("install-matching-build", "use-fallback-kernel")),
    ("cuda-toolkit-mismatch", "cublas-not-supported", ("install-matching-build", "upgrade-library")),
    ("cuda-toolkit-mismatch", "detected-cuda-mismatch", ("install-cuda-libraries", "install-matching-build")),
    ("cuda-toolkit-mismatch", "cudnn-versions", ("install-cuda-libraries", "install-matching-build")),
    ("cuda-toolkit-mismatch", "onnxruntime-cuda-not-loaded", ("install-cuda-libraries", "install-matching-build")),
    ("cuda-toolkit-mismatch", "nvcc-lists-no-gpus", ("install-cuda-libraries", "set-library-path")),
    ("cuda-toolkit-mismatch", "numba-toolkit-unknown", ("install-cuda-libraries", "downgrade-library")),
    ("cuda-toolkit-mismatch", "nvrtc-builtins", ("set-library-path", "install-matching-build")),
    ("cuda-library-not-found", "provider-load-failed", ("install-cuda-libraries", "set-library-path")),
    ("cuda-library-not-found", "nvrtc-builtins", ("set-library-path", "install-cuda-libraries")),
    ("platform-binary-missing", "abi-too-old", ("build-from-source", "install-matching-build")),
    ("cuda-toolkit-mismatch", "ptx-version", ("install-cuda-libraries", "set-environment-override")),
    ("build-wrong-arch-flags", "kernels-of-crate", ("set-environment-override", "upgrade-library")),
    ("build-wrong-arch-flags", "named-symbol", ("build-from-source", "set-environment-override")),
    ("int8-matmul-unsupported-gpu", "merge-call", ("upgrade-library", "dequantize-first")),
    ("compiler-arch-unsupported", "inductor-old", ("use-fallback-kernel", "change-hardware")),
    ("compiler-arch-unsupported", "triton-assertion", ("use-fallback-kernel", "change-hardware")),
    ("compiler-arch-unsupported", "nvcc-native-unknown", ("install-cuda-libraries", "upgrade-library")),
    ("compiler-arch-unsupported", "ptxas-arch", ("set-environment-override", "upgrade-library")),
    ("format-or-arch-unknown", "gguf-of-other-byte-order", ("requantize-or-reconvert", "upgrade-library")),
    ("build-wrong-arch-flags", "ggml-no-device-code", ("build-from-source", "upgrade-library")),
    ("software-defect", "ggml-assert", ("upgrade-library", "use-fallback-kernel")),
    ("software-defect", "known-regression", ("downgrade-library", "upgrade-library")),
    ("mps-dtype-unsupported", "mps-convert-bf16", ("use-fp16", "use-fp32")),
    ("mps-dtype-unsupported", "mps-float64", ("use-fp32", "upgrade-library")),
    ("mps-dtype-unsupported", "mlx-kernel", ("upgrade-library", "downgrade-library")),
    ("build-lacks-old-arch", "machine-capability-refused", ("downgrade-library", "change-hardware")),
    ("build-lacks-old-arch", "machine-generation-refused", ("install-matching-build", "downgrade-library")),
    ("build-lacks-new-arch", "machine-capability-refused", ("upgrade-library", "install-matching-build")),
    ("cuda-toolkit-mismatch", "cublas-execution-failed", ("set-library-path", "install-matching-build")),
    ("cuda-toolkit-mismatch", "cublas-invalid-value", ("set-library-path", "install-matching-build")),
    ("driver-too-old", "ptx-version", ("upgrade-driver", "downgrade-library")),
    ("kernel-min-compute-capability", "ptx-feature", ("use-fallback-kernel", "use-other-backend")),
    ("kernel-min-compute-capability", "shared-memory-limit", ("use-fallback-kernel", "use-other-backend")),
    ("kernel-min-compute-capability", "half-operation-missing", ("change-hardware", "use-fallback-kernel")),
    ("kernel-shape-constraint", "shared-memory-limit", ("use-fallback-kernel", "upgrade-library")),
    ("kernel-shape-constraint", "shape-not-aligned", ("adjust-shape", "requantize-or-reconvert")),
    ("quantized-model-operation", "train-quantised", ("fix-user-code", "upgrade-library")),
    ("format-or-arch-unknown", "engine-not-read", ("requantize-or-reconvert", "align-package-versions")),
    ("build-wrong-arch-flags", "compiled-for-one-capability", ("install-matching-build", "build-from-source")),
    ("slow-dtype-path", "triton-fell-back", ("install-cuda-libraries", "install-matching-build")),
    ("quantized-model-operation", "packed-weights-as-matrix", ("upgrade-library", "dequantize-first")),
    ("dtype-mix", "unscale-fp16", ("cast-to-match", "use-fp32")),
    ("fp8-fp4-unsupported-gpu", "triton-no-fp8", ("change-quantization", "change-hardware")),
    ("package-version-mismatch", "type-of-other-version", ("downgrade-library", "upgrade-library")),
    ("package-version-mismatch", "resolver-gave-up", ("align-package-versions", "fix-user-code")),
    ("dtype-mix", "flash-dtype", ("cast-to-match", "use-bf16")),
    ("gpu-dtype-op-missing", "dtype-of-quantiser", ("use-fp16", "change-quantization")),
    ("platform-binary-missing", "bnb-required-library", ("build-from-source", "upgrade-library")),
    ("platform-binary-missing", "bnb-configured-binary", ("build-from-source", "upgrade-library")),
    ("platform-binary-missing", "bnb-native-missing", ("build-from-source", "upgrade-library")),
    ("package-version-mismatch", "torch-load-refused", ("upgrade-library", "downgrade-library")),
    ("package-version-mismatch", "torch-changed-its-ways", ("downgrade-library", "fix-user-code")),
    ("package-version-mismatch", "model-without-flash", ("use-fallback-kernel", "upgrade-library")),
    ("format-or-arch-unknown", "model-without-flash", ("use-fallback-kernel", "upgrade-library")),
    ("cuda-toolkit-mismatch", "toolkit-floor", ("install-cuda-libraries", "upgrade-library")),
    ("cuda-toolkit-mismatch", "compiler-option-unknown", ("install-cuda-libraries", "upgrade-library")),
    ("fp16-overflow", "nan-probabilities", ("use-bf16", "use-fp32")),
    ("gpu-out-of-memory", "cudnn-handle", ("set-environment-override", "reduce-memory")),
    ("kernel-shape-constraint", "option-not-in-kernel", ("use-fallback-kernel", "upgrade-library")),
    ("kernel-shape-constraint", "attention-option", ("use-fallback-kernel", "upgrade-library")),
    ("slow-dtype-path", "sdpa-without-flash", ("install-matching-build", "upgrade-library")),
    ("slow-dtype-path", "miopen-database", ("install-cuda-libraries", "upgrade-library")),
    ("slow-dtype-path", "tf32-advice", ("fix-user-code", "build-from-source")),
    ("package-version-mismatch", "extension-source-older", ("downgrade-library", "upgrade-library")),
    ("package-version-mismatch", "attribute-of-transformers", ("downgrade-library", "align-package-versions")),
    ("package-version-mismatch", "attribute-of-other-version", ("align-package-versions", "downgrade-library")),
    ("package-version-mismatch", "numpy-of-other-version", ("downgrade-library", "align-package-versions")),
    ("package-version-mismatch", "dtype-of-numpy-unknown", ("downgrade-library", "align-package-versions")),
    ("package-version-mismatch", "protobuf-generated", ("align-package-versions", "downgrade-library")),
    ("package-version-mismatch", "python-too-new", ("align-package-versions", "downgrade-library")),
    ("package-version-mismatch", "default-of-dataclass", ("downgrade-library", "upgrade-library")),
    ("package-version-mismatch", "dataset-of-other-version", ("downgrade-library", "upgrade-library")),
    ("package-version-mismatch", "weights-only-default", ("downgrade-library", "fix-user-code")),
    ("package-version-mismatch", "cannot-import-name", ("align-package-versions", "downgrade-library")),
    ("cpu-instruction-missing", "illegal-instruction", ("build-from-source", "change-hardware")),
    ("cpu-instruction-missing", "cpu-isa", ("build-from-source", "change-hardware")),
    ("cpu-instruction-missing", "cpu-path-needs", ("use-fp32", "change-hardware")),
    ("xpu-directml-unsupported", "directml-other", ("upgrade-library", "use-cpu")),
    ("mps-dtype-unsupported", "candle-metal-left-out", ("upgrade-library", "use-cpu")),
    ("mps-dtype-unsupported", "candle-metal-feature", ("upgrade-library", "use-cpu")),
    ("cpu-only-build", "candle-metal-feature", ("build-from-source", "upgrade-library")),
    ("mps-dtype-unsupported", "metal-function", ("upgrade-library", "use-cpu")),
    ("mps-dtype-unsupported", "metal-operation", ("upgrade-library", "use-cpu")),
    ("mps-dtype-unsupported", "metal-bfloat", ("upgrade-library", "use-cpu")),
    ("quantized-model-operation", "quantised-not-mapped", ("dequantize-first", "upgrade-library")),
    ("quantized-model-operation", "requantised", ("requantize-or-reconvert", "dequantize-first")),
    ("cuda-toolkit-mismatch", "toolkit-names-missing", ("install-cuda-libraries", "upgrade-library")),
    ("cuda-library-not-found", "driver-library-at-link", ("set-library-path", "build-from-source")),
    ("cuda-library-not-found", "own-library-missing", ("set-library-path", "install-cuda-libraries")),
    ("graphics-api-feature-missing", "vulkan-limit", ("reduce-memory", "change-hardware")),
    ("kernel-shape-constraint", "attention-of-the-model", ("use-fallback-kernel", "change-quantization")),
    ("kernel-shape-constraint", "ggml-shape-assert", ("upgrade-library", "use-fallback-kernel")),
    ("platform-binary-missing", "libstdcxx-older", ("build-from-source", "install-matching-build")),
    ("package-version-mismatch", "libstdcxx-older", ("set-library-path", "upgrade-library")),
    ("xpu-directml-unsupported", "accelerator-of-ggml", ("change-quantization", "use-cpu")),
    ("int8-matmul-unsupported-gpu", "compute-type-refused", ("use-fp32", "use-fp16")),
    ("graphics-api-feature-missing", "vulkan-driver", ("upgrade-driver", "use-cpu")),
    ("graphics-api-feature-missing", "wgpu-adapter", ("upgrade-driver", "use-other-backend")),
    ("graphics-api-feature-missing", "vulkan-device-refused", ("use-other-backend", "upgrade-library")),
    ("graphics-api-feature-missing", "gpu-refused-short", ("use-other-backend", "change-hardware")),
    ("graphics-api-feature-missing", "gl-version-refused", ("upgrade-driver", "set-environment-override")),
    ("graphics-api-feature-missing", "glx-context", ("upgrade-driver", "set-environment-override")),
    ("graphics-api-feature-missing", "shader-double", ("use-fp32", "use-other-backend")),
    ("graphics-api-feature-missing", "browser-kernel-missing", ("use-other-backend", "use-cpu")),
    ("graphics-api-feature-missing", "delegate-part-only", ("use-cpu", "change-quantization")),
    ("graphics-api-feature-missing", "wgpu-feature", ("use-other-backend", "upgrade-library")),
    ("slow-dtype-path", "cudnn-layer-generic", ("build-from-source", "fix-user-code")),
    ("gpu-not-visible", "gl-of-other-gpu", ("fix-gpu-visibility", "set-environment-override")),
    ("gpu-not-visible", "egl-display", ("fix-gpu-visibility", "set-environment-override")),
    ("cuda-toolkit-mismatch", "compiler-stumbles", ("install-matching-build", "build-from-source")),
    ("cuda-toolkit-mismatch", "undefined-symbol", ("install-matching-build", "build-from-source")),
    ("package-version-mismatch", "keras-three", ("downgrade-library", "fix-user-code")),
    ("cpu-only-build", "video-without-gpu", ("build-from-source", "install-matching-build")),
    ("cpu-only-build", "picture-network-on-processor", ("install-matching-build", "build-from-source")),
    ("cpu-only-build", "bnb-optimisers-missing", ("build-from-source", "set-environment-override")),
    ("cuda-library-not-found", "bnb-optimisers-missing", ("build-from-source", "install-cuda-libraries")),
    ("package-version-mismatch", "extension-missing", ("build-from-source", "install-matching-build")),
    ("package-version-mismatch", "extension-undefined", ("build-from-source", "install-matching-build")),
    ("cpu-only-build", "cpu-only-package", ("install-matching-build", "build-from-source")),
    ("cpu-only-build", "built-without", ("install-matching-build", "build-from-source")),
    ("package-version-mismatch", "ragged-array", ("downgrade-library", "upgrade-library")),
    ("package-version-mismatch", "dlib-picture", ("downgrade-library", "align-package-versions")),
    ("package-version-mismatch", "attention-asserted", ("install-matching-build", "build-from-source")),
    ("package-version-mismatch", "package-missing", ("align-package-versions", "install-matching-build")),
    ("package-version-mismatch", "weights-only", ("upgrade-library", "fix-user-code")),
    ("kernel-min-compute-capability", "video-units-refused", ("change-hardware", "use-cpu")),
    ("kernel-min-compute-capability", "opencv-arch-list", ("use-fp32", "use-cpu")),
    ("slow-dtype-path", "miopen-small-workspace", ("set-environment-override", "use-fallback-kernel")),
    ("slow-dtype-path", "aotriton-experimental", ("set-environment-override", "use-fallback-kernel")),
    ("graphics-api-feature-missing", "opencv-opencl-device", ("use-cpu", "use-other-backend")),
    ("platform-binary-missing", "webui-without-gpu", ("use-other-backend", "use-cpu")),
    ("platform-binary-missing", "libuv-left-out", ("set-environment-override", "downgrade-library")),
    ("kernel-shape-constraint", "engine-shape", ("adjust-shape", "use-fallback-kernel")),
    ("host-out-of-memory", "workers-gone", ("reduce-memory", "add-host-memory")),
    ("dtype-mix", "weights-in-half-for-training", ("use-fp32", "fix-user-code")),
    ("mps-dtype-unsupported", "macos-release-demanded", ("upgrade-driver", "set-environment-override")),
    ("mps-dtype-unsupported", "sparse-on-metal", ("use-cpu", "set-environment-override")),
    ("gpu-not-visible", "gpu-ignored-as-small", ("set-environment-override", "fix-gpu-visibility")),
    ("gpu-not-visible", "opencl-no-platform", ("fix-gpu-visibility", "set-library-path")),
    ("gpu-not-visible", "mps-not-available", ("install-matching-build", "upgrade-driver")),
    ("gpu-dtype-op-missing", "operator-of-quantised-engine", ("use-cpu", "change-quantization")),
    ("graphics-api-feature-missing", "vulkan-loader-missing", ("install-cuda-libraries", "upgrade-driver")),
    ("package-version-mismatch", "half-not-on-backend", ("upgrade-library", "align-package-versions")),
    ("cuda-toolkit-mismatch", "compiler-too-new", ("downgrade-library", "set-environment-override")),
    ("cuda-toolkit-mismatch", "cuda-versions-conflict", ("set-library-path", "install-matching-build")),
    ("cuda-toolkit-mismatch", "removed-from-cuda", ("downgrade-library", "upgrade-library")),
    ("platform-binary-missing", "mathematics-left-out", ("build-from-source", "upgrade-library")),
    ("cuda-toolkit-mismatch", "host-headers", ("upgrade-library", "downgrade-library")),
    ("cuda-toolkit-mismatch", "jitify-failed", ("set-library-path", "install-matching-build")),
    ("cuda-toolkit-mismatch", "runtime-of-cuda-refused", ("install-cuda-libraries", "install-matching-build")),
    ("build-lacks-old-arch", "cudf-without-code", ("change-hardware", "downgrade-library")),
    ("build-wrong-arch-flags", "bindings-of-other-gpu", ("build-from-source", "set-environment-override")),
    ("compiler-arch-unsupported", "nvrtc-arch", ("upgrade-library", "install-matching-build")),
    ("cuda-toolkit-mismatch", "provider-dll-start", ("align-package-versions", "install-matching-build")),
    ("package-version-mismatch", "other-python", ("downgrade-library", "upgrade-library")),
    ("package-version-mismatch", "triton-of-other-python", ("downgrade-library", "align-package-versions")),
    ("cuda-toolkit-mismatch", "cmake-older-than-cuda", ("upgrade-library", "downgrade-library")),
    ("cuda-toolkit-mismatch", "components-outdated", ("install-cuda-libraries", "install-matching-build")),
    ("cuda-toolkit-mismatch", "compiler-option-unknown", ("upgrade-library", "install-cuda-libraries")),
    ("cuda-toolkit-mismatch", "toolkit-floor", ("install-cuda-libraries", "upgrade-library")),
    ("cuda-toolkit-mismatch", "driver-combination", ("set-library-path", "install-matching-build")),
    ("compiler-arch-unsupported", "triton-assertion", ("use-fallback-kernel", "change-hardware")),
    ("gpu-not-visible", "opencl-no-platform", ("install-cuda-libraries", "set-library-path")),
    ("package-version-mismatch", "torch-changed-its-ways", ("downgrade-library", "fix-user-code")),
    ("package-version-mismatch", "resolver-gave-up", ("align-package-versions", "fix-user-code")),
    ("package-version-mismatch", "horovod-unbuilt", ("build-from-source", "install-matching-build")),
    ("not-a-compatibility-problem", "gpu-memory-fault", ("change-hardware", "fix-gpu-visibility")),
    ("software-defect", "static-tls", ("set-environment-override", "upgrade-library")),
    ("xpu-directml-unsupported", "ascend-operator-refused", ("use-fp16", "upgrade-library")),
    ("graphics-api-feature-missing", "wgpu-request", ("change-hardware", "upgrade-library")),
)


#: Messages of graphics interfaces for which a row above has an order.
_GRAPHICS_ORDERED = tuple(name for cause, name, _ in FIRST if cause == "graphics-api-feature-missing")

#: Where the device or the words around change it; these outrank the rows above.
BY_FACT: tuple[tuple[str, Callable[[Scene], bool], Sequence[str]], ...] = (
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
    ("slow-dtype-path", lambda s: s.has("compute-dtype-wide"), ("change-compute-dtype", "use-fp16")),
    (
        "dtype-mix",
        lambda s: s.has("operand-of-other-type") and s.says(r"to be (?:float16 or )?bfloat16"),
        ("use-bf16", "cast-to-match"),
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
        "gpu-not-visible",  # the driver's module says itself that another one is needed for this card
        lambda s: s.says(r"NVIDIA open kernel modules|xx Legacy drivers|is not supported by the (?:NVIDIA )?\d{3}"),
        ("upgrade-driver", "fix-gpu-visibility"),
    ),
    ("gpu-not-visible", lambda s: s.says(_BETWEEN_CARDS), ("set-environment-override", "fix-gpu-visibility")),
    ("not-a-compatibility-problem", lambda s: s.says(_BETWEEN_CARDS), ("set-environment-override", "fix-user-code")),
    ("slow-dtype-path", lambda s: s.has("fast-kernel-not-built"), ("build-from-source", "install-matching-build")),
    (
        "slow-dtype-path",
        lambda s: s.below(70) or s.has("compute-type-refused"),
        ("use-fp32", "use-other-backend"),
    ),
    (
        "slow-dtype-path",
        lambda s: s.says(r"(?i)\b(?:[48]-?bit\b|nf4|awq|gptq|bnb|bitsandbytes|float8|fp8|quanti[sz])"),
        ("use-fp16", "change-quantization"),
    ),
    ("cpu-half-op-missing", lambda s: s.has("compute-type-refused") and s.from_(70), ("use-gpu", "use-fp32")),
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
    ("build-lacks-old-arch", lambda s: s.has("runner-died"), ("use-cpu", "use-other-backend")),
    ("build-lacks-old-arch", lambda s: s.below(35), ("change-hardware", "downgrade-library")),
    ("build-lacks-old-arch", lambda s: s.below(37), ("build-from-source", "use-cpu", "change-hardware")),
    (
        "platform-binary-missing",
        lambda s: s.facts.apple and not s.has("wrong-platform", "no-wheel"),
        ("use-cpu", "change-hardware"),
    ),
    (
        "platform-binary-missing",
        lambda s: s.vendor in ("amd", "intel") and s.has("cuda-gpu-demanded"),
        ("use-other-backend", "change-hardware"),
    ),
    (
        "platform-binary-missing",
        lambda s: s.says("(?i)triton|torch.compile"),
        ("use-fallback-kernel", "install-matching-build"),
    ),
    (
        "format-or-arch-unknown",  # GGUF files of picture and video models, which no program for text reads
        lambda s: s.says(
            r"architecture: '(?:sd[123x]\w*|flux\w*|aura|hidream|hyvid|wan|ltxv|cosmos|lumina2|qwen_image)'"
        ),
        ("use-other-backend", "change-quantization"),
    ),
    ("fp16-overflow", lambda s: s.has("exclamation-marks"), ("use-fp32", "upgrade-library")),
    ("fp16-overflow", lambda s: s.says(r"(?i)\bvae\b"), ("upcast-part", "use-fp32")),
    (
        "kernel-shape-constraint",
        lambda s: s.says(r"(?i)group[_ ]size|quanti[sz]\w* requires|required for q\d|in_features"),
        ("change-quantization", "adjust-shape"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says(r"maximum buffer size|exceeds `max_"),
        ("reduce-memory", "change-hardware"),
    ),
    (
        "cpu-instruction-missing",
        lambda s: s.says(r"x86-64-v\d|X86_V\d|required CPU features"),
        ("downgrade-library", "change-hardware"),
    ),
    ("fp16-overflow", lambda s: s.below(80), ("use-fp32", "upcast-part")),
    (
        "rocm-arch-unsupported",
        lambda s: s.says(r"\bgfx9\d\d\b|Vega"),
        ("downgrade-library", "set-environment-override"),
    ),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.says(
            r"undefined symbol: _*(?:nvJit|cublas|cudnn|nccl|ZN5cudnn)|libnvJitLink|cuDNN version incompat"
        ),
        ("set-library-path", "install-matching-build"),
    ),
    (
        "xpu-directml-unsupported",
        lambda s: s.vendor in ("amd", "nvidia") and s.says(r"(?i)openvino|intel_gpu"),
        ("use-cpu", "change-hardware"),
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
            s.has("target-not-known", "nvrtc-arch")
            and (s.below(50) or (s.below(75) and s.facts.cuda is not None and s.facts.cuda >= (13, 0)))
        ),
        ("downgrade-library", "change-hardware"),
    ),
    (
        "platform-binary-missing",
        lambda s: not s.facts.apple and s.about(r"(?i)\bjetson|\baarch64\b|\btegra"),
        ("build-from-source", "install-matching-build"),
    ),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.says("SUBLIBRARY_"),
        ("set-library-path", "install-cuda-libraries"),
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
        "compiler-arch-unsupported",  # a toolkit that dropped what the list of the program still names
        lambda s: s.says(r"(?i)Unsupported gpu architecture:? '?(?:compute|sm)_[2-6]\d\b"),
        ("downgrade-library", "build-from-source"),
    ),
    (
        "compiler-arch-unsupported",
        lambda s: s.below(70) and not s.has("nvcc-arch", "nvrtc-arch", "nvcc-native-unknown"),
        ("use-fallback-kernel", "change-hardware"),
    ),
    (
        "format-or-arch-unknown",
        lambda s: s.says(r"(?i)no longer supported|magic|engine plan|please rebuild|serializ\w*(?: \w+){0,2} ?engine"),
        ("requantize-or-reconvert", "upgrade-library"),
    ),
    ("mps-dtype-unsupported", lambda s: s.has("mps-not-implemented"), ("use-cpu", "set-environment-override")),
    ("mps-dtype-unsupported", lambda s: s.has("mps-other"), ("use-fp32", "upgrade-library")),
    (
        "mps-dtype-unsupported",
        lambda s: s.says(r"(?i)\bbf(?:loat)?16") and not s.has("metal-operation", "metal-function", "metal-bfloat"),
        ("use-fp16", "use-fp32"),
    ),
    (
        "mps-dtype-unsupported",
        lambda s: s.about(r"(?i)ggml|\bmlx|candle|core_?ml|llama|tensorflow|\bjax") and not s.has("mlx-kernel"),
        ("upgrade-library", "use-cpu"),
    ),
    (
        "xpu-directml-unsupported",
        lambda s: s.says("version_counter"),
        ("fix-user-code", "use-other-backend"),
    ),
    (
        "xpu-directml-unsupported",
        lambda s: s.about(r"(?i)\bdml|directml|privateuse") and not s.has("directml-other"),
        ("use-fp32", "use-cpu"),
    ),
    ("xpu-directml-unsupported", lambda s: s.about("(?i)openvino"), ("use-cpu", "use-fp32")),
    (
        "graphics-api-feature-missing",
        lambda s: s.about("(?i)opencl|clCreate") and not s.has(*_GRAPHICS_ORDERED),
        ("use-cpu", "use-other-backend"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.about("(?i)ncnn|waifu2x") and not s.has(*_GRAPHICS_ORDERED),
        ("upgrade-driver", "use-cpu"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.about("(?i)ggml_vulkan|llama") and not s.has(*_GRAPHICS_ORDERED),
        ("use-cpu", "upgrade-driver"),
    ),
    (
        "slow-dtype-path",
        lambda s: s.about("(?i)offloaded|llama|ggml|ollama|whisper"),
        ("build-from-source", "use-gpu"),
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
)
