"""Many prompts from a file: what is done is written down after each, so that the same command goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType

from rung.core.errors import BadFile, DiskFull, UsageError
from rung.core.files import FULL
from rung.core.text import quoted
from rung.pipelines.folders import Settings

#: The fields that a line of the file may set beside its prompt: their types, the least value and the largest.
_FIELDS: Mapping[str, tuple[type | UnionType, float, float]] = {
    "negative": (str, 0, 0),
    "frames": (int, 1, 10**6),
    "steps": (int, 1, 10**6),
    "guidance": (int | float, 0, 10**6),
    "seed": (int, 0, 2**64 - 1),
}


@dataclass(frozen=True)
class Job:
    """Hold what is made, and where it goes."""

    settings: Settings
    out: Path


def jobs(file: Path, common: Settings, out: Path) -> list[Job]:
    """A job for each line that is not empty: a prompt, or JSON with ``prompt`` and settings of its own.

    The results are ``out`` with the number of the line before its ending. Raises ``UsageError`` with the line.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}", code="file-unreadable") from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            settings = _settings(line.strip(), common, f"{file.name}, line {number}")
            found.append(Job(settings, out.with_name(f"{out.stem}-{number:03d}{out.suffix}")))
    if not found:
        raise UsageError(f"{file} has no prompt: one a line.", code="input-empty")
    return found


def _settings(line: str, common: Settings, where: str) -> Settings:
    if not line.startswith("{"):
        return replace(common, prompt=line)
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} begins like JSON and is none: {error}", code="json-invalid") from error
    unknown = sorted(fields.keys() - {"prompt", *_FIELDS})
    if unknown or not isinstance(fields.get("prompt"), str):
        wrong = f"has {', '.join(unknown)}" if unknown else "has no prompt"
        raise UsageError(f"{where} {wrong}.", [f"it may have prompt, {', '.join(_FIELDS)}"])
    for name, (kind, least, most) in _FIELDS.items():
        value = fields.get(name)
        if name not in fields or (value is None and name != "seed"):
            continue
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or (kind is not str and not least <= value <= most):
            fields_of_settings = (
                "a text" if kind is str else f"{'a whole number' if kind is int else 'a number'}, {least:,} or more"
            )
            raise UsageError(f"{where}: {name} is {json.dumps(value)[:40]}; it is {fields_of_settings}.")
    return replace(common, **fields)


class Done:
    """The journal of a batch, beside its results: one line of JSON for each that is whole.

    ``identity`` is what all of them depend on beside their settings: the model, its format, frames a second.
    """

    def __init__(self, out: Path, identity: Mapping[str, object]) -> None:
        self.path, self._identity = out.with_name(f"{out.stem}.jsonl"), identity

    def left(self, several: Sequence[Job]) -> list[Job]:
        """The jobs that are not done with these settings, or whose file is gone. Raises ``BadFile``."""
        if not self.path.exists():
            return list(several)
        done = {}
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
                done[entry.pop("file")] = entry
            except (ValueError, KeyError, AttributeError) as error:
                if not line.endswith("}"):
                    continue  # the power went while it was written: that job is made again
                raise BadFile(
                    f"{self.path} is not the journal of a batch", [line[:80]], [f"rm {quoted(self.path)}"]
                ) from error
        return [one for one in several if done.get(one.out.name) != self._journal_line(one) or not one.out.exists()]

    def add(self, job: Job) -> None:
        """Writes down that a job is done. Raises ``DiskFull``."""
        line = json.dumps({"file": job.out.name, **self._journal_line(job)}, ensure_ascii=False).encode() + b"\n"
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        try:
            with open(self.path, "ab") as file:
                file.write(b"\n" + line if torn else line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise DiskFull(
                f"There is no room for the journal {self.path}.",
                [f"{job.out.name} is whole"],
                ["make room and give the same command again: it goes on after what is written down"],
            ) from error

    def _journal_line(self, job: Job) -> dict[str, object]:
        result: dict[str, object] = json.loads(json.dumps({**self._identity, **job.settings.chosen()}))
        return result
