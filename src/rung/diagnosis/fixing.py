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


def fixes_for(cause: str, scene: Scene) -> tuple[Fix, ...]:
    """The fixes of a cause, those first that fit this device and these signatures."""
    return tuple(_worded(label, scene) for label in _order(cause, scene))


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
    ("cuda-toolkit-mismatch", "ptx-version", ("install-cuda-libraries", "set-environment-override")),
    ("int8-matmul-unsupported-gpu", "merge-call", ("upgrade-library", "dequantize-first")),
    ("compiler-arch-unsupported", "inductor-old", ("use-fallback-kernel", "use-other-backend")),
    ("compiler-arch-unsupported", "ptxas-arch", ("set-environment-override", "upgrade-library")),
    ("software-defect", "ggml-assert", ("upgrade-library", "use-fallback-kernel")),
    ("software-defect", "known-regression", ("downgrade-library", "upgrade-library")),
    ("mps-dtype-unsupported", "mps-convert-bf16", ("use-fp16", "use-fp32")),
    ("kernel-shape-constraint", "shape-not-aligned", ("adjust-shape", "requantize-or-reconvert")),
    ("quantized-model-operation", "train-quantised", ("fix-user-code", "dequantize-first")),
    ("fp16-overflow", "nan-probabilities", ("use-bf16", "use-fp32")),
)


#: Where the device or the words around change it; these outrank the rows above.
_BY_FACT: tuple[tuple[str, Callable[[Scene], bool], Sequence[str]], ...] = (
    ("slow-dtype-path", lambda s: s.has("fast-kernel-not-built"), ("build-from-source", "install-matching-build")),
    (
        "slow-dtype-path",
        lambda s: s.below(70) or s.has("compute-type-refused"),
        ("use-fp32", "use-other-backend"),
    ),
    ("build-lacks-old-arch", lambda s: s.below(37), ("build-from-source", "use-cpu", "change-hardware")),
    (
        "platform-binary-missing",
        lambda s: s.facts.apple and not s.has("wrong-platform"),
        ("use-cpu", "change-hardware"),
    ),
    (
        "platform-binary-missing",
        lambda s: s.says("(?i)triton|torch.compile"),
        ("use-fallback-kernel", "install-matching-build"),
    ),
    ("fp16-overflow", lambda s: s.says(r"(?i)\bvae\b"), ("upcast-part", "use-fp32")),
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
        "kernel-min-compute-capability",
        lambda s: s.says("(?i)flash|sage|xformers|memory_efficient"),
        ("use-fallback-kernel", "change-quantization"),
    ),
    (
        "kernel-min-compute-capability",
        lambda s: s.says(r"(?i)\bawq|gptq|marlin|quanti[sz]"),
        ("change-quantization", "use-other-backend"),
    ),
    ("compiler-arch-unsupported", lambda s: s.below(70), ("use-fallback-kernel", "use-other-backend")),
    (
        "format-or-arch-unknown",
        lambda s: s.says("(?i)no longer supported|magic|engine plan|please rebuild"),
        ("requantize-or-reconvert", "upgrade-library"),
    ),
    ("mps-dtype-unsupported", lambda s: s.has("mps-not-implemented"), ("use-cpu", "set-environment-override")),
    ("mps-dtype-unsupported", lambda s: s.has("mps-other"), ("use-fp32", "upgrade-library")),
)


def _order(cause: str, scene: Scene) -> list[str]:
    by_signature = (order for named, signature, order in _FIRST if named == cause and scene.has(signature))
    by_fact = (order for named, when, order in _BY_FACT if named == cause and when(scene))
    first = next(by_fact, None) or next(by_signature, ())
    return list(dict.fromkeys([*first, *causes()[cause].fixes]))


def _worded(label: str, scene: Scene) -> Fix:
    around = f"{scene.text}\n{scene.facts.libraries}"
    rows = [row for row in wordings() if row.label == label]
    row = next((row for row in rows if not row.when or re.search(row.when, around)), rows[-1])
    return Fix(label, _filled(row.text, scene), _filled(row.command, scene) if row.command else None)


def _filled(text: str, scene: Scene) -> str:
    facts = scene.facts
    cuda = facts.cuda or (12, 6)
    older = facts.capability is not None and facts.capability < 75
    index = "cu126" if older else "cu128" if cuda < (12, 8) or facts.capability is not None else f"cu{cuda[0]}{cuda[1]}"
    filled = {
        "torch_index": f"https://download.pytorch.org/whl/{index}",
        "cc": capability_text(facts.capability) if facts.capability else "7.5",
        "cuda_digits": f"{cuda[0]}{cuda[1]}",
        "gfx": _related_gfx(facts.gpu.arch if facts.gpu else ""),
    }
    for name, value in filled.items():
        text = text.replace("{" + name + "}", value)
    return text


def _related_gfx(arch: str) -> str:
    """The version to name for an AMD GPU outside of ROCm's list: the nearest one of its generation."""
    if arch.startswith("gfx11"):
        return "11.0.0"
    if arch.startswith("gfx9"):
        return "9.0.0"
    return "10.3.0"
