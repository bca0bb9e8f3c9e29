"""The rows of ``models.table`` as values."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.models.architectures import MODEL_TYPES

_TABLE = Path(__file__).parent / "models.table"
#: Short words of the table for the keys that most configurations have.
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "heads": "num_attention_heads",
    "kv": "num_key_value_heads",
    "head": "head_dim",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
    "window": "sliding_window",
    "tied": "tie_word_embeddings",
    "dtype": "torch_dtype",
    "quantized": "quantization_config",
}
#: How checkpoints are quantized that are published in no other format.
_QUANTIZED: Mapping[str, Mapping[str, Any]] = {
    "mxfp4": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
}


@dataclass(frozen=True)
class PublishedFile:
    """A file whose size somebody published: ``bytes`` in a format or mixture."""

    format: str
    bytes: int
    source: str


@dataclass(frozen=True)
class KnownModel:
    """One row of the table.

    ``downloads`` are those of a month from the hub, 0 where nobody recorded them; ``usual`` says that a bare name of
    the family means this model; ``purpose`` is what it is made for, empty for general use. ``weights`` is the
    repository of the hub that holds it in safetensors, ``gguf`` one that holds GGUF files, empty where none is
    recorded. ``parameters`` is the published number of weights.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    family: str
    usual: bool
    purpose: str
    released: str
    downloads: int
    license: str
    weights: str
    gguf: str
    parameters: int
    parameters_source: str
    files: tuple[PublishedFile, ...]
    shape_source: str
    shape: str

    @property
    def model_type(self) -> str:
        """The ``model_type`` of its configuration."""
        return self.shape.split(" ", 1)[0]

    @property
    def runs_gguf(self) -> bool:
        """Return whether ``rung run`` builds it from a GGUF file; others it runs from their own folders, with
        transformers."""
        return self.model_type in MODEL_TYPES

    def config(self) -> dict[str, Any]:
        """Return its configuration as transformers writes it, with what decides shapes and sizes."""
        kind, *pairs = self.shape.split(" ")
        found: dict[str, Any] = {"model_type": kind, "torch_dtype": "bfloat16"}
        for pair in pairs:
            key, _, value = pair.partition("=")
            found[_KEYS.get(key, key)] = _QUANTIZED[value] if key == "quantized" else _value(value)
        return found


def _value(text: str) -> Any:
    """A number, true, false, null or a list as in JSON; ``40*attention`` is a list of forty, ``7*["a","b"]`` of
    fourteen."""
    count, star, each = text.partition("*")
    if star and count.isdigit():
        return (json.loads(each) if each.startswith("[") else [each]) * int(count)
    try:
        return json.loads(text)
    except ValueError:
        return text


@functools.cache
def known_models() -> tuple[KnownModel, ...]:
    """Return all models in the order of the table."""
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    return tuple(_row(line) for line in lines if line and not line.startswith("#"))


@functools.cache
def sources() -> Mapping[str, str]:
    """Return the full names of the short sources of the table."""
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    named = [line.removeprefix("# source ").partition(" = ") for line in lines if line.startswith("# source ")]
    return {name: text for name, _, text in named}


def _row(line: str) -> KnownModel:
    (
        name,
        title,
        also,
        family,
        purpose,
        released,
        downloads,
        license,
        weights,
        gguf,
        parameters,
        files,
        source,
        shape,
    ) = (cell.strip() for cell in line.split("|"))
    count, _, counted = parameters.partition(" ")
    return KnownModel(
        name=name,
        title=title,
        aliases=tuple(also.split(", ")) if also else (),
        family=family.removesuffix(" *"),
        usual=family.endswith(" *"),
        purpose=purpose,
        released=released,
        downloads=int(downloads or 0),
        license=license,
        weights=weights,
        gguf=gguf,
        parameters=int(count),
        parameters_source=counted,
        files=tuple(_file(text) for text in files.split("; ") if text),
        shape_source=source,
        shape=shape,
    )


def _file(text: str) -> PublishedFile:
    format, count, source = text.split(" ", 2)
    return PublishedFile(format, int(count), source)
