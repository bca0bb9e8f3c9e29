"""A predicted speed beside what the memory allows and what llama.cpp reaches on the same card; pure."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from rung.core.types import Device
from rung.hardware.catalog import llama_cpp
from rung.models.networks.values import Outline
from rung.models.store.starters import find as find_starter
from rung.planning.answers.values import LlamaCpp
from rung.planning.gguf_mixtures import LLAMA_CPP
from rung.planning.network_spec import Subject
from rung.planning.placement import Arrangement
from rung.planning.speed import bound

#: The file type of llama.cpp for a format that is none of its own, or that its files mix with others.
_FILE_TYPES = {
    **dict.fromkeys(("int8", "llm_int8"), "Q8_0"),
    **{name: name.upper() for name in ("f16", "bf16", "f32", "q8_0", "q6_k", *LLAMA_CPP)},
    **dict.fromkeys(("nf4", "fp4", "q4_k"), "Q4_K_M"),
    "q5_k": "Q5_K_M",
    "q3_k": "Q3_K_M",
}


def memory_bound(arrangement: Arrangement, subject: Subject, depth: int, batch: int) -> float | None:
    """Return the tokens a second that the memory of the devices allows at most, None where that is not known."""
    layers = sum(number for _, _, number in arrangement.parts)
    parts = [(plan.token_bytes[0], device, number / layers) for plan, device, number in arrangement.parts]
    return bound(parts, subject, arrangement.cache_dtype, depth, batch)


def llama_cpp_speed(
    arrangement: Arrangement, subject: Subject, format: str, context: int, outline: Outline
) -> LlamaCpp | None:
    """Return llama.cpp's speed with weights in that format; None where it has no such files, or for several devices."""
    file_type = _FILE_TYPES.get(format.partition(":")[0], "")
    stored = format == "stored" and (subject.kind == "gguf" or ":" in subject.path)
    if len(arrangement.parts) != 1 or not (file_type or stored):
        return None
    weight_plan, device, _ = arrangement.parts[0]
    command = llama_server(subject, file_type, outline)
    if command:
        command += ("" if device.kind == "cpu" else " -ngl 99") + f" -c {context}"
    size, number = weight_plan.token_bytes
    found = _published(device, 8 * size / number if number else 0.0, size, subject)
    if found is None:
        return LlamaCpp(command)
    rate, row = found
    return LlamaCpp(command, float(f"{rate:.2g}"), f"{row.model} {row.tokens_per_second:g} tokens/s", row.source)


def llama_server(subject: Subject, file_type: str, outline: Outline) -> str:
    """Return the command that serves the model: from a file, from a hub repository of GGUF files, or from a file that
    ``rung quantize`` writes first; an empty text where no weights are known. ``file_type`` is empty for a file as it
    is stored."""
    if starter := find_starter(subject.path):  # which is not here: its path is its name
        return f"llama-server -hf {starter.hub.repository}:{starter.format.upper()}"
    if subject.kind == "gguf":
        return shlex.join(["llama-server", "-m", subject.path])
    repository, colon, _ = subject.path.partition(":")
    if subject.kind == "hub" and colon:
        return shlex.join(["llama-server", "-hf", f"{repository}:{file_type}" if file_type else subject.path])
    if outline.gguf:
        return shlex.join(["llama-server", "-hf", f"{outline.gguf}:{file_type}"])
    has_weights = subject.kind in ("folder", "hub") or (subject.kind == "config" and bool(outline.title))
    if not has_weights or subject.decoder is None:
        return ""
    file = f"{PurePath(outline.name).name}-{file_type.lower()}.gguf"
    written = shlex.join(["rung", "quantize", subject.path, file, "--format", file_type.lower()])
    return f"{written} && {shlex.join(['llama-server', '-m', file])}"


def _published(device: Device, bits: float, size: float, subject: Subject) -> tuple[float, llama_cpp.Decoding] | None:
    """Dense models alone: what a mixture of experts reaches does not follow from figures of dense ones."""
    if device.kind == "cpu" or subject.shape.experts or not size:
        return None
    return llama_cpp.expected(device.name, bits, size)
