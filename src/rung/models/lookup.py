"""From what a person typed to a model: the only place that decides what the name of a model means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rung.core.errors import HubError
from rung.core.settings import OFFLINE
from rung.hardware import detect
from rung.models.card import ModelCard
from rung.models.locate import locate, nowhere, repository_of
from rung.models.open import open_card
from rung.models.outline import Describe, open_outline
from rung.models.outlines.component import describe
from rung.models.outlines.values import Outline

#: The name of the model that the package ships.
DEMO = "demo"


def demo_path() -> Path:
    """Return the path of the embedded model."""
    return Path(__file__).parent / "demo" / "demo.gguf"


def check_name(name: str) -> Path | None:
    """Return the path that ``name`` is, None for another name that may be a model; asks no hub.

    Raises ``ModelNotFound`` for a name that can be no model.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name != DEMO and repository_of(name) is None:
        raise nowhere(name, path)
    return None


def find_path(
    name: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    budget: int | None = None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Path:
    """Return the path of the model called ``name``: ``demo``, a path, or a hub name, which is downloaded if missing.

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


def find_card(
    name: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    budget: int | None = None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> ModelCard:
    """Return the card of what ``find_path`` finds. Raises ``BadFile``, ``UnknownArchitecture`` and what that raises."""
    return open_card(
        find_path(name, offline=offline, revision=revision, budget=budget, progress=progress, on_note=on_note)
    )


def find_outline(
    name: str, *, offline: bool = False, revision: str | None = None, describing: Describe = describe
) -> Outline:
    """Return the outline of ``demo``, a file, a folder, a configuration or a hub name; only headers are read."""
    if name == DEMO and not Path(name).exists():
        return open_outline(demo_path())
    return open_outline(name, offline=bool(offline or OFFLINE.read()), revision=revision, describing=describing)
