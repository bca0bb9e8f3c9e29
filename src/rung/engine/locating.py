"""From what a person typed to a model card: the embedded model, a file, a folder or a hub name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rung import models
from rung.core.errors import HubError
from rung.core.settings import OFFLINE
from rung.hardware import detect
from rung.models import open_card
from rung.models.card import ModelCard
from rung.models.locate import locate

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
    """The card of ``demo``, a path, or a hub name, which is downloaded when it is not here yet.

    ``budget`` (bytes, by default what the largest device has free) decides which file of a GGUF repository is taken.
    A file or folder called demo wins over the embedded model. Raises ``ModelNotFound``, ``HubError``, ``BadFile`` ...
    """
    if name == DEMO and not Path(name).exists():
        return open_card(demo_path())
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
    return open_card(location.path)
