"""Hold what a run leaves in its folder beside the checkpoints: splats, cameras, a log, a curve, metrics, test
pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from rung.core.files import write_whole, written_whole
from rung.measure.curves import curves
from rung.models.card import View
from rung.splats.cameras import CAMERAS
from rung.splats.cloud import Cloud
from rung.splats.files import write
from rung.splats.planning import SplatPlan
from rung.splats.trained import CONFIG, METRICS, SPLATS
from rung.splats.training.checkpoint import disk_full
from rung.splats.training.settings import Settings

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
