"""In which order fixes are named where a message, the device or the words around ask for another than the cause's own.

The rows are (cause, when, labels that come first); of ``when`` that hold, the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rung.diagnosis.evidence import Scene

#: Where facts change the order: (cause, when, labels that come first).
FIRST: tuple[tuple[str, str, Sequence[str]], ...] = (
    ("kernel-min-compute-capability", "quantisation-min-capability", ("change-quantization", "use-other-backend")),
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
    ("cuda-toolkit-mismatch", "numba-toolkit-unknown", ("install-cuda-libraries", "downgrade-library")),
    ("cuda-toolkit-mismatch", "nvrtc-builtins", ("set-library-path", "install-matching-build")),
    ("cuda-library-not-found", "nvrtc-builtins", ("set-library-path", "install-cuda-libraries")),
    ("platform-binary-missing", "abi-too-old", ("build-from-source", "install-matching-build")),
    ("cuda-toolkit-mismatch", "ptx-version", ("install-cuda-libraries", "set-environment-override")),
    ("int8-matmul-unsupported-gpu", "merge-call", ("upgrade-library", "dequantize-first")),
    ("compiler-arch-unsupported", "inductor-old", ("use-fallback-kernel", "use-other-backend")),
    ("compiler-arch-unsupported", "ptxas-arch", ("set-environment-override", "upgrade-library")),
    ("software-defect", "ggml-assert", ("upgrade-library", "use-fallback-kernel")),
    ("software-defect", "known-regression", ("downgrade-library", "upgrade-library")),
    ("mps-dtype-unsupported", "mps-convert-bf16", ("use-fp16", "use-fp32")),
    ("mps-dtype-unsupported", "mlx-kernel", ("upgrade-library", "downgrade-library")),
    ("mps-dtype-unsupported", "mps-float64", ("use-fp32", "upgrade-library")),
    ("mps-dtype-unsupported", "metal-pipeline", ("use-cpu", "upgrade-library")),
    ("compiler-arch-unsupported", "metal-pipeline", ("use-cpu", "upgrade-library")),
    ("platform-binary-missing", "metal-language-newer", ("install-matching-build", "downgrade-library")),
    ("gpu-not-visible", "openvino-device-unknown", ("upgrade-driver", "fix-gpu-visibility")),
    ("gpu-not-visible", "openvino-no-gpu", ("upgrade-driver", "fix-gpu-visibility")),
    ("gpu-not-visible", "driver-of-gpu-failed", ("upgrade-driver", "fix-gpu-visibility")),
    ("gpu-not-visible", "metal-not-there", ("use-cpu", "fix-gpu-visibility")),
    ("gpu-not-visible", "pcie-atomics", ("change-hardware", "fix-gpu-visibility")),
    ("rocm-arch-unsupported", "kfd-refuses-card", ("change-hardware", "use-other-backend")),
    ("compiler-arch-unsupported", "kernel-stack-too-large", ("use-fallback-kernel", "set-environment-override")),
    ("software-defect", "graphics-device-lost", ("upgrade-library", "upgrade-driver")),
    ("package-version-mismatch", "genai-provider-replaced", ("align-package-versions", "install-matching-build")),
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
    ("quantized-model-operation", "train-quantised", ("fix-user-code", "dequantize-first")),
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
    ("package-version-mismatch", "libstdcxx-older", ("upgrade-library", "align-package-versions")),
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
    ("gpu-not-visible", "mps-not-available", ("install-matching-build", "upgrade-driver")),
    ("gpu-dtype-op-missing", "operator-of-quantised-engine", ("use-cpu", "change-quantization")),
    ("graphics-api-feature-missing", "vulkan-loader-missing", ("install-cuda-libraries", "upgrade-driver")),
    ("package-version-mismatch", "half-not-on-backend", ("upgrade-library", "align-package-versions")),
    ("cuda-toolkit-mismatch", "compiler-too-new", ("downgrade-library", "set-environment-override")),
    ("xpu-directml-unsupported", "ascend-operator-refused", ("use-fp16", "upgrade-library")),
    ("graphics-api-feature-missing", "wgpu-request", ("change-hardware", "upgrade-library")),
)


#: Messages of graphics interfaces whose rows above say what helps.
_GRAPHICS_OWN = (
    *("vulkan-limit", "vulkan-driver", "vulkan-device-refused", "vulkan-loader-missing", "gpu-refused-short"),
    *("shader-double", "opencv-opencl-device", "gl-version-refused", "glx-context", "delegate-part-only"),
)
#: What a dtype is to blame for, and not an operation that is missing.
_ABOUT_DTYPES = (
    r"(?i)float64|\bfp?64\b|\bdouble\b|\bhalf\b|float16|\bfp16|autocast|_amp_foreach|\bblack\b|\bnoise"
    r"|invalid value encountered in cast"
)
#: Where the device or the words around change it; these outrank the rows above.
BY_FACT: tuple[tuple[str, Callable[[Scene], bool], Sequence[str]], ...] = (
    (
        "package-version-mismatch",
        lambda s: "." in s.words.get("package", "") and s.has("package-missing"),
        ("align-package-versions", "downgrade-library"),
    ),
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
    ("build-lacks-old-arch", lambda s: s.below(35), ("change-hardware", "downgrade-library")),
    ("build-lacks-old-arch", lambda s: s.below(37), ("build-from-source", "use-cpu", "change-hardware")),
    (
        "platform-binary-missing",
        lambda s: s.says(r"incompatible architecture \(have"),
        ("install-matching-build", "build-from-source"),
    ),
    (
        "platform-binary-missing",
        lambda s: s.facts.apple and not s.has("wrong-platform", "no-wheel", "metal-language-newer"),
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
    ("fp16-overflow", lambda s: s.says(r"(?i)\bvae\b"), ("upcast-part", "use-fp32")),
    (
        "kernel-shape-constraint",
        lambda s: s.says(r"(?i)group[_ ]size|quanti[sz]\w* requires|required for q\d|in_features"),
        ("change-quantization", "adjust-shape"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says(
            r"maximum (?:buffer size \(268435456\)|binding size \(134217728\))"
        ),  # what is granted to programs that ask for no more
        ("fix-user-code", "reduce-memory"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says(r"max(?:imum)? buffer size|exceeds `max_"),
        ("reduce-memory", "change-hardware"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: (
            s.says(r"(?i)\bf16\b|shader_f(?:loat)?16|float16|\bfp16\b(?!:)|cl_khr_fp(?:16|64)|type '?(?:half|double)\b")
            and not s.says("(?i)ggml|llama|kompute")
        ),
        ("use-fp32", "upgrade-library"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says(r"(?i)vulkan|\bopencl|\bvk[A-Z:]") and not s.has(*_GRAPHICS_OWN),
        ("upgrade-driver", "use-other-backend"),
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
        "cpu-instruction-missing",
        lambda s: s.says(r"(?i)polars|paddle|required CPU features"),  # these have builds for older processors
        ("install-matching-build", "build-from-source"),
    ),
    (
        "cpu-instruction-missing",
        lambda s: s.says(r"CPU lacks AVX support|\bBun v?\d|Bun has crashed"),
        ("install-matching-build", "change-hardware"),
    ),
    (
        "cpu-instruction-missing",  # programs for Intel's processors under Rosetta
        lambda s: s.facts.apple and re.search(r"(?i)intel|\bi[3579]-", s.facts.cpu) is None,
        ("install-matching-build", "build-from-source"),
    ),
    ("cpu-instruction-missing", lambda s: s.says(r"(?i)\bbf16|bfloat16|\bAMX\b"), ("use-fp32", "change-hardware")),
    (
        "cpu-instruction-missing",
        lambda s: s.says(r"x86-64-v\d|X86_V\d"),
        ("downgrade-library", "change-hardware"),
    ),
    ("fp16-overflow", lambda s: s.below(80), ("use-fp32", "upcast-part")),
    (
        "rocm-arch-unsupported",
        lambda s: s.says(r"(?i)flash[-_ ]?att|xformers|sage_?att|aotriton|use hipBLASLt on"),
        ("use-fallback-kernel", "use-other-backend"),
    ),
    (
        "rocm-arch-unsupported",  # the HIP SDK, whose libraries are exchanged for those of others; it knows no override
        lambda s: s.says(r"(?i)\\(?:AMD\\)?ROCm\\\d|\bzluda\b"),
        ("install-matching-build", "set-environment-override"),
    ),
    (
        "rocm-arch-unsupported",
        lambda s: (
            s.facts.gpu.arch.startswith("gfx9")
            if s.facts.gpu is not None and s.facts.gpu.arch
            else s.says(r"\bgfx9\d\d\b|Vega")
        ),
        ("downgrade-library", "set-environment-override"),
    ),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.says(r"undefined symbol: _*(?:nvJit|cublas|cudnn)|libnvJitLink|cuDNN version incompat"),
        ("set-library-path", "install-matching-build"),
    ),
    (
        "xpu-directml-unsupported",
        lambda s: s.vendor in ("amd", "nvidia") and s.says(r"(?i)openvino|intel_gpu"),
        ("use-cpu", "change-hardware"),
    ),
    (
        "cuda-toolkit-mismatch",
        lambda s: s.says("SUBLIBRARY_"),
        ("set-library-path", "install-cuda-libraries"),
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
        "compiler-arch-unsupported",
        lambda s: s.below(70) and not s.has("nvcc-arch", "nvrtc-arch"),
        ("use-fallback-kernel", "use-other-backend"),
    ),
    (
        "format-or-arch-unknown",
        lambda s: s.says(r"(?i)no longer supported|magic|engine plan|please rebuild|serializ\w*(?: \w+){0,2} ?engine"),
        ("requantize-or-reconvert", "upgrade-library"),
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
    ("mps-dtype-unsupported", lambda s: s.has("mps-not-implemented"), ("use-cpu", "set-environment-override")),
    ("mps-dtype-unsupported", lambda s: s.says(r"(?i)float8|\bfp8"), ("change-quantization", "upgrade-library")),
    ("mps-dtype-unsupported", lambda s: s.says(r"(?i)bfloat|bf16"), ("use-fp16", "upgrade-library")),
    ("mps-dtype-unsupported", lambda s: s.says(r"(?i)2\*\*32|buffer size"), ("reduce-memory", "use-cpu")),
    (
        "mps-dtype-unsupported",
        lambda s: not s.says(_ABOUT_DTYPES) and not s.has("macos-release-demanded", "mlx-kernel", "metal-pipeline"),
        ("upgrade-library", "use-cpu"),
    ),
    (
        "xpu-directml-unsupported",
        lambda s: s.has("accelerator-of-ggml"),
        ("change-quantization", "use-cpu"),
    ),
    ("xpu-directml-unsupported", lambda s: s.says(r"(?i)bfloat|bf16"), ("use-fp16", "upgrade-library")),
    (
        "xpu-directml-unsupported",
        lambda s: s.says(r"(?i)float8|\bfp8|\bint[48]\b|quanti"),
        ("change-quantization", "upgrade-library"),
    ),
    (
        "xpu-directml-unsupported",
        lambda s: s.says(r"(?i)\brknn|hailo|\bqnn|edgetpu|nnapi"),
        ("use-cpu", "change-quantization"),
    ),
    (
        "xpu-directml-unsupported",
        lambda s: not s.says(_ABOUT_DTYPES),
        ("upgrade-library", "use-cpu"),
    ),
)
