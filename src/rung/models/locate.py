"""From a name to a path: a local file or folder, or a repository of the model hub.

``ORG/REPO`` is a repository, ``ORG/REPO:Q4_K_M`` one quantization of a GGUF repository and
``ORG/REPO/file.gguf`` one of its files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rung.core.errors import DoesNotFit, HubError, ModelNotFound, UnsafeFile
from rung.core.text import close, quoted, size
from rung.models.hub import Listing, Progress, fetch, listing

#: What a model takes beside its weights, at the least.
WORKING_BYTES = 600 * 2**20
PREFERRED = "Q4_K_M"
#: A budget in bytes that every model is within.
_ANY = 2**62

_HUB = re.compile(r"([A-Za-z0-9][\w.-]*)/([\w.-]+)(?:(?::([\w.-]+))|/(.+\.gguf))?")
#: How a browser names a model, or what lies in it.
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.\w+$)")
_LABEL = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:IQ|TQ|Q)\d+(?:_[A-Z0-9]+)*|BF16|F16|F32|FP16|FP32|MXFP4(?:_\w+)?|NVFP4)(?=[-.]|$)", re.I
)
CONFIG = "config.json"
_SMALL = (
    *(CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.jinja", "chat_template.json", "model.safetensors.index.json"),
)
#: What makes a tokenizer where neither ``tokenizer.json`` nor ``tokenizer.model`` does.
_OLDER_TOKENIZERS = ("vocab.json", "merges.txt", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_MODEL_FILES = (".gguf", ".safetensors", *_PICKLES)


#: What is left to do where no name is near.
NO_WAY = ("rung run demo",)


@dataclass(frozen=True)
class Location:
    """Where a model lies: a GGUF file (of a split one the first part) or a folder. ``notes`` say what was chosen."""

    path: Path
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Choice:
    """One model of a GGUF repository: its quantization as its name says, its files in order and their bytes."""

    label: str
    files: tuple[str, ...]
    bytes: int

    def __str__(self) -> str:
        return f"{self.label} ({size(self.bytes)})"


def locate(
    name: str,
    *,
    offline: bool = False,
    revision: str | None = None,
    memory_budget: int | None = None,
    progress: Progress | None = None,
) -> Location:
    """The path of the model called ``name``; what exists as a path is that path.

    ``memory_budget`` in bytes (None: what this machine has free) decides what a bare GGUF repository gives:
    Q4_K_M if it fits, else the best that does. ``progress`` hears of downloads. Raises ``ModelNotFound``,
    ``HubError``, ``UnsafeFile`` (only pickles there) or ``DoesNotFit``.
    """
    path = Path(name).expanduser()
    if path.exists():
        return Location(path)
    found = repository_of(name)
    if found is None:
        raise nowhere(name, path)
    repository, label, file = found
    listed, notes = listing(repository, revision, offline)
    files, chosen = select_files(listed, label, file, memory_budget)
    fetched = fetch(listed, files, progress)
    return Location(fetched[0].parent if CONFIG in files else fetched[0], (*notes, *chosen))


def select_files(
    listed: Listing, label: str | None, file: str | None, memory_budget: int | None
) -> tuple[list[str], list[str]]:
    """Return the files of a repository that make the model a name means, and what there is to say of the choice.

    Of a model in safetensors ``config.json`` is among them. Raises as ``locate`` does.
    """
    if label or file:
        return gguf_files(listed, label, file), []
    if _is_folder(listed):
        return _folder_files(listed), []
    chosen, others = _best(listed, memory_budget)
    note = f"{listed.repository}: {chosen}" + (f"; also there: {others}" if others else "")
    return list(chosen.files), [note]


def label_of(file: str) -> str:
    """Return the quantization that the name of a GGUF file says, in capitals; empty where it says none."""
    labels = _LABEL.findall(PurePosixPath(_PART.sub("", file)).stem)
    return str(labels[-1]).upper() if labels else ""


def repository_of(name: str) -> tuple[str, str | None, str | None] | None:
    """The repository, the quantization and the file that a name of the hub says; None where it looks like a path."""
    found = _HUB.fullmatch(name)
    looks_local = name.startswith((".", "/", "~")) or (found and name.endswith(".gguf") and not found[4])
    return None if found is None or looks_local else (f"{found[1]}/{found[2]}", found[3], found[4])


def gguf_files(listed: Listing, label: str | None, file: str | None) -> list[str]:
    """The files of a model of a GGUF repository in order: the named one, the quantization, else Q4_K_M or the largest.

    Raises ``ModelNotFound`` with what is there, or ``HubError`` when parts are missing.
    """
    if file:
        return _parts(listed, file)
    if label:
        return _labeled(listed, label)
    return list(_best(listed, _ANY)[0].files)


def _may_be_model(path: Path) -> bool:
    """Return whether a name is worth proposing: a file of weights, or a folder that holds a configuration or such a
    file."""
    if path.is_dir():
        return any(any(path.glob(pattern)) for pattern in ("config.json", "model_index.json", "*.gguf"))
    return path.suffix in _MODEL_FILES


def nowhere(name: str, path: Path) -> ModelNotFound:
    """The error for a name that is nothing, with the models here whose names are near."""
    if address := _ADDRESS.match(name):
        return ModelNotFound(f"{name!r} is an address; rung takes the name.", (), [f"rung run {address[1]}"])
    facts = ["names of the hub look like google/gemma-2b, or ORG/REPO:Q4_K_M, or ORG/REPO/file.gguf"]
    try:
        names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError as error:
        names, facts = [], [*facts, f"{path.parent} cannot be listed: {error.strerror}"]
    by_lower = {entry.lower(): str(path.parent / entry) for entry in [*names, "demo"]}
    near = [by_lower[entry] for entry in close(path.name, by_lower)]
    models = [entry for entry in near if entry != name and (entry == "demo" or _may_be_model(Path(entry)))]
    named = [(each.endswith(_PICKLES), quoted(each)) for each in models]
    ways = [f"rung convert {each} NEW" if pickled else f"rung run {each}" for pickled, each in named]
    if name.endswith(_MODEL_FILES):
        facts = [f"there is no file {name}", *facts]
    folder = next((each for each in path.parents if os.path.isdir(each)), Path())
    looking = [f"ls {quoted(folder)}   # what is there"] if name.endswith(_MODEL_FILES) else []
    ways = ways or [*looking, *([] if name.endswith(_PICKLES) else NO_WAY)]
    return ModelNotFound(f"{name!r} is neither a file, a folder nor a name on the model hub.", facts, ways)


# ---- folders of safetensors


def _is_folder(listed: Listing) -> bool:
    """Return whether the repository is a model in safetensors. Raises ``UnsafeFile`` for one that has only pickles."""
    names = listed.files
    if "config.json" in names and _safetensors(listed):
        return True
    if any(name.endswith(".gguf") for name in names):
        return False
    if any(name.endswith(_PICKLES) for name in names):
        raise UnsafeFile(
            f"{listed.repository} has its weights only as pickles, which can run code when they are read.",
            [", ".join(sorted(name for name in names if name.endswith(_PICKLES)))[:200]],
            [
                f"hf download {listed.repository} --local-dir OLD",
                "rung convert OLD NEW   # reads pickles in a process of its own, and builds nothing but weights",
            ],
        )
    raise ModelNotFound(
        f"{listed.repository} holds no model that rung reads.",
        [f"it has {len(names)} files, no .safetensors with a config.json and no .gguf"],
        ["rung run demo"],
    )


def _safetensors(listed: Listing) -> list[str]:
    top = [name for name in listed.files if "/" not in name and name.endswith(".safetensors")]
    usual = [name for name in top if _WEIGHTS.fullmatch(name)]
    return sorted(usual or [name for name in top if not name.startswith(("consolidated", "adapter"))])


def _folder_files(listed: Listing) -> list[str]:
    small = [name for name in _SMALL if name in listed.files]
    if "tokenizer.json" not in small:
        bare = "tokenizer.model" in listed.files
        small += ["tokenizer.model"] if bare else [name for name in _OLDER_TOKENIZERS if name in listed.files]
    weights = _safetensors(listed)
    for name in weights:
        _complete(listed, name)
    return small + weights


def _complete(listed: Listing, name: str) -> list[str]:
    """All parts of a split file in order. Raises ``HubError`` when one is missing."""
    found = _PART.search(name)
    if not found:
        return [name]
    start, end, count = name[: found.start()], name[found.end() :], int(found[2])
    names = [f"{start}-{number:05d}-of-{count:05d}{end}" for number in range(1, min(count, 100_000) + 1)]
    missing = [part for part in names if part not in listed.files]
    if missing:
        where = "downloaded" if listed.folder else "there"
        raise HubError(
            f"{listed.repository} is not complete: {len(missing)} of {count} parts are not {where}.",
            [f"the first missing one is {missing[0]}"],
            [f"rung run {listed.repository}   # with a network"] if listed.folder else [],
            code="model-incomplete",
        )
    return names


# ---- GGUF repositories


def _ggufs(listed: Listing) -> list[_Choice]:
    """The models of a GGUF repository, largest first; projectors of images and calibration data are none."""
    groups: dict[str, str] = {}
    for name in sorted(listed.files):
        base = PurePosixPath(name).name.lower()
        if name.endswith(".gguf") and "mmproj" not in base and "imatrix" not in base:
            groups.setdefault(_PART.sub("", name), name)
    choices = []
    for whole, first in groups.items():
        parts = _PART.search(first)
        files = [n for n in listed.files if _PART.sub("", n) == whole] if parts else [first]
        label = label_of(whole) or PurePosixPath(whole).stem
        choices.append(_Choice(label, tuple(sorted(files)), sum(listed.files[file] for file in files)))
    return sorted(choices, key=lambda choice: -choice.bytes)


def _parts(listed: Listing, name: str) -> list[str]:
    if name not in listed.files:
        names = [file for file in listed.files if file.endswith(".gguf")]
        raise _no_such(listed, name, names, lambda near: f"rung run {listed.repository}/{near}")
    return _complete(listed, name)


def _labeled(listed: Listing, label: str) -> list[str]:
    choices = _ggufs(listed)
    matching = [choice for choice in choices if choice.label.lower() == label.lower()]
    if not matching:
        labels = [choice.label for choice in choices]
        raise _no_such(listed, label, labels, lambda near: f"rung run {listed.repository}:{near}")
    return _complete(listed, matching[0].files[0])


def _no_such(listed: Listing, name: str, known: Iterable[str], way: Callable[[str], str]) -> ModelNotFound:
    by_lower = {entry.lower(): entry for entry in known}
    near = [by_lower[entry] for entry in close(name, by_lower)]
    shown = sorted(by_lower.values())
    facts = [f"it has {', '.join(shown[:20])}" + (" ..." if len(shown) > 20 else "")] if shown else ["it has no GGUF"]
    where = f"{listed.repository} as it was downloaded" if listed.folder else listed.repository
    return ModelNotFound(f"{where} has no {name}.", facts, [way(entry) for entry in near or shown[:3]])


def _best(listed: Listing, budget: int | None) -> tuple[_Choice, str]:
    """The choice for a bare name, and the others as a list."""
    choices = _ggufs(listed)
    if not choices:
        raise ModelNotFound(f"{listed.repository} holds no model that rung reads.", ["its .gguf files are no models"])
    budget = _free_memory() if budget is None else budget
    fitting = [choice for choice in choices if choice.bytes + WORKING_BYTES <= budget]
    if not fitting:
        raise DoesNotFit(
            f"Nothing in {listed.repository} fits in {size(budget)}.",
            [f"the smallest is {choices[-1]}, and {size(WORKING_BYTES)} are needed beside the weights"],
            [f"rung run {listed.repository}:{choices[-1].label}   # downloads it all the same"],
        )
    preferred = [choice for choice in fitting if choice.label == PREFERRED]
    chosen = (preferred or fitting)[0]
    _complete(listed, chosen.files[0])
    return chosen, ", ".join(str(choice) for choice in choices if choice is not chosen)


def _free_memory() -> int:
    from rung.hardware.detect import devices

    return max(device.budget for device in devices())
