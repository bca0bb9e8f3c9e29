"""The state of a run on disk: whole or not there, the newest two kept, checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rung.core.errors import BadFile, DiskFull
from rung.core.files import FULL, written_whole
from rung.core.text import quoted
from rung.core.zips import DAMAGED

FOLDER = "checkpoints"
_KEPT = 2


@dataclass
class Checkpoint:
    """``arrays`` by name, and ``facts`` that JSON holds; among these ``step``."""

    arrays: dict[str, Any]
    facts: dict[str, Any]


def save(out: Path, checkpoint: Checkpoint) -> None:
    """Writes ``checkpoints/step-NNNNNNNN.npz`` and removes the oldest. Raises ``DiskFull`` and ``OSError``."""
    folder = out / FOLDER
    folder.mkdir(exist_ok=True)
    facts = np.frombuffer(json.dumps(checkpoint.facts).encode(), np.uint8)
    path = folder / f"step-{checkpoint.facts['step']:08d}.npz"
    try:
        with written_whole(path) as temporary, temporary.open("wb") as file:
            np.savez(file, facts=facts, **checkpoint.arrays)
    except OSError as error:
        raise disk_full(out, error) from error
    for old in _all(out)[:-_KEPT]:
        old.unlink()


def disk_full(out: Path, error: OSError) -> Exception:
    """Translate a failed write: ``DiskFull`` where there is no room, else the error itself."""
    if error.errno not in FULL:
        return error
    return DiskFull(
        f"There is no room for {out}.",
        ["what was saved before is whole and kept"],
        [f"make room, then: rung splat train SCENE --out {quoted(out)} --resume"],
    )


def _all(out: Path) -> list[Path]:
    return sorted((out / FOLDER).glob("step-*.npz"))


def newest(out: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none.

    A file that something else has damaged is passed over for the one before; raises ``BadFile`` when all are.
    """
    found = _all(out)
    for path in reversed(found):
        try:
            return _read(path)
        except (*DAMAGED, KeyError, OSError):
            continue
    if found:
        raise BadFile(
            f"No checkpoint in {out / FOLDER} can be read.", [f"{len(found)} are there, all damaged"], ["begin again"]
        )
    return None


def _read(path: Path) -> Checkpoint:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    facts = json.loads(arrays.pop("facts").tobytes())
    if not isinstance(facts, dict) or not isinstance(facts.get("step"), int):
        raise ValueError("no facts")
    return Checkpoint(arrays, facts)


def pack(**groups: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays of several groups under ``group/name``."""
    return {f"{group}/{name}": np.asarray(value) for group, values in groups.items() for name, value in values.items()}


def unpack(arrays: Mapping[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
    """Return the arrays of a group."""
    return {name.partition("/")[2]: value for name, value in arrays.items() if name.startswith(f"{group}/")}
