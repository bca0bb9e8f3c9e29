"""Opening a model: from a path to its card."""

from __future__ import annotations

from pathlib import Path

from rung.core.errors import BadFile, ModelNotFound, UnknownArchitecture
from rung.core.text import quoted
from rung.models.card import ModelCard
from rung.models.cards.folder import folder_card
from rung.models.cards.gguf import gguf_card
from rung.models.files.file_sniffing import PICKLE_SUFFIXES, foreign, head, unsafe
from rung.models.files.gguf import is_gguf, part_names
from rung.models.files.jsonfile import SMALL, read_object
from rung.models.networks.pipeline import INDEX, MAKES


def open_card(path: str | Path) -> ModelCard:
    """The card of a GGUF file, of a split GGUF model (any part), or of a Hugging Face folder; headers alone are read.

    Raises ``ModelNotFound`` (no such path, parts missing), ``BadFile``, ``UnsafeFile`` (a pickle) or
    ``UnknownArchitecture``.
    """
    try:
        path_expanded = Path(path).expanduser()
        folder, there = path_expanded.is_dir(), path_expanded.exists()
    except (OSError, RuntimeError) as error:  # too long for a name; the home of a user who is not there
        raise ModelNotFound(
            f"There is no file or folder {str(path)[:200]}", [str(error)[:200]], code="path-unknown"
        ) from error
    if folder:
        return _open_folder(path_expanded)
    if not there:
        raise ModelNotFound(f"There is no file or folder {path_expanded}", code="path-unknown")
    if not path_expanded.is_file():
        raise BadFile(f"{path_expanded} is neither a file nor a folder", code="path-unknown")
    if is_gguf(path_expanded):
        return gguf_card(path_expanded)
    if path_expanded.suffix == ".safetensors" or path_expanded.name in ("config.json", "model.safetensors.index.json"):
        return _open_folder_of(path_expanded)
    if path_expanded.suffix in PICKLE_SUFFIXES and head(path_expanded):
        raise unsafe(path_expanded)
    raise foreign(path_expanded, "a GGUF file")


def _open_folder_of(path: Path) -> ModelCard:
    """A file of a Hugging Face folder stands for the folder."""
    if not (path.parent / "config.json").is_file():
        raise BadFile(
            f"{path.name} has no config.json beside it, so nothing says what its tensors are",
            ways_out=["put it into a folder with its config.json and tokenizer.json, and run the folder"],
        )
    return folder_card(path.parent)


def _open_folder(folder: Path) -> ModelCard:
    if (folder / "config.json").is_file():
        return folder_card(folder)
    models = sorted(file for file in folder.glob("*.gguf") if part_names(file.name)[0] == file.name)
    if len(models) == 1:
        return gguf_card(models[0])
    if models:
        raise BadFile(
            f"{folder} holds {len(models)} GGUF models",
            [file.name for file in models[:20]],
            [f"rung run {quoted(models[0])}"],
        )
    if (folder / "adapter_config.json").is_file():
        raise BadFile(
            f"{folder} is an adapter (LoRA), which is a change to a model and not one",
            ways_out=[f"rung run MODEL --adapter {quoted(folder)}"],
        )
    if (folder / INDEX).is_file():
        class_name = str(read_object(folder / INDEX, SMALL).get("_class_name"))
        making = f'rung {MAKES.get(class_name, "image")} {quoted(folder)} "a cat"'
        raise UnknownArchitecture(
            f"{folder} is a pipeline of diffusers ({class_name}), which makes pictures or videos and no text.",
            (),
            [making, f"rung check {quoted(folder)}   # says where it fits"],
        )
    raise BadFile(
        f"{folder} holds no model",
        ["there is neither a config.json nor a GGUF file in it"],
        [f"ls {quoted(folder)}   # name the folder that holds one of them, or the file", "rung run demo"],
    )
