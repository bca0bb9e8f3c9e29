"""Hold in which order fixes are named on devices of other makers, on processors and behind graphics interfaces.

The rows are (cause, when, labels that come first), and stand before those of ``fix_order_facts``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rung.diagnosis.evidence import Scene

#: Messages of graphics interfaces whose rows above say what helps.
_GRAPHICS_OWN = (
    *("vulkan-limit", "vulkan-driver", "vulkan-device-refused", "vulkan-loader-missing", "gpu-refused-short"),
    *("shader-double", "opencv-opencl-device", "gl-version-refused", "glx-context", "delegate-part-only"),
)
_OPENGL = r"\b(?:GLFW|WGL|E?GLX?|OpenGL)\b"
#: What a dtype is to blame for, and not an operation that is missing.
_ABOUT_DTYPES = (
    r"(?i)float64|\bfp?64\b|\bdouble\b|\bhalf\b|float16|\bfp16|autocast|_amp_foreach|\bblack\b|\bnoise"
    r"|invalid value encountered in cast"
)
#: GPUs whose drivers ended before Vulkan, or with a part of it.
_BEFORE_VULKAN = (
    r"(?i)\bHD (?:Graphics )?(?:[23]000|2500|4[0246]00)\b|\bGMA\b|\bFermi\b|\bTeraScale"
    r"|\bRadeon (?:HD )?[2-6]\d{3}\b"
)
#: Compilers of shaders in Rust, which reject what other GPUs take until a release does without.
_SHADERS_OF_RUST = r"cubecl|wgpu_core|wgpu error|WGSL compilation"
#: The rows.
BY_MAKER: tuple[tuple[str, Callable[[Scene], bool], Sequence[str]], ...] = (
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
    (  # what a browser grants grows with its releases, and models are compiled for more than it granted
        "graphics-api-feature-missing",
        lambda s: s.says(r"requested max\w+ exceeds limit|max\w+(?:Size|Stage) exceeds limit|exceeds adapter limit"),
        ("upgrade-library", "change-hardware"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says(r"max(?:imum)? buffer size|exceeds `max_|INVALID_BUFFER_SIZE"),
        ("reduce-memory", "change-hardware"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says(_SHADERS_OF_RUST) and not s.says("(?i)buffer|limit"),
        ("upgrade-library", "upgrade-driver"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: (
            s.says(r"(?i)\bf16\b|shader_f(?:loat)?16|float16|\bfp16\b(?!:)|cl_khr_fp(?:16|64)|type '?(?:half|double)\b")
            and not s.says("(?i)ggml|llama|kompute")
        ),
        ("use-fp32", "upgrade-library"),
    ),
    (  # a screen of another machine, or none
        "graphics-api-feature-missing",
        lambda s: s.says(_OPENGL) and s.about(r"(?i)\bssh\b|\bvnc\b|\bRDP\b|remote|headless|docker|\bVM\b"),
        ("fix-gpu-visibility", "upgrade-driver"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says(_OPENGL) and not s.has(*_GRAPHICS_OWN),
        ("upgrade-driver", "change-hardware"),
    ),
    (
        "graphics-api-feature-missing",
        lambda s: s.says(r"ERR: \[webgpu\]|887A0004"),
        ("use-cpu", "upgrade-library"),
    ),
    (  # what no driver adds to a card
        "graphics-api-feature-missing",
        lambda s: (
            s.says(r"(?i)vulkan|\bopencl|\bvk[A-Z:]|kompute")
            and s.says(
                r"(?i)(?:does not|doesn't) support(?! double)|support is incomplete|Vulkan 1\.\d required"
                r"|undeclared identifier|unsupported OpenCL extension|kompute"
            )
            and not s.has(*_GRAPHICS_OWN)
        ),
        ("use-other-backend", "use-cpu"),
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
    (  # a release before it ran
        "cpu-instruction-missing",
        lambda s: s.says(r"(?i)\b(?:since|after|on|from) (?:the )?(?:v\d+\.\d+|updat|upgrad|new release)|\bregress"),
        ("downgrade-library", "build-from-source"),
    ),
    (  # wheels whose newer releases ask for more than older ones did
        "cpu-instruction-missing",
        lambda s: (
            s.about(r"(?i)\btensorflow|\bnumpy|\bopen3d|\bfaiss|\bmxnet|\bjaxlib|\bpyarrow")
            and not s.says(r"(?i)polars|paddle|ggml|llama")
            and not s.about(r"(?i)\bkvm|\bqemu|\bVM\b|virtual|proxmox|hypervisor")
        ),
        ("build-from-source", "downgrade-library"),
    ),
    (
        "cpu-instruction-missing",
        lambda s: s.says(r"x86-64-v\d|X86_V\d"),
        ("downgrade-library", "change-hardware"),
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
        "xpu-directml-unsupported",
        lambda s: s.vendor in ("amd", "nvidia") and s.says(r"(?i)openvino|intel_gpu"),
        ("use-cpu", "change-hardware"),
    ),
    (  # the message names the variable
        "gpu-out-of-memory",
        lambda s: s.says("PYTORCH_MPS_HIGH_WATERMARK_RATIO"),
        ("reduce-memory", "set-environment-override"),
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
    (
        "xpu-directml-unsupported",
        lambda s: s.about(r"(?i)\bhpu\b|gaudi|habana") and s.says(r"(?i)\bhalf\b|\bfp16|\bfloat16"),
        ("use-bf16", "use-fp32"),
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
