"""Hold what a model of any kind is made of, from headers alone: every tensor's role, shape and stored format, without
torch.

>>> open_outline("mixtral/config.json").parameters     # doctest: +SKIP
46702792704
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.text import size
from rung.models import architectures
from rung.models.card import ModelCard
from rung.models.cards.encoder import open_encoder
from rung.models.cards.folder import folder_name
from rung.models.files.gguf import is_gguf
from rung.models.files.jsonfile import SMALL, read_object
from rung.models.files.safetensors import INDEX, STEM, read_index, weight_files, weight_map
from rung.models.locate import nowhere
from rung.models.networks import gguf, pipeline
from rung.models.networks.component import Roles, as_stored, describe, known
from rung.models.networks.values import OTHER, Component, Outline, Phase, Shape, plain, shape_of_decoder
from rung.models.open import open_card

__all__ = ["OTHER", "Component", "Outline", "Phase", "Shape", "open_outline", "outline_of_card"]

#: What the names of weight files begin with: of transformers, of diffusers, and of their 16-bit variants.
_STEMS = (STEM, "diffusion_pytorch_model", "model.fp16", "diffusion_pytorch_model.fp16")
#: From a configuration, and what to call it in messages, to a component.
Describe = Callable[[Mapping[str, Any], str], Component]

#: Seconds that the hub may take for all that is asked of it.
SECONDS = 30.0


def open_outline(
    path: str | Path,
    *,
    offline: bool = False,
    revision: str | None = None,
    seconds: float = SECONDS,
    describing: Describe = describe,
) -> Outline:
    """The outline of a GGUF file, a Hugging Face folder, a ``config.json`` alone, a safetensors index beside one, a
    pipeline of diffusers (its folder or ``model_index.json``), or one of these on the hub (``ORG/REPO``,
    ``ORG/REPO:Q4_K_M``, ``ORG/REPO/file.gguf``), of which a few headers are fetched within ``seconds``.

    What exists as a path is that path. A configuration may have another name if it ends in ``.json`` and stands alone.
    ``offline``: of the hub only what was downloaded before. ``describing`` stands for the descriptions that rung has,
    and for the cards of what ``rung run`` builds. Raises ``ModelNotFound``, ``BadFile``, ``UnsafeFile``,
    ``UnknownArchitecture`` or ``HubError``.
    """
    open_path = functools.partial(_open_local, describing=describing)
    if not _exists(path):
        from rung.models.networks.repository import outline_of_repository  # threads and requests, for the hub alone

        found = outline_of_repository(
            str(path), open_path, offline=offline, revision=revision, seconds=seconds, stems=_STEMS
        )
        if found is None:
            raise nowhere(str(path)[:200], Path(str(path)[:200].replace("\0", "")))
        return found
    return open_path(Path(path).expanduser())


def _exists(path: str | Path) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, a NUL, the home of a user who is not there
        return False


def _open_local(path: Path, describing: Describe) -> Outline:
    if path.is_dir() and pipeline.is_pipeline(path):
        return _pipeline(path, describing)
    if path.is_dir() and (path / "config.json").is_file():
        return _folder(path, describing)
    if path.is_file() and path.suffix == ".json" and not is_gguf(path):
        return _json(path, describing)
    try:
        return outline_of_card(open_card(path))
    except UnknownArchitecture:  # one that writes no text, or that rung does not run, but may know
        if (encoder := open_encoder(path)) is not None:
            return plain(encoder.name, encoder.kind, encoder.path, encoder.component)
        found = gguf.experts(path) if path.is_file() else None
        if found is None:
            raise
        return found


def _pipeline(folder: Path, describing: Describe) -> Outline:
    return pipeline.pipeline(folder, folder_name(folder), functools.partial(_part, describing=describing))


def _json(path: Path, describing: Describe) -> Outline:
    """A configuration or an index: in a folder it stands for the folder, under another name for itself."""
    if path.name == "config.json" or path.name.endswith(INDEX):
        if not (path.parent / "config.json").is_file():
            raise BadFile(
                f"{path.name} has no config.json beside it, so nothing says what its tensors are",
                ways_out=["put the config.json of the model beside it"],
            )
        return _folder(path.parent, describing)
    if path.name == pipeline.INDEX:
        return _pipeline(path.parent, describing)
    component = describing(read_object(path, SMALL), path.name)
    return plain(path.stem, "config", str(path), component)


def _folder(folder: Path, describing: Describe) -> Outline:
    """The outline of a plain model, with its card where ``rung run`` builds it."""
    name = folder_name(folder)
    kind = read_object(folder / "config.json", SMALL).get("model_type")
    runs = kind in (*architectures.MODEL_TYPES, "gemma3") and stem_of(folder) == STEM and not _is_index(folder, STEM)
    refused: UnknownArchitecture | None = None
    if runs and describing is describe:
        try:
            return outline_of_card(open_card(folder))
        except UnknownArchitecture as error:  # its sizes may be known all the same
            refused = error
    try:
        found = _part(folder, name, describing)
    except UnknownArchitecture as error:
        raise refused or error from None
    stem = stem_of(folder)
    origin = "config" if not stem else "index" if _is_index(folder, stem) else "folder"
    return plain(name, origin, str(folder), found)


def _part(folder: Path, where: str, describing: Describe) -> Component:
    """The component in a folder: from its weights, else from an index of them, else from its configuration alone."""
    described = describing(read_object(folder / "config.json", SMALL), f"{where}/config.json")
    stem = stem_of(folder)
    if not stem or described.model_type not in known():  # a module's own names need not be those of its files
        return described
    if any(tensor.source for tensor in described.tensors):  # in parts, whose shapes no header says
        return described
    if _is_index(folder, stem):
        return _indexed(described, folder / f"{stem}{INDEX}")
    return as_stored(described, list(weight_files(folder, stem).values()), where)


def stem_of(folder: Path) -> str:
    """Return the common beginning of the names of the weight files; empty where there are none."""
    return next((stem for stem in _STEMS if _has(folder, stem)), "")


def _is_index(folder: Path, stem: str) -> bool:
    """Return whether only the index is there, and none of its shards."""
    return (folder / f"{stem}{INDEX}").is_file() and not any(folder.glob(f"{stem}*.safetensors"))


def _has(folder: Path, stem: str) -> bool:
    return (folder / f"{stem}.safetensors").is_file() or (folder / f"{stem}{INDEX}").is_file()


def _indexed(component: Component, index: Path) -> Component:
    """The described component, held against the names and the bytes in all of an index whose shards are not here.

    Raises ``BadFile`` when they contradict each other.
    """
    roles = Roles(component)
    for name in weight_map(index):
        roles.take(name)
    if roles.missing:
        first = ", ".join(list(roles.missing)[:8])
        raise BadFile(f"{index.name} does not belong to its config.json", [f"missing: {first}"])
    metadata = read_index(index).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, int) and total < component.weight_bytes:
        raise BadFile(
            f"{index.name} does not belong to its config.json",
            [f"its tensors have {size(total)}, those of the configuration {size(component.weight_bytes)}"],
        )
    return component


def outline_of_card(card: ModelCard) -> Outline:
    """Return the outline of a model that ``rung run`` builds."""
    component = Component(
        "model", card.decoder.model_type, "decoder", card.tensors, shape_of_decoder(card.decoder), card.decoder
    )
    return plain(card.name, card.kind, card.path, component, card)
