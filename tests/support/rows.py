"""One test for all rows of a table, where a test for each would cost pytest more than the check costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_row(name: str, rows: Iterable[Any], ids: Callable[[Any], str] = str) -> Callable[..., Callable[[], None]]:
    """Return a decorator of a test that takes ``name`` alone: it becomes one test that runs for every row.

    All rows are tried. The test raises ``ExceptionGroup`` with what each row raised, and a note with the row's id:
    ``BaseExceptionGroup`` where a row failed by ``pytest.fail`` or ``pytest.raises``. A row may not skip: that would
    end the whole test.
    """
    table = list(rows)

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def run() -> None:
            failed: list[BaseException] = []
            for row in table:
                try:
                    test(**{name: row})
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"{name}: {ids(row)}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(table)} rows", failed)

        assert table, "a table without rows checks nothing"
        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        return run

    return decorate
