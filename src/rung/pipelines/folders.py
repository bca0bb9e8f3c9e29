"""Find the folder of a pipeline from what a person typed, downloading it where it is missing; its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile, ModelNotFound
from rung.core.settings import OFFLINE
from rung.core.text import quoted
from rung.core.value import Value
from rung.models import catalog
from rung.models.hub import Listing, Progress, fetch, listing
from rung.models.locate import repository_of
from rung.models.lookup import DEMO, find_here
from rung.models.networks.pipeline import INDEX
from rung.models.store import starters


@dataclass(frozen=True)
class Settings(Value):
    """Hold what is made; None: as the pipeline has it. ``size`` is (width, height) in pixels."""

    prompt: str
    negative: str | None = None
    frames: int | None = None
    size: tuple[int, int] | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int = 0
    scheduler: str | None = None

    def chosen(self) -> dict[str, Any]:
        """Return those that were chosen, for the file."""
        return {name: value for name, value in vars(self).items() if value is not None}

    told = chosen  # its name in 0.1


#: Commands with names that are there on the hub.
_EXAMPLES = (
    'rung video maxin-cn/Latte-1 "a cat runs over the sea"',
    'rung image stable-diffusion-v1-5/stable-diffusion-v1-5 "a cat"',
)
_SMALL = (".json", ".txt", ".model")


def folder_of(
    name: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    weights: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The folder of a pipeline: a path, or ``ORG/REPO`` on the hub, of which the components' files are fetched.

    Without ``weights`` only the small ones are: what a pipeline refuses these tell.

    Raises ``ModelNotFound``, ``BadFile`` for a model that is no pipeline, ``HubError``.
    """
    local = Path(name).expanduser()
    if local.is_file() and local.name == INDEX:
        local = local.parent
    if local.is_dir():
        if not (local / INDEX).is_file():
            raise BadFile(
                f"{name} is no pipeline of diffusers: it has no {INDEX}.",
                ways_out=[f"rung check {quoted(name)}   # says what it is"],
            )
        return local
    if local.is_file():
        raise BadFile(
            f"{name} is a file, and a pipeline of diffusers is a folder with a {INDEX}.",
            ["A GGUF file holds one network, most often a language model."] if local.suffix.lower() == ".gguf" else [],
            [f"rung check {quoted(name)}   # says what it is", *_language(local)],
        )
    repository = repository_of(name)
    if repository is None or local.exists():
        raise _no_pipeline(name)
    listed, _ = listing(repository[0], revision, offline=bool(offline or OFFLINE.read()))
    if INDEX not in listed.files:
        raise BadFile(
            f"{repository[0]} is no pipeline of diffusers: it has no {INDEX}.",
            ways_out=[f'rung run {name} "Why is the sky blue?"   # if it is a language model'],
        )
    return next(path.parent for path in fetch(listed, _files_of(listed, weights), progress) if path.name == INDEX)


def _no_pipeline(name: str) -> ModelNotFound:
    """The error for a name of no pipeline: what runs it where it is a language model, else names that are one."""
    if name == DEMO or find_here(name) is not None or starters.find(name) or catalog.find(name):
        return ModelNotFound(
            f"{name} is a language model, which writes text and makes no pictures.",
            ["a pipeline is a folder of diffusers, or ORG/REPO on the hub"],
            [f'rung run {quoted(name)} "Why is the sky blue?"', *_EXAMPLES],
        )
    facts = ["a pipeline is a folder of diffusers, or ORG/REPO on the hub"]
    return ModelNotFound(f"There is no pipeline {name!r}.", facts, _EXAMPLES)


def _language(folder: Path) -> list[str]:
    """Return the command for a file that a language model may lie in."""
    if folder.suffix.lower() not in (".gguf", ".safetensors"):
        return []
    return [f"rung run {quoted(str(folder))}   # if it is a language model"]


def _files_of(listed: Listing, with_weights: bool) -> list[str]:
    """The index, and of each component the small files and the weights, in 16 bits where there are such."""
    inside = [name for name in listed.files if name.count("/") == 1]
    weights = [name for name in inside if name.endswith(".safetensors")]
    half = {name.rpartition("/")[0] for name in weights if ".fp16" in name}
    chosen = [name for name in weights if (".fp16" in name) == (name.rpartition("/")[0] in half)]
    return [INDEX, *(name for name in inside if name.endswith(_SMALL)), *(chosen if with_weights else ())]
