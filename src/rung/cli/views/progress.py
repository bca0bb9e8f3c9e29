"""A progress bar on stderr while a model is loaded; nothing when piped or quiet."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Shows bytes done of bytes in all under a label, or, ``counted``, steps; appears with the first update."""

    def __init__(self, quiet: bool, counted: bool) -> None:
        self._shown, self._counted = not quiet and sys.stderr.isatty(), counted
        self._progress: Progress | None = None
        self._task: TaskID | None = None

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
        progress = self._progress or self._start(label, total)
        assert self._task is not None
        progress.update(self._task, description=label, completed=done, total=total)
        if done >= total:
            self._stop()

    def _start(self, label: str, total: int) -> Progress:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        from rung.cli.views.output import console

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn() if self._counted else DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
        )
        progress = Progress(*columns, console=console(stderr=True), transient=True)
        progress.start()
        self._progress, self._task = progress, progress.add_task(label, total=total)
        return progress

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def bar(quiet: bool, counted: bool = False) -> Bar:
    """A bar to use in a ``with`` block."""
    return Bar(quiet, counted)
