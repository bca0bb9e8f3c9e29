"""GGUF models that other programs on this machine hold: ollama, LM Studio, the hub's cache. Used in place, only read.

Layouts: https://github.com/ollama/ollama/blob/main/docs/faq.md (where models are stored),
https://lmstudio.ai/docs/app/basics/import-model, https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.value import Value
from rung.models.files.gguf import part_names
from rung.models.locate import label_of

_MODEL = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LARGEST = 2**20
#: More files than that in one folder of another program are not looked at.
_MOST = 10_000


@dataclass(frozen=True)
class Other(Value):
    """A model of another program: ``name`` as that program writes it, ``aliases`` what else people type for it."""

    name: str
    path: str
    program: str
    size: int
    format: str
    last_used: float
    aliases: tuple[str, ...] = ()


def models() -> list[Other]:
    """Return the models of other programs that are whole, by program and name."""
    return [*_ollama(), *_lm_studio(), *_hub_cache()]


def find(name: str) -> Other | None:
    """Return the model of another program with that name in any case, or None."""
    key = name.strip().lower()
    found = models()
    exact = next((other for other in found if other.name.lower() == key), None)
    if exact is not None:
        return exact
    others = [other for other in found if key in other.aliases]
    return others[0] if len({other.path for other in others}) == 1 else None


# ---- ollama


def _ollama() -> Iterator[Other]:
    for root in _ollama_folders():
        manifests = root / "manifests"
        for path in _files(manifests):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # unfinished, or none of ollama's
                host, *middle, tag = path.relative_to(manifests).parts
                yield from _ollama_model(root, json.loads(_text(path)), host, middle, tag)


def _ollama_folders() -> list[Path]:
    configured = os.environ.get("OLLAMA_MODELS")
    usual = [Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/models")]
    return [path for path in ([Path(configured).expanduser()] if configured else usual) if _is_folder(path)]


def _ollama_model(root: Path, manifest: Any, host: str, middle: list[str], tag: str) -> Iterator[Other]:
    layers = [layer for layer in manifest["layers"] if layer["mediaType"] == _MODEL]
    digest = _DIGEST.fullmatch(layers[0]["digest"]) if len(layers) == 1 else None
    blob = root / "blobs" / f"sha256-{digest[1]}" if digest else None
    if blob is None or blob.stat().st_size != layers[0]["size"]:
        return
    parts = [host, *middle] if host != "registry.ollama.ai" else middle[1:] if middle[0] == "library" else middle
    name = "/".join(parts)
    kind = ""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        about = _DIGEST.fullmatch(manifest["config"]["digest"])
        config = json.loads(_text(root / "blobs" / f"sha256-{about[1] if about else ''}"))
        kind = str(config["file_type"]).lower()
    aliases = (name.lower(),) if tag == "latest" else ()
    yield _other(f"{name}:{tag}", blob, "ollama", kind, layers[0]["size"], aliases)


# ---- LM Studio


def _lm_studio() -> Iterator[Other]:
    for root in _lm_studio_folders():
        for path in _files(root, ".gguf"):
            parts = path.relative_to(root).parts
            if len(parts) != 3 or not _is_first_of_whole(path):
                continue
            repository, label = "/".join(parts[:2]), label_of(parts[2])
            stem = parts[2].removesuffix(".gguf")
            key = re.sub(r"-gguf$", "", parts[1].lower())
            aliases = (repository.lower(), f"{repository}:{label}".lower(), parts[2].lower(), stem.lower(), key)
            yield _other("/".join(parts), path, "LM Studio", label.lower(), _whole_size(path), aliases)


def _lm_studio_folders() -> list[Path]:
    home = Path.home()
    with contextlib.suppress(OSError, ValueError):
        home_of_studio = Path(_text(home / ".lmstudio-home-pointer").strip())
        if _is_folder(home_of_studio / "models"):
            return [home_of_studio / "models"]
    usual = [home / ".lmstudio/models", home / ".cache/lm-studio/models"]
    return [path for path in usual if _is_folder(path)]


# ---- the hub's cache


def hub_cache() -> Path:
    """Return the folder that ``huggingface_hub`` keeps repositories in, without importing it."""
    configured = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if configured:
        return Path(configured).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("HF_HOME") or Path(cache) / "huggingface").expanduser() / "hub"


def _hub_cache() -> Iterator[Other]:
    root = hub_cache()
    for entry in sorted(root.glob("models--*--*")) if _is_folder(root) else ():
        repository = "/".join(entry.name.split("--")[1:3])
        snapshot = _snapshot(entry)
        if snapshot is None:
            continue
        for path in _files(snapshot, ".gguf"):
            if not _is_first_of_whole(path):
                continue
            file, label = path.relative_to(snapshot).as_posix(), label_of(path.name)
            aliases = (f"{repository}/{file}".lower(),)
            name = f"{repository}:{label}" if label else f"{repository}/{file}"
            yield _other(name, path, "hub cache", label.lower(), _whole_size(path), aliases)


def _snapshot(repository: Path) -> Path | None:
    """Return the snapshot of the main branch, else the newest."""
    with contextlib.suppress(OSError, ValueError):
        named = repository / "snapshots" / _text(repository / "refs" / "main").strip()
        if named.is_dir():
            return named
    with contextlib.suppress(OSError):
        return max((repository / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime, default=None)
    return None


# ---- files


def _other(name: str, path: Path, program: str, kind: str, size: int, aliases: tuple[str, ...]) -> Other:
    return Other(name, str(path), program, size, kind, path.stat().st_atime, aliases)


def _files(root: Path, suffix: str = "") -> Iterator[Path]:
    """Yield the files below a folder in order of their names; what cannot be read is none."""
    count = 0
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > _MOST:
                return
            path = Path(folder) / name
            if name.endswith(suffix) and path.is_file():  # a link of the hub's cache may lead nowhere
                yield path


def _is_first_of_whole(path: Path) -> bool:
    """Tell whether a GGUF file is a model, or the first part of one whose parts are all there."""
    if "mmproj" in path.name.lower() or "imatrix" in path.name.lower():
        return False
    names = part_names(path.name)
    return names[0] == path.name and all((path.parent / name).is_file() for name in names)


def _whole_size(path: Path) -> int:
    return sum((path.parent / name).stat().st_size for name in part_names(path.name))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _text(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(_LARGEST).decode("utf-8")
