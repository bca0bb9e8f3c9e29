"""Makes the job of ``rung convert``: the same weights, as far as the other kind of file holds them, in another file."""

from __future__ import annotations

from rung import formats
from rung.conversion.job import Job
from rung.conversion.quantize import plain_dtype, to_folder, to_gguf
from rung.core.errors import UsageError
from rung.core.text import quoted
from rung.core.types import Format
from rung.models.card import ModelCard
from rung.models.lookup import name_of


def converting(card: ModelCard, gguf: bool, dtype: str | None) -> Job:
    """A folder as a GGUF file, or a GGUF file as a folder, in floats of ``dtype`` (default: the source's own).

    What a GGUF file holds quantized is decoded, by default to bf16. Raises ``UsageError`` for a source that is of
    that kind already or a format that is no float, ``UnknownArchitecture``, ``BadFile``.
    """
    kind = "gguf" if gguf else "folder"
    if card.kind == kind and dtype is None:
        raise UsageError(
            f"{card.name} is a {'GGUF file' if gguf else 'folder of safetensors'} already",
            (),
            [
                f"rung quantize {quoted(name_of(card.path))} DST --format FORMAT",
                f"rung convert {quoted(name_of(card.path))} DST --format bf16",
            ],
        )
    chosen = check_float(dtype or plain_dtype(card), card.path)
    norm = formats.get("f32") if gguf else chosen
    by_role = {tensor.role: (chosen if len(tensor.shape) > 1 else norm, "") for tensor in card.tensors}
    if gguf:
        return to_gguf(card, chosen, by_role, ())
    return to_folder(card, "plain", chosen, by_role, ())


def check_float(name: str, source: str) -> Format:
    """The float of that name. Raises ``UnknownFormat``, ``UsageError`` for another format."""
    chosen = formats.get(name)
    if chosen.family != "floats":
        raise UsageError(
            f"{chosen.name} is no float",
            ["rung convert writes f32, f16 and bf16"],
            [f"rung quantize {quoted(source)} DST --format {chosen.name}"],
        )
    return chosen
