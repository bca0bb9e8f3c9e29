"""From what a person typed to a model card: the embedded model, a file, a folder or a hub name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from rung import models
from rung.core.errors import HubError, SoftwareMissing, UnknownArchitecture
from rung.core.settings import OFFLINE
from rung.hardware import detect
from rung.models import open_card
from rung.models.card import ModelCard
from rung.models.locate import locate, nowhere, repository_of
from rung.models.network_card import NetworkCard

#: The name of the model that the package ships.
DEMO = "demo"


def demo_path() -> Path:
    """Where the embedded model lies."""
    return Path(models.__file__).parent / "demo" / "demo.gguf"


def card_of(
    name: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    budget: int | None = None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> ModelCard:
    """The card of what ``place_of`` finds. Raises ``BadFile``, ``UnknownArchitecture`` and what that raises."""
    return open_card(
        place_of(name, offline=offline, revision=revision, budget=budget, progress=progress, on_note=on_note)
    )


def check_here(name: str) -> None:
    """Raises what is wrong with a path, or with a name that is neither a path nor one of the hub; asks no hub."""
    place = Path(name).expanduser()
    if place.exists():
        open_any(place)
    elif name != DEMO and repository_of(name) is None:
        raise nowhere(name, place)


def open_any(place: Path) -> ModelCard | NetworkCard:
    """The card of a model: of a folder that the lean decoder does not build, the one of its network in transformers.

    Raises what ``open_card`` raises; ``UnknownArchitecture`` where transformers does not know it either, and
    ``SoftwareMissing`` without it.
    """
    try:
        return open_card(place)
    except UnknownArchitecture as error:
        if not (place / "config.json").is_file():
            raise
        _need_transformers(error.cause)
        from rung.hub.language import card_of_network

        return card_of_network(place, error.cause)


def _need_transformers(why: str) -> None:
    """Raises ``SoftwareMissing`` where a network that rung does not build itself, which ``why`` says, cannot run."""
    missing = [name for name in ("torch", "numba", "transformers", "accelerate") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise SoftwareMissing(
            f"{', '.join(missing)} {verb} not installed; a model of other kinds than rung builds needs it.",
            [why],
            ["pip install 'rung[run]' transformers accelerate"],
        )


def place_of(
    name: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    budget: int | None = None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Path:
    """Where ``demo``, a path, or a hub name lies, which is downloaded when it is not here yet.

    ``budget`` (bytes, by default what the largest device has free) decides which file of a GGUF repository is taken.
    A file or folder called demo wins over the embedded model. Raises ``ModelNotFound``, ``HubError``.
    """
    if name == DEMO and not Path(name).exists():
        return demo_path()
    if budget is None:
        budget = max(device.budget for device in detect.devices())
    try:
        location = locate(
            name,
            offline=offline or OFFLINE.read(),
            revision=revision,
            memory_budget=budget,
            progress=progress,
        )
    except HubError as error:
        looked = f"{name!r} is no file or folder here, so it was looked for on the hub"
        raise type(error)(error.cause, [looked, *error.facts], error.ways_out) from error
    for note in location.notes:
        on_note(note)
    return location.path
