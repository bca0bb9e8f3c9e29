"""How the states of a text's tokens become one embedding, as the files of a model say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.value import Value
from rung.models.files.jsonfile import SMALL, read_bounded, read_object
from rung.models.settings import Settings

_MODULES = "modules.json"
#: Flags of sentence-transformers, and the values of ``pooling_mode``, which took their place.
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
}
#: The pooling of GGUF files by its number in ``pooling_type``; 0 is none.
_GGUF_POOLINGS = {0: "", 1: "mean", 2: "cls", 3: "last"}


@dataclass(frozen=True)
class Pooling(Value):
    """How a text becomes an embedding: ``kind`` is mean, cls, last, or empty where the files do not say.

    ``normalize`` makes its length 1; ``most_tokens`` is where a text is cut, 0 for nowhere.
    """

    kind: str = ""
    normalize: bool = False
    most_tokens: int = 0


def pooling_of_folder(folder: Path) -> Pooling:
    """Return the pooling that the files of a folder state.

    Raises ``UnknownArchitecture`` for modules that rung does not compute, ``BadFile`` for what contradicts itself.
    """
    config = folder / "sentence_bert_config.json"
    most = Settings(read_object(config, SMALL) if config.is_file() else {}, config.name)
    found = Pooling(most_tokens=most.integer("max_seq_length", 0, least=0))
    if not (folder / _MODULES).is_file():
        return found
    for module in _modules(folder):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Pooling":
            subfolder = Path(str(module.get("path")))
            if subfolder.is_absolute() or ".." in subfolder.parts:
                raise BadFile(f"{folder.name}/{_MODULES} names a folder outside of the model: {str(subfolder)[:100]}")
            found = replace(found, kind=_kind(folder / subfolder / "config.json", folder.name))
        elif kind == "Normalize":
            found = replace(found, normalize=True)
        elif kind != "Transformer":
            raise UnknownArchitecture(
                f"{folder.name} ends with a module of the kind {kind[:40]!r}, which rung does not compute",
                ["known: Transformer, Pooling, Normalize"],
                code="architecture-unsupported",
            )
    return found


def pooling_of_gguf(meta: Settings) -> Pooling:
    """Return the pooling that a GGUF file states; llama.cpp normalizes its embeddings. Raises
    ``UnknownArchitecture``."""
    number = meta.integer("pooling_type", 0, least=0)
    if number not in _GGUF_POOLINGS:
        raise UnknownArchitecture(
            f"{meta.where} pools in a way that gives no embedding (pooling_type {number})",
            ["rung reads mean, cls and last"],
            code="architecture-unsupported",
        )
    return Pooling(_GGUF_POOLINGS[number], normalize=True)


def _modules(folder: Path) -> list[Mapping[str, Any]]:
    where = f"{folder.name}/{_MODULES}"
    try:
        found = json.loads(read_bounded(folder / _MODULES, SMALL))
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where} is no JSON", [str(error)[:200]], code="json-invalid") from error
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise BadFile(f"{where} holds no list of modules")
    return found


def _kind(path: Path, where: str) -> str:
    if not path.is_file():
        raise BadFile(f"{where} has a module for pooling, and {path.parent.name}/{path.name} is not there")
    config = read_object(path, SMALL)
    mode = config.get("pooling_mode")
    flags = [key for key, value in config.items() if value is True and str(key).startswith("pooling_mode")]
    modes = [mode] if isinstance(mode, str) else flags
    pooling = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if pooling is None:
        raise UnknownArchitecture(
            f"{where} pools by {' and '.join(modes)[:100] or 'nothing'}, which rung does not compute",
            ["known: mean, cls, lasttoken"],
            code="architecture-unsupported",
        )
    return pooling
