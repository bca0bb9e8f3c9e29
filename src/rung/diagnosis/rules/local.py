"""Hold what llama.cpp and the programs around it, and CTranslate2, leave open and the environment settles."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import MISSING

_NVIDIA = "NVIDIA, CUDA C++ Programming Guide, compute capabilities"
_CTRANSLATE = "CTranslate2, types.cc"
#: Programs that most people install ready-made.
_READY_MADE = r"(?i)ggml|llama|whisper|kobold|ollama|localai"
#: Signs that it was compiled on a machine of its user's.
_BUILT = r"(?i)cmake|from source|-D\w*ARCH|CUDA_ARCHITECTURES|docker build|\bnvcc\b|\bbuilt (?:in|with|on)\b"
_TARGETS = r"(?:AMD)?GPU_TARGETS|HIP_ARCHITECTURES|PYTORCH_ROCM_ARCH|--offload-arch"
_CONTAINER = r"(?i)docker|container|podman|kubernetes|headless|no ICD"
#: Kernels that are written for compute capability 8.0 and later.
#: Memory of the machine that CUDA allocates.
_PINNED = re.compile(r"pin_memory|cudaHostAlloc|cuda_host_malloc|cudaMallocHost").search
#: Packages for Windows that start on processors with AVX only.
_WITH_AVX = re.compile(r"(?i)pywrap_tensorflow|paddle|mediapipe|_framework_bindings").search
#: Packages whose plain installation has no code for GPUs.
_FOR_PROCESSORS = (
    r"(?i)\bllama[-_]cpp[-_]python|\bllama_cpp\b|\bctransformers\b|\bpy(?:whisper|llama)cpp\b|\bfaiss-cpu\b"
    r"|\bonnxruntime\b(?![-_](?:gpu|directml))|\bopencv-python\b|\blightgbm\b|\bdlib\b|\bpaddlepaddle\b(?!-gpu)"
)
#: Files of llama.cpp.
_FILES = r"(?i)[-_/.](?:gguf|ggml)\b"


def _ready_made(scene: Scene) -> bool:
    return scene.has(*MISSING) and scene.about(_READY_MADE) and not scene.about(_BUILT)


def _asked(scene: Scene, dtype: str) -> bool:
    return scene.has("compute-type-refused") and scene.words.get("type", "").lower().startswith(dtype)


def _without_four_bits(scene: Scene) -> bool:
    return scene.below(80) or (scene.from_(90) and scene.below(100))


RULES: tuple[Rule, ...] = (
    Rule(
        "wheel-for-processors",
        lambda s: s.has("gpu-unused-symptom") and s.about(_FOR_PROCESSORS),
        {"cpu-only-build": 1.6},
        "what the package index gives of this package computes on the CPU alone, unless it was compiled otherwise",
        "PyPI, llama-cpp-python and others",
    ),
    Rule(
        "ready-made-before-gpu",
        lambda s: _ready_made(s) and s.from_(100),
        {"build-lacks-new-arch": 3.5, "build-wrong-arch-flags": -1},
        "{gpu} has compute capability {cc}, newer than many releases of this program hold code for",
        "llama.cpp and ollama, release notes",
    ),
    Rule(
        "ready-made-after-gpu",
        lambda s: _ready_made(s) and s.below(60) and s.from_(50),
        {"build-lacks-old-arch": 3.5, "build-wrong-arch-flags": -1},
        "{gpu} has compute capability {cc}, which releases for newer CUDA leave out",
        "llama.cpp and ollama, release notes",
    ),
    Rule(
        "bf16-compute-type",
        lambda s: _asked(s, "bfloat16") and s.below(80),
        {"bf16-unsupported-gpu": 8, "cpu-half-op-missing": -2},
        "{gpu} has compute capability {cc}; bfloat16 came with 8.0",
        _CTRANSLATE,
    ),
    Rule(
        "int8-compute-type",
        lambda s: _asked(s, "int8") and (s.below(61) or s.facts.capability == 62),
        {"int8-matmul-unsupported-gpu": 7, "slow-dtype-path": -1.5},
        "{gpu} has compute capability {cc}; products of 8-bit numbers came with 6.1",
        _CTRANSLATE,
    ),
    Rule(
        "weights-widened",
        lambda s: s.has("compute-type-refused") and s.says("automatically converted to use the float32"),
        {"slow-dtype-path": 1.5},
        "the program goes on in float32",
        _CTRANSLATE,
    ),
    Rule(
        "ollama-leaves-out-old-gpu",
        lambda s: s.has("gpu-hidden") and s.says("no compatible GPUs were discovered") and s.below(50),
        {"build-lacks-old-arch": 7, "gpu-not-visible": -2},
        "{gpu} has compute capability {cc}: ollama computes on 5.0 and newer",
        "ollama, supported GPUs",
    ),
    Rule(
        "limit-and-not-memory",
        lambda s: s.has("vulkan-limit") and s.has("cuda-driver-oom"),
        {"gpu-out-of-memory": -4},
        "one buffer is larger than the driver allows, whatever is free",
        "Vulkan, maxMemoryAllocationSize",
    ),
    Rule(
        "rocblas-counts-none",
        lambda s: s.has("tensile-no-device") and s.vendor == "amd" and not s.about(_CONTAINER),
        {"rocm-arch-unsupported": 3},
        "{gpu} is there: rocBLAS does not count GPUs that it has no code for",
        "rocBLAS, tensile_host.cpp",
    ),
    Rule(
        "driver-said-first",
        lambda s: s.has("driver-insufficient") and s.has("no-cuda-device"),
        {"driver-too-old": 2.5},
        "the driver was found too old before no GPU was found: the second follows from the first",
        "CUDA runtime API, cudaErrorInsufficientDriver",
    ),
    Rule(
        "amd-targets-named",
        lambda s: s.has(*MISSING) and s.about(_TARGETS),
        {"build-wrong-arch-flags": 11, "rocm-arch-unsupported": -7},
        "the list of AMD GPUs that it was compiled for is named: it lacks this one",
        "llama.cpp, building for HIP",
    ),
    Rule(
        "operation-on-processor",
        lambda s: s.has("operation-without-dtype") and (s.facts.on_cpu or "cpu_backend" in s.said or s.about("--cpu")),
        {"cpu-half-op-missing": 3},
        "the model runs on the processor",
        "candle, cpu_backend",
    ),
    Rule(
        "mac-without-toolkit",
        lambda s: s.facts.apple and s.has("cuda-home", "nvcc-not-there", "no-toolkit-found"),
        {"platform-binary-missing": 6, "cuda-library-not-found": -2},
        "there is no CUDA on macOS",
        "Apple, macOS",
    ),
    Rule(
        "cuda-asked-of-amd",
        lambda s: s.vendor == "amd" and s.says("no CUDA-capable device is detected|No CUDA GPUs are available"),
        {"platform-binary-missing": 6, "gpu-not-visible": -3},
        "{gpu} is no NVIDIA GPU: the program was built for CUDA",
        "CUDA runtime API, cudaErrorNoDevice",
    ),
    Rule(
        "cpp-library-of-conda",
        lambda s: s.has("libstdcxx-older", "abi-too-old") and s.about(r"(?i)conda|/envs/"),
        {"package-version-mismatch": 4, "platform-binary-missing": -0.5},
        "two C++ libraries meet: the environment's own and the system's",
        "conda, libstdcxx-ng",
    ),
    Rule(
        "type-on-gpu",
        lambda s: s.has("ggml-type-assert") and s.says(r"ggml[-_]cuda"),
        {"gpu-dtype-op-missing": 2.5},
        "it is the GPU's kernel that lacks the type",
        "ggml-cuda",
    ),
    Rule(
        "quantised-file-for-other-reader",
        lambda s: (
            s.has("hub-access") and bool(re.search(r"no file named|have a file named", s.said)) and s.says(_FILES)
        ),
        {"format-or-arch-unknown": 7, "not-a-compatibility-problem": -1},
        "the folder holds GGUF or GGML files, which this reader does not take by themselves",
        "transformers, modeling_utils.py",
    ),
    Rule(
        "bf16-type-before-ampere",
        lambda s: s.has("bfloat-type-undefined") and s.says("__nv_bfloat16") and s.below(80),
        {"kernel-min-compute-capability": 2.5},
        "{gpu} has compute capability {cc}; bfloat16 is computed from 8.0 on",
        _NVIDIA,
    ),
    Rule(
        "pinned-memory",
        lambda s: (
            s.has("cuda-out-of-memory", "gpu-oom-short", "cuda-driver-oom", "gpu-buffer-failed")
            and bool(_PINNED(s.said))
        ),
        {"host-out-of-memory": 8, "gpu-out-of-memory": -3},
        "the memory that was asked for is the machine's: it is pinned for the GPU",
        "CUDA runtime API, cudaHostAlloc",
    ),
    Rule(
        "binaries-with-avx",
        lambda s: s.has("tensorflow-dll-start", "dll-initialisation") and bool(_WITH_AVX(s.said)),
        {"cpu-instruction-missing": 3},
        "this package is compiled for processors with AVX",
        "TensorFlow, release notes of 1.6",
    ),
    Rule(
        "old-card-in-ready-made",
        lambda s: s.has("runner-died") and s.below(50),
        {"build-lacks-old-arch": 4, "gpu-out-of-memory": -1},
        "{gpu} has compute capability {cc}: releases of llama.cpp hold code for 5.0 and newer",
        "llama.cpp, ggml-cuda/CMakeLists.txt",
    ),
    Rule(
        "symbol-of-candle",
        lambda s: s.has("named-symbol") and s.says("when loading \\w*bf16") and s.from_(80),
        {"build-wrong-arch-flags": 5, "build-lacks-new-arch": -2, "bf16-unsupported-gpu": -2},
        "{gpu} has compute capability {cc}; the crate was compiled for a GPU before 8.0, whose kernels lack bfloat16",
        "candle-kernels, build.rs",
    ),
    Rule(
        "cuda-translated-to-hip",
        lambda s: (
            s.has("named-symbol")
            and s.says("(?i)bitsandbytes|csrc.ops\\.cu")
            and (s.about("(?i)zluda") or (s.vendor == "amd" and s.facts.windows))
        ),
        {"platform-binary-missing": 8, "rocm-arch-unsupported": -4},
        "a library compiled for CUDA is asked on an AMD GPU, through a translation that knows none of its kernels",
        "ZLUDA",
    ),
    Rule(
        "four-bit-kernels-left-out",
        lambda s: (
            s.has(*MISSING, "cuda-not-supported-here")
            and s.says("(?i)nunchaku|gemv_awq|gemm_w4a4")
            and _without_four_bits(s)
        ),
        {"kernel-min-compute-capability": 9, "build-wrong-arch-flags": -3.5, "build-lacks-old-arch": -2},
        "{gpu} has compute capability {cc}: these kernels are written for some generations with 4-bit matrix units",
        "nunchaku, supported GPUs",
    ),
    Rule(
        "left-out-for-bfloat",
        lambda s: s.has("kernel-body-left-out") and s.from_(75) and s.below(80),
        {"bf16-unsupported-gpu": 3},
        "{gpu} has compute capability {cc}: these kernels take float16 there, and bfloat16 from 8.0 on",
        "nunchaku, supported GPUs",
    ),
)
