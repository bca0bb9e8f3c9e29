"""A progress bar on stderr while a model is loaded; nothing when piped or quiet."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self


class Bar:
    """Shows bytes done of bytes in all under a label; appears with the first update."""

    def __init__(self, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr.isatty()
        self._progress: object | None = None
        self._task: object = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def update(self, label: str, done: int, total: int) -> None:
        """Moves the bar; it goes away when all is done."""
        if not self._shown or total <= 0:
            return
        if self._progress is None:
            self._start(label, total)
        self._progress.update(self._task, description=label, completed=done, total=total)  # type: ignore[attr-defined]
        if done >= total:
            self._stop()

    def _start(self, label: str, total: int) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        from rung.cli.output import console

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
        )
        progress = Progress(*columns, console=console(stderr=True), transient=True)
        progress.start()
        self._progress, self._task = progress, progress.add_task(label, total=total)

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()  # type: ignore[attr-defined]
            self._progress = None


def bar(quiet: bool) -> Bar:
    """A bar to use in a ``with`` block."""
    return Bar(quiet)
