"""From what a person typed to a model card: the embedded model, a file, a folder or a hub name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

from rung.core.settings import OFFLINE
from rung.models import open_card
from rung.models.card import ModelCard
from rung.models.locate import locate

#: The name of the model that the package ships.
DEMO = "demo"


def demo_path() -> Path:
    """Where the embedded model lies."""
    return Path(str(resources.files("rung.models") / "demo" / "demo.gguf"))


def card_of(
    name: str, *, offline: bool = False, revision: str | None = None, on_note: Callable[[str], None] = lambda note: None
) -> ModelCard:
    """The card of ``demo``, a path, or a hub name, which is downloaded when it is not here yet.

    A file or folder called demo wins over the embedded model. Raises ``ModelNotFound``, ``HubError``, ``BadFile`` ...
    """
    if name == DEMO and not Path(name).exists():
        return open_card(demo_path())
    location = locate(name, offline=offline or OFFLINE.read(), revision=revision)
    for note in location.notes:
        on_note(note)
    return open_card(location.path)
