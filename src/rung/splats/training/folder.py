"""The folder of a run: claimed once, gone on with after that; what it has at the end, or after Ctrl-C."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any

import numpy as np

from rung.core.errors import BadFile, DiskFull, RungError, UsageError
from rung.core.files import write_whole, written_whole
from rung.measure.curves import curves
from rung.models.card import View
from rung.splats.cameras import CAMERAS
from rung.splats.cloud import Cloud
from rung.splats.files import write
from rung.splats.planning import SplatPlan
from rung.splats.trained import CONFIG, EXPORTS, METRICS, SPLATS
from rung.splats.training import checkpoint
from rung.splats.training.checkpoint import disk_full
from rung.splats.training.settings import Settings, options_that_differ

LOG, CURVE, TEST, PAGE = "log.jsonl", "curve.png", "test", "page.html"


class Outcome:
    """The folder of a run. Every method raises ``DiskFull`` when there is no room."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.log: list[dict[str, Any]] = []

    def _json(self, name: str, value: Any) -> None:
        self._whole(name, json.dumps(value, indent=1, ensure_ascii=False).encode())

    def _whole(self, name: str, data: bytes) -> None:
        try:
            write_whole(self.out / name, data)
        except OSError as error:
            raise disk_full(self.out, error) from error

    def splats(self, cloud: Cloud, name: str = SPLATS) -> None:
        """Writes splats."""
        path = self.out / name
        try:
            path.parent.mkdir(exist_ok=True)
            write(path, cloud)
        except OSError as error:
            raise disk_full(self.out, error) from error

    def cameras(self, views: Sequence[View]) -> None:
        """Writes all cameras at training size."""
        self._json(CAMERAS, [view.to_json() for view in views])

    def config(self, settings: Settings, plan: SplatPlan | None) -> None:
        """Writes what the run was asked for, and its plan once there is one."""
        self._json(CONFIG, {"settings": settings.to_json(), "plan": plan.to_json() if plan else None})

    def metrics(self, found: dict[str, Any]) -> None:
        """Writes the metrics."""
        self._json(METRICS, found)

    def note(self, entry: dict[str, Any]) -> None:
        """Adds a line to the log."""
        self.log.append(entry)
        try:
            with (self.out / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise disk_full(self.out, error) from error

    def go_on(self, step: int) -> None:
        """Takes the log up after a step; what came later is forgotten."""
        path, kept = self.out / LOG, []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                entry = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            if isinstance(entry, dict) and entry.get("step", step + 1) <= step:
                kept.append(entry)
        self.log = kept
        self._whole(LOG, "".join(json.dumps(entry) + "\n" for entry in kept).encode())

    def picture(self, stem: PurePosixPath, drawn: np.ndarray, truth: np.ndarray) -> None:
        """Writes a test picture and its truth, 8-bit RGB, as ``STEM.png`` and ``STEM.truth.png``."""
        from PIL import Image

        try:
            (self.out / TEST / stem).parent.mkdir(parents=True, exist_ok=True)
            for name, pixels in ((f"{stem}.png", drawn), (f"{stem}.truth.png", truth)):
                with written_whole(self.out / TEST / name) as temporary:
                    Image.fromarray(pixels).save(temporary)
        except OSError as error:
            raise disk_full(self.out, error) from error

    def curve(self) -> None:
        """Draw PSNR over steps: of training pictures, and of test pictures where they were measured."""
        series = {
            label: [(entry["step"], entry[key]) for entry in self.log if key in entry]
            for label, key in (("training pictures", "psnr"), ("test pictures", "test_psnr"))
        }
        if any(series.values()):
            try:
                curves(self.out / CURVE, series, "PSNR of a training run", "step", "PSNR in dB")
            except OSError as error:
                raise disk_full(self.out, error) from error


#: What ``tempfile`` puts into the name of a file that is being written.
_CHANCE = "????????"


def claim(
    out: Path, settings: Settings, resume: bool, typed: Collection[str] | None = None
) -> tuple[Settings, SplatPlan | None]:
    """Makes the folder this run's; the settings and the plan it was begun with where it goes on.

    Raises ``UsageError`` for a folder that is not empty, and with the options that are not those of the run in it:
    those that are ``typed``, by default all that are not at their default.
    """
    if resume:
        return _claim_again(out, settings, typed)
    _claim_new(out)
    return settings, None


def _claim_again(out: Path, settings: Settings, typed: Collection[str] | None) -> tuple[Settings, SplatPlan | None]:
    """Return the settings and the plan that the run in a folder was begun with; remove files that it left half."""
    config = out / CONFIG
    if not config.is_file():
        raise UsageError(f"{out} holds no run that could go on.", [], ["leave --resume out to begin one"])
    try:
        stored = json.loads(config.read_text(encoding="utf-8"))
        begun = Settings.from_json(stored["settings"])
        planned = SplatPlan.from_json(stored["plan"]) if stored.get("plan") else None
    except (ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{config} is not what rung wrote: {error}", [], ["begin again in a new folder"]) from error
    other = options_that_differ(settings, begun, typed)
    if other:
        raise UsageError(
            f"{out} was begun with other options.",
            other,
            ["leave them out: --resume takes those it was begun with"],
        )
    for half in _half_written(out):
        half.unlink()
    return begun, planned


def _claim_new(out: Path) -> None:
    """Make the folder; raise ``UsageError`` where it is not empty or cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for half in out.glob(f".config-{_CHANCE}.json"):  # a run that was killed before it had begun
            half.unlink()
        if any(out.iterdir()):
            raise UsageError(
                f"{out} is not empty.",
                [],
                ["--resume goes on with a run that is there", "--out with a new folder"],
                code="output-exists",
            )
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written: {error.strerror or error}", [], ["--out elsewhere"], code="output-unwritable"
        ) from error


def _half_written(out: Path) -> Iterator[Path]:
    """Files that were being written when the run was killed."""
    yield from (out / checkpoint.FOLDER).glob(f".step-*-{_CHANCE}.npz")
    yield from (out / EXPORTS).glob(f".splats-*-{_CHANCE}.ply")
    yield from (out / TEST).rglob(f".*-{_CHANCE}.png")
    for name in (CONFIG, CAMERAS, METRICS, LOG, CURVE, PAGE, SPLATS):
        yield from out.glob(f".{Path(name).stem}-{_CHANCE}{Path(name).suffix}")


@contextmanager
def left_free(out: Path, resume: bool, note: Callable[[str], None]) -> Iterator[None]:
    """Empties the folder again when a new run is refused in the block, or stopped by Ctrl-C, before its first
    checkpoint: there is nothing to go on with. Cameras that were found are kept."""
    try:
        yield
    except DiskFull:
        raise
    except (RungError, KeyboardInterrupt) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        if any((out / checkpoint.FOLDER).glob("step-*")):
            if stopped:
                note(f"{out} is as its last checkpoint left it; --resume goes on")
            raise
        if resume:
            if stopped:
                note(f"{out} is as it was; --resume goes on")
            raise
        for name in (CONFIG, CAMERAS):
            (out / name).unlink(missing_ok=True)
        found = (out / "scene" / "sparse").is_dir()
        if found:
            note(f"the cameras that were found are kept in {out / 'scene'}, which is a scene to train on")
        else:
            shutil.rmtree(out / "scene", ignore_errors=True)
        if stopped:
            again = "train on them, into another folder" if found else "the same command begins again"
            note(f"training had not begun, so nothing is kept in {out}; {again}")
        raise


def finished_before(out: Path) -> dict[str, Any] | None:
    """The metrics of a run that is finished, None where it is not. Raises ``BadFile``."""
    path = out / METRICS
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except ValueError as error:
        raise BadFile(f"{path} is no JSON.", [], ["remove it: --resume makes it again"], code="json-invalid") from error
    return found if isinstance(found, dict) else None


class Interrupt:
    """Ctrl-C asks for the end of the step; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While in the block it is heard."""
        try:
            before = signal.signal(signal.SIGINT, self._on_signal)
        except ValueError:  # not the main thread: whoever called hears it
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
