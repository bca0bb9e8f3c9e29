"""A trained scene that is looked at: a file of splats or the folder of a run, with what the run knows of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rung.core.errors import UsageError
from rung.core.text import quoted
from rung.models.card import View
from rung.models.files.jsonfile import read_object
from rung.splats import cameras
from rung.splats.cloud import Cloud
from rung.splats.files import read

SPLATS, CONFIG, METRICS, EXPORTS = "splats.ply", "config.json", "metrics.json", "exports"
#: Metrics of 100,000 test pictures take 12 MB.
_LIMIT = 64 * 2**20


class Trained(NamedTuple):
    """``views`` are the cameras of the run and ``settings`` its options; both are empty for a file alone."""

    path: Path
    cloud: Cloud
    views: tuple[View, ...]
    settings: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where the splats lie."""
        return self.path.parent

    @property
    def antialiased(self) -> bool:
        """Return whether splats smaller than a pixel were trained to be dimmed."""
        return self.settings.get("antialiased") is True

    @property
    def background(self) -> str:
        """The background in training; black where it was another one at each step."""
        stated = self.settings.get("background", "black")
        return stated if isinstance(stated, str) and stated != "random" else "black"


def trained(path: Path) -> Trained:
    """Open a file of splats, or a run's folder; a file in a run's folder has its cameras.

    Raises ``UsageError`` for a folder without splats, ``BadFile``.
    """
    folder = path if path.is_dir() else path.parent
    file = path / SPLATS if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise UsageError(
            f"{path} holds no {SPLATS}.",
            ["a folder is one that rung splat train wrote"],
            ["name a file of splats", f"rung splat train SCENE --out {quoted(path)}"],
        )
    config = read_run_file(folder / CONFIG).get("settings", {})
    settings = config if isinstance(config, dict) else {}
    return Trained(file, read(file), cameras.of_run(folder) if settings else (), settings)


def stages(paths: Sequence[Path]) -> list[Path]:
    """Files of splats in the order of training: of a run's folder those in ``exports`` before the newest."""
    found = []
    for path in paths:
        found += [*_by_step((path / EXPORTS).glob("*.ply")), path / SPLATS] if path.is_dir() else [path]
    return found


def _by_step(files: Iterable[Path]) -> list[Path]:
    """In the order of the numbers in their names, which may have more digits than the first ones have."""
    return sorted(files, key=lambda file: (len(file.name), file.name))


def read_run_file(path: Path) -> dict[str, Any]:
    """The JSON object of a file that a run left, empty where there is none. Raises ``BadFile``."""
    again = ["put back the file that rung splat train wrote", "train again, into another folder"]
    return read_object(path, _LIMIT, again) if path.is_file() else {}
