"""From a path to a card: of what rung builds, a decoder or an encoder, else of the network that transformers builds."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from rung.core.errors import SoftwareMissing, UnknownArchitecture
from rung.models import catalog, open_card
from rung.models.card import ModelCard
from rung.models.cards.encoder import EncoderCard, open_encoder
from rung.models.cards.folder import NetworkCard
from rung.models.lookup import check_name, find_known, find_missing_starter, find_path
from rung.models.store import starters


def check_here(name: str) -> None:
    """Raise what is wrong with ``name``: a broken file, or a name that is neither a path nor known; asks no hub."""
    if (path := check_name(name)) is not None:
        open_any(path)


def open_named(
    name: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    on_note: Callable[[str], None] = lambda note: None,
) -> tuple[ModelCard | EncoderCard | NetworkCard, str | None]:
    """Return the card of a model by name, for a plan, and the format that stood after a name of the catalog.

    Raises what ``find_path`` and ``open_any`` raise.
    """
    if (starter := find_missing_starter(name)) is not None:
        on_note(f"{starter.title} is not here yet: rung pull {starter.name}")
        return starters.card_of(starter), None
    if (known := find_known(name)) is not None:
        for note in known.notes:
            on_note(note)
        return catalog.card_of(catalog.outline_of(known)), known.format or None
    return open_any(find_path(name, offline=offline, revision=revision, on_note=on_note)), None


def open_any(path: Path) -> ModelCard | EncoderCard | NetworkCard:
    """Return the card of a model; of a folder that rung does not build itself, that of its network.

    Raises what ``open_card`` raises; ``UnknownArchitecture`` where transformers does not know it either, and
    ``SoftwareMissing`` without it.
    """
    try:
        return open_card(path)
    except UnknownArchitecture as error:
        if (encoder := open_encoder(path)) is not None:
            return encoder
        if not (path / "config.json").is_file():
            raise
        _need_transformers(error.cause)
        from rung.hub.networks.language import card_of_network

        return card_of_network(path, error.cause)


def _need_transformers(why: str) -> None:
    """Raise ``SoftwareMissing`` where a network that rung does not build itself, for the reason ``why``, cannot run."""
    missing = [name for name in ("torch", "numba", "transformers", "accelerate") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise SoftwareMissing(
            f"{', '.join(missing)} {verb} not installed; a model of other kinds than rung builds needs it.",
            [why],
            ["pip install 'rung[run]' transformers accelerate"],
        )
