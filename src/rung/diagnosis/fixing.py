"""What to do about a cause: fixes in order, worded for the program and the device at hand."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rung.core.value import Value
from rung.diagnosis.evidence import Scene
from rung.diagnosis.gpus import capability_text
from rung.diagnosis.tables import tables


@dataclass(frozen=True)
class Fix(Value):
    """A way out: its label, what to do in words, and a command to paste where there is one."""

    label: str
    text: str
    command: str | None = None


@dataclass(frozen=True)
class Cause(Value):
    """One row of ``causes.toml``; ``automatic``: ``rung run`` repairs it by itself."""

    label: str
    sentence: str
    means: str
    fixes: tuple[str, ...]
    tell: str
    automatic: bool = False


@dataclass(frozen=True)
class Wording:
    """One row of ``fixes.toml``."""

    label: str
    text: str
    when: str = ""
    command: str | None = None


@functools.cache
def causes() -> Mapping[str, Cause]:
    """All causes by label."""
    return {row["label"]: Cause(**{**row, "fixes": tuple(row["fixes"])}) for row in tables()["cause"]}


@functools.cache
def wordings() -> tuple[Wording, ...]:
    """All wordings of fixes, in the order of the file."""
    return tuple(Wording(**row) for row in tables()["fix"])


#: How often the first, the second ... fix of a cause helps, fitted on threads without their own repositories, and the
#: least probability of a cause whose fixes are told.
_CHANCE, _LIKELY = (0.8, 0.5, 0.3, 0.2, 0.1), 0.1
_MOST = 5


def fixes_for(shares: Mapping[str, float], scene: Scene) -> tuple[Fix, ...]:
    """The fixes of the likely causes, the likeliest first; ``shares`` are probabilities by cause, falling.

    Of one cause those come first that fit this device and these signatures. Where several causes are likely, the next
    fix is the one that most likely helps where those before it do not.
    """
    unhelped = {cause: share for cause, share in shares.items() if share >= min(_LIKELY, max(shares.values()))}
    chances = {cause: _chances(_order(cause, scene)) for cause in unhelped}
    left = dict.fromkeys(label for chance in chances.values() for label in chance)
    chosen: list[str] = []
    while left and len(chosen) < _MOST:
        worth = {label: sum(unhelped[cause] * chances[cause].get(label, 0.0) for cause in unhelped) for label in left}
        chosen.append(max(worth, key=worth.__getitem__))
        del left[chosen[-1]]
        unhelped = {cause: share * (1 - chances[cause].get(chosen[-1], 0.0)) for cause, share in unhelped.items()}
    return tuple(_worded(label, scene) for label in chosen)


def _chances(order: Sequence[str]) -> dict[str, float]:
    """How likely each fix of a cause helps, by its place."""
    return {label: _CHANCE[min(place, len(_CHANCE) - 1)] for place, label in enumerate(order)}


#: Of torch's own builds and of what is built for each of them.
_INDEX = "https://download.pytorch.org/whl"
#: Where facts change the order: (cause, when, labels that come first).
_FIRST: tuple[tuple[str, str, Sequence[str]], ...] = (
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
    ("build-lacks-old-arch", "machine-capability-refused", ("downgrade-library", "change-hardware")),
    ("build-lacks-old-arch", "machine-generation-refused", ("install-matching-build", "downgrade-library")),
    ("build-lacks-new-arch", "machine-capability-refused", ("upgrade-library", "install-matching-build")),
    ("cuda-toolkit-mismatch", "cublas-execution-failed", ("set-library-path", "install-matching-build")),
    ("cuda-toolkit-mismatch", "cublas-invalid-value", ("set-library-path", "install-matching-build")),
    ("driver-too-old", "ptx-version", ("upgrade-driver", "downgrade-library")),
    ("kernel-min-compute-capability", "ptx-feature", ("use-fallback-kernel", "use-other-backend")),
    ("kernel-min-compute-capability", "shared-memory-limit", ("use-fallback-kernel", "use-other-backend")),
    ("kernel-min-compute-capability", "half-operation-missing", ("use-fp32", "use-fallback-kernel")),
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
    ("graphics-api-feature-missing", "vulkan-limit", ("reduce-memory", "set-environment-override")),
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
)


#: Where the device or the words around change it; these outrank the rows above.
_BY_FACT: tuple[tuple[str, Callable[[Scene], bool], Sequence[str]], ...] = (
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
    ("mps-dtype-unsupported", lambda s: s.has("mps-not-implemented"), ("use-cpu", "set-environment-override")),
    ("mps-dtype-unsupported", lambda s: s.has("mps-other"), ("use-fp32", "upgrade-library")),
)


def _order(cause: str, scene: Scene) -> list[str]:
    by_signature = (order for named, signature, order in _FIRST if named == cause and scene.has(signature))
    by_fact = (order for named, when, order in _BY_FACT if named == cause and when(scene))
    first = next(by_fact, None) or next(by_signature, ())
    order = list(dict.fromkeys([*first, *causes()[cause].fixes]))
    return _by_own_code(order, scene.facts.gpu.arch) if cause == "rocm-arch-unsupported" and scene.facts.gpu else order


def _by_own_code(order: list[str], arch: str) -> list[str]:
    """Where released builds hold code for an AMD GPU itself such a build comes first, and the name of a related GPU
    behind it; those before RDNA have no related one."""
    from rung.hardware.catalog import architectures
    from rung.hardware.catalog.builds import builds

    row = architectures().get(arch)
    if row is None or row.override or not any(build.image(row) for build in builds()):
        return order
    others = [label for label in order if label not in ("downgrade-library", "set-environment-override")]
    related = [] if arch.startswith(("gfx8", "gfx9")) else ["set-environment-override"]
    return ["downgrade-library", *related, *others]


def _worded(label: str, scene: Scene) -> Fix:
    facts = scene.facts
    around = "\n".join([scene.text, facts.stated, facts.gpu.arch if facts.gpu else ""])
    rows = [row for row in wordings() if row.label == label]
    row = next((row for row in rows if not row.when or re.search(row.when, around)), rows[-1])
    return Fix(label, row.text, _filled(row.command, scene) if row.command else None)


#: What asks the machine for its GPU where nobody named it.
_ASK_CUDA = "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)"
_ASK_ROCM = "$(rocminfo | grep -o -m 1 'gfx[0-9a-f]*')"


def _filled(command: str, scene: Scene) -> str | None:
    """A command with the facts in it; None where one that it needs is not known."""
    facts = scene.facts
    arch = facts.gpu.arch if facts.gpu else ""
    cuda = facts.cuda or (12, 6)
    filled: dict[str, Callable[[], str | None]] = {
        "torch_install": lambda: _torch(scene),
        "torch_for_driver": lambda: _torch(scene) if facts.driver else "rung setup",
        "torch_index": lambda: f"{_INDEX}/{facts.build[1] if facts.build else 'cu126'}",
        "cc": lambda: capability_text(facts.capability) if facts.capability else _ASK_CUDA,
        "gfx": lambda: arch if arch.startswith("gfx") else _ASK_ROCM,
        "cuda_digits": lambda: f"{cuda[0]}{cuda[1]}",
        "related_gfx": lambda: _related_gfx(arch),
    }
    for name, value in filled.items():
        if "{" + name + "}" in command:
            known = value()
            if known is None:
                return None
            command = command.replace("{" + name + "}", known)
    return command


def _torch(scene: Scene) -> str:
    """What ``rung setup`` gives for the card of this scene; for one that nobody named, the question to it."""
    from rung.diagnosis.companions import Host  # reading the catalogue costs more than the rest of an explanation
    from rung.diagnosis.setup import choose
    from rung.hardware.catalog import architectures

    facts = scene.facts
    named = (facts.gpu.arch if facts.gpu else "", f"sm_{facts.capability}" if facts.capability else "")
    key = next((name for name in named if name in architectures()), None)
    if key is None:
        return "rung setup"
    driver = facts.driver if architectures()[key].kind == "cuda" else ""
    system = "macos" if facts.apple else "windows" if facts.windows else "linux"
    machine = "aarch64" if facts.apple or architectures()[key].platform else "x86_64"
    found = choose([Host(facts.gpu.name if facts.gpu else key, key, driver, system, machine)])
    return (found.torch.command if found else None) or "rung setup"


def _related_gfx(arch: str) -> str | None:
    """The version to name for an AMD GPU outside of ROCm's list, None where the catalogue has none."""
    from rung.hardware.catalog import architectures
    from rung.hardware.catalog.capabilities import gfx_version

    row = architectures().get(arch)
    return gfx_version(row.override) if row is not None and row.override else None
