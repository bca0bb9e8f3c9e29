"""Hold what models are on this machine, and what one is, as values that print as tables and as JSON."""

from __future__ import annotations

import contextlib
import math
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.errors import RungError
from rung.core.files import files_below
from rung.core.value import FrozenDict, Value
from rung.models.card import ModelCard
from rung.models.store import elsewhere, folder
from rung.models.store.starters import Starter, starters

#: Bytes at the beginning of a file that have the metadata of a budget, and the key of a KL before its float32.
_HEAD = 1 << 12
_MEASURED = struct.pack("<Q", 29) + b"rung.quantization.measured_kl" + struct.pack("<I", 6)


@dataclass(frozen=True)
class Listed(Value):
    """A model on this machine. ``program`` holds it: rung, ollama, LM Studio or the hub cache. ``last_used``: seconds
    since 1970. ``whole`` is false where its file was removed by hand; ``divergence`` is what ``rung quantize``
    measured."""

    name: str
    size: int
    format: str
    last_used: float
    program: str
    path: str
    whole: bool = True
    divergence: str = ""


@dataclass(frozen=True)
class Partial(Value):
    """A starter whose download was stopped: ``done`` bytes of ``size`` are here."""

    name: str
    done: int
    size: int


@dataclass(frozen=True)
class Inventory(Value):
    """All models on this machine, the starters that are not here, those that are half fetched, and sentences about
    what cannot be read."""

    models: tuple[Listed, ...]
    starters: tuple[str, ...]
    notes: tuple[str, ...] = ()
    partial: tuple[Partial, ...] = ()


def inventory() -> Inventory:
    """Return the models of the store and of other programs; of files only heads are read, for a measured KL."""
    stored, notes = folder.manifests()
    own = [
        Listed(one.name, one.size, one.format, one.last_used, "rung", str(one.path), one.is_whole, _measured(one.path))
        for one in stored
    ]
    others = [
        Listed(
            one.name, one.size, one.format, one.last_used, one.program, one.path, divergence=_measured(Path(one.path))
        )
        for one in elsewhere.models()
    ]
    here = {one.name.lower() for one in own}
    missing = tuple(name for name in starters() if name not in here)
    models = (*sorted(own, key=lambda one: -one.last_used), *others)
    return Inventory(models, missing, tuple(notes), tuple(filter(None, map(_partial, missing))))


def _measured(path: Path) -> str:
    """Return ``KL 0.012`` of a GGUF file whose first metadata tell it; else nothing."""
    if path.suffix != ".gguf" and not path.name.startswith("sha256"):
        return ""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    at = head.find(_MEASURED)
    if not head.startswith(b"GGUF") or at < 0 or len(head) < at + len(_MEASURED) + 4:
        return ""
    (value,) = struct.unpack_from("<f", head, at + len(_MEASURED))
    return f"KL {value:.2g}" if 0 <= value < math.inf else ""


def _partial(name: str) -> Partial | None:
    """Return how far the download of a starter is, None where none of it is here."""
    starter = starters()[name]
    parts = folder.root() / "parts" / f"sha256-{starter.sha256}"
    done = 0
    for file in files_below(parts):
        if file.name in ("wheel.part", "whole.whl"):
            with contextlib.suppress(OSError):  # renamed since it was listed
                done += file.stat().st_size
    done = min(done, starter.download_bytes)
    return Partial(name, done, starter.download_bytes) if done else None


@dataclass(frozen=True)
class About(Value):
    """Hold what one model is. ``formats`` counts weights by format; ``here`` is false for a starter that is not
    pulled."""

    name: str
    title: str
    here: bool
    path: str
    program: str
    size: int
    architecture: str
    parameters: int
    layers: int
    context: int
    formats: FrozenDict[int]
    license: str
    chat_template: bool
    divergence: str = ""
    source: str = ""
    terms: tuple[str, ...] = ()


def about_card(name: str, path: Path, card: ModelCard) -> About:
    """Describe the model at ``path``."""
    stored, other = folder.find(name), elsewhere.find(name)
    program = "rung" if stored is not None else other.program if other is not None else ""
    files = card.files or (str(path),)
    license_name = card.metadata.get("general.license")
    return About(
        name=name,
        title=stored.title if stored is not None else str(card.metadata.get("general.name") or card.name),
        here=True,
        path=str(path),
        program=program,
        size=sum(Path(file).stat().st_size for file in files),
        license=stored.license if stored is not None and stored.license else str(license_name or ""),
        chat_template=card.chat_template is not None,
        divergence=card.divergence,
        source=stored.source if stored is not None else "",
        **_of_card(card),
    )


def about_starter(starter: Starter, card: ModelCard) -> About:
    """Describe a starter that is not here."""
    terms = starter.terms
    return About(
        name=starter.name,
        title=starter.title,
        here=False,
        path="",
        program="",
        size=starter.size,
        license=starter.license,
        chat_template=starter.chats,
        source=", ".join(f"{package.name} {package.version}" for package in starter.packages),
        terms=(terms.notice, *terms.links) if terms else (),
        **_of_card(card),
    )


def _of_card(card: ModelCard) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for tensor in card.tensors:
        weights = 1
        for length in tensor.shape:
            weights *= length
        counts[tensor.format] += weights
    return {
        "architecture": card.decoder.model_type,
        "parameters": card.parameters,
        "layers": len(card.decoder.layers),
        "context": card.context,
        "formats": FrozenDict(dict(counts.most_common())),
    }


def open_about(name: str, path: Path) -> About:
    """Describe the model at ``path`` from its header. Raises as ``open_card``."""
    from rung.models.open import open_card

    try:
        return about_card(name, path, open_card(path))
    except OSError as error:
        raise RungError(f"{path} cannot be read: {error.strerror or error}.", code="file-unreadable") from error
