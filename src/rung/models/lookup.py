"""From what a person typed to a model: the only place that decides what the name of a model means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rung.core.errors import HubError, ModelNotFound
from rung.core.settings import OFFLINE
from rung.core.text import quoted
from rung.hardware import detect
from rung.models import catalog
from rung.models.card import ModelCard
from rung.models.catalog import Match
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
    if exists(name):
        return path
    if name != DEMO and repository_of(name) is None:
        raise _without_weights(name)
    return None


def exists(name: str) -> bool:
    """Return whether ``name`` is the path of something here."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, a NUL, the home of a user who is not there
        return False


def find_known(name: str) -> Match | None:
    """Return the model of the catalogue that ``name`` means; None for a path, ``demo``, a hub name and unknown names.

    Raises ``UsageError`` for a name that fits several models, ``ModelNotFound`` for a size that its family lacks.
    """
    if name == DEMO or exists(name) or repository_of(name) is not None:
        return None
    return catalog.find(name)


def _without_weights(name: str) -> ModelNotFound:
    """The error for a name that leads to no weights: where those of a known model are, else the names that are near."""
    known = find_known(name)
    if known is not None and known.model is not None:
        model = known.model
        label = (known.format or "q4_k_m").upper()
        ways = [f"rung run {model.gguf}:{label}"] if model.gguf and model.runs_gguf else []
        ways += [f"rung run {model.weights}", f"rung check {quoted(name)}   # needs no weights"]
        facts = [*known.notes, f"license: {model.license}; names of the hub are downloaded when they are run"]
        return ModelNotFound(f"{model.title} is known by name, and its weights are not here.", facts, ways)
    if known is not None:
        way = f"rung check {quoted(name)}   # where a model of that size would run"
        return ModelNotFound(f"{name!r} is a size and no model, so nothing can be run.", (), [way])
    error = nowhere(name[:200], Path(name[:200].replace("\0", "")))
    if near := catalog.find_near(name):
        cause = f"{error.cause} Did you mean {' or '.join(near)}?"
        return ModelNotFound(cause, error.facts, [f"rung check {each}" for each in near])
    return error


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
    if not exists(name) and repository_of(name) is None:
        raise _without_weights(name)
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
    name: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    describing: Describe = describe,
    on_note: Callable[[str], None] = lambda note: None,
) -> Outline:
    """Return the outline of ``demo``, a file, a folder, a configuration, a hub name or a name of the catalogue.

    Only headers are read. ``on_note`` is told what was taken where a name leaves something open, and that the hub was
    not asked about a model which the catalogue knows.
    """
    if name == DEMO and not Path(name).exists():
        return open_outline(demo_path())
    known = find_known(name)
    if known is None and not exists(name) and repository_of(name) is None:
        raise _without_weights(name)
    if known is None:
        try:
            return open_outline(name, offline=bool(offline or OFFLINE.read()), revision=revision, describing=describing)
        except HubError:
            known = None if revision else catalog.find(name)
            if known is None or known.model is None:
                raise
            on_note(f"The hub was not reached; {known.model.title} is known without it.")
    for note in known.notes:
        on_note(note)
    return catalog.outline_of(known, describing)
