"""The manifest of a batch: which file of prompts and which model its answers are of, and what became of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import msgspec

from rung.core.errors import BadFile, UsageError
from rung.core.files import write_whole
from rung.core.text import quoted


class Manifest(msgspec.Struct, kw_only=True):
    """Facts of a whole batch: SHA-256 in hex of its prompts, of the files of its model by name, and of its
    answers once all are there; how many there are, how many of them are errors, and how many each node gave.

    After a stop ``nodes`` and ``errors`` count the answers that came since."""

    prompts_sha256: str
    model: str
    files: dict[str, str]
    total: int
    answers: int = 0
    errors: int = 0
    answers_sha256: str = ""
    nodes: dict[str, int] = {}


def path_of(answers: Path) -> Path:
    """Return where the manifest of a file of answers lies."""
    return answers.with_name(f"{answers.name}.manifest")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def begin(answers: Path, manifest: Manifest) -> None:
    """Write the manifest of a batch that begins or goes on. Raises ``UsageError`` where there is one of another batch,
    ``BadFile`` where there is something else."""
    path = path_of(answers)
    if path.exists():
        try:
            before = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except msgspec.MsgspecError as error:
            raise BadFile(f"{path} is no manifest of a batch: {error}", (), [f"rm {quoted(path)}"]) from error
        same = [
            before.prompts_sha256 == manifest.prompts_sha256,
            before.model == manifest.model,
            before.files == manifest.files,
        ]
        if not all(same):
            names = ("the file of prompts", "the model's name", "the model's files")
            changed = [name for name, is_same in zip(names, same, strict=True) if not is_same]
            raise UsageError(
                f"{answers} has answers of another batch.",
                [f"{each} changed since" for each in changed],
                ["name another file for the answers", f"rm {quoted(path)} {quoted(answers)}"],
                code="output-exists",
            )
    write_whole(path, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def end(answers: Path, manifest: Manifest, nodes: Counter[str], errors: int) -> None:
    """Write down that all answers are there."""
    manifest.answers, manifest.errors, manifest.nodes = manifest.total, errors, dict(sorted(nodes.items()))
    manifest.answers_sha256 = sha256_of(answers)
    write_whole(path_of(answers), msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
