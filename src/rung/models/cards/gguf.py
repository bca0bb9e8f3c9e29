"""The card of a GGUF model: one file, or all parts of a split one."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.text import quoted
from rung.core.value import FrozenDict
from rung.models import architectures
from rung.models.architectures.family import FREQUENCY_TENSORS, Architecture, Factors
from rung.models.card import ModelCard
from rung.models.files.gguf import Header, read_parts
from rung.models.files.tensors import FileTensor
from rung.models.roles import Found, tensors_of
from rung.models.settings import Settings
from rung.models.vocabulary import Vocabulary

_OUTSIDE = {"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"}
_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,3})\.(.+)")
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repeat_penalty",
}
_MOST_FACTORS = 4096


def gguf_card(path: Path) -> ModelCard:
    """The card of the GGUF model that ``path`` is, or is a part of.

    Raises ``BadFile``, ``ModelNotFound`` (parts missing) or ``UnknownArchitecture``.
    """
    headers = read_parts(path)
    first = headers[0]
    name, metadata = first.path.name, first.metadata
    model = _architecture(name, metadata)
    found = [
        Found(role_of(stored.name, model), stored, number)
        for number, header in enumerate(headers)
        for stored in header.tensors
        if FREQUENCY_TENSORS.get(stored.name) not in model.gguf_factors
    ]
    roles = {item.role: item for item in found}
    if "embed" not in roles:
        raise BadFile(
            f"{name} lacks the tensor token_embd.weight",
            ["it holds no language model, or a part of one"],
            code="model-incomplete",
        )
    assert model.from_gguf is not None, "an architecture with a GGUF name reads GGUF"
    decoder = replace(
        model.from_gguf(Settings(metadata, name, f"{model.gguf}."), _factors(headers, model)),
        vocabulary=roles["embed"].stored.shape[0],
        tied_head="head" not in roles,
        attention_bias=any(role.endswith(("q_bias", "qkv_bias")) for role in roles),
    )
    vocabulary = Vocabulary(Settings(metadata, name, "tokenizer.ggml."), decoder.vocabulary)
    return ModelCard(
        name=name,
        kind="gguf",
        path=str(first.path),
        files=tuple(str(header.path) for header in headers),
        decoder=decoder,
        tensors=tensors_of(found, decoder, (), name),
        tokenizer="gguf",
        chat_template=_template(metadata, name),
        end_tokens=vocabulary.ends,
        bos_token=vocabulary.special("bos"),
        add_bos=vocabulary.adds_bos,
        defaults=_sampling(Settings(metadata, name, "general.sampling.")),
        metadata=FrozenDict(metadata),
    )


def _architecture(file: str, metadata: Mapping[str, Any]) -> Architecture:
    name = Settings(metadata, file).text("general.architecture")
    kind = metadata.get("general.type", "model")
    if kind == "adapter":
        raise BadFile(
            f"{file} is a LoRA adapter, which is a change to a model and not one",
            ways_out=[f"rung run MODEL --adapter {quoted(file)}"],
        )
    if name == "clip" or kind == "mmproj":
        raise BadFile(
            f"{file} is the part of a model that sees pictures (mmproj)", ["name the other file:  rung run OTHER.gguf"]
        )
    if name not in architectures.GGUF:
        raise UnknownArchitecture(
            f"{file} holds a model of the architecture {name[:60]!r}, which rung does not build",
            [f"known in GGUF files: {', '.join(sorted(architectures.GGUF))}"],
        )
    return architectures.GGUF[name]


def role_of(name: str, model: Architecture) -> str:
    """The role of a tensor of a GGUF file of that architecture; "" for none."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    block = _BLOCK.fullmatch(name)
    role = model.gguf_names.get(block[2], "") if block else ""
    return f"layers.{int(block[1])}.{role}" if block and role else ""


def _factors(headers: tuple[Header, ...], model: Architecture) -> Factors:
    found = {}
    for header in headers:
        for stored in header.tensors:
            kind = FREQUENCY_TENSORS.get(stored.name)
            if kind in model.gguf_factors:
                found[kind] = _read_factors(header.path, stored)
    return Factors(**found)


def _read_factors(path: Path, stored: FileTensor) -> tuple[float, ...]:
    if stored.format != "f32" or len(stored.shape) != 1 or stored.shape[0] > _MOST_FACTORS:
        raise BadFile(f"{path.name}: {stored.name} is {stored.format} of the shape {list(stored.shape)}, not f32 [n]")
    with open(path, "rb") as file:
        file.seek(stored.offset)
        values = array("f", file.read(stored.bytes))
    if len(values) != stored.shape[0] or not all(0 < value < math.inf for value in values):
        raise BadFile(f"{path.name}: {stored.name} holds what is no divisor of frequencies")
    return tuple(values)


def _template(metadata: Mapping[str, Any], file: str) -> str | None:
    settings = Settings(metadata, file, "tokenizer.")
    return settings.text("chat_template") if "chat_template" in settings else None


def _sampling(settings: Settings) -> FrozenDict[Any]:
    found: dict[str, Any] = {}
    for key, name in _SAMPLING.items():
        value = settings.raw(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
            found[name] = value
    return FrozenDict(found)
