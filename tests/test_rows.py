"""Tests for all rows of a table try each of them."""

from __future__ import annotations

import pytest

from tests.support.rows import each_row


def test_all_rows_are_tried_and_those_that_fail_are_named() -> None:
    tried = []

    @each_row("row", range(4))
    def check(row: int) -> None:
        """Fail in three ways."""
        tried.append(row)
        if row == 0:
            pytest.fail("by name")
        if row == 1:
            with pytest.raises(ValueError, match="nothing raises it"):
                pass
        assert row != 2

    with pytest.raises(BaseExceptionGroup, match="3 of 4 rows") as raised:
        check()
    assert tried == [0, 1, 2, 3]
    assert [error.__notes__ for error in raised.value.exceptions] == [["row: 0"], ["row: 1"], ["row: 2"]]


def test_rows_that_raise_exceptions_alone_give_a_group_of_exceptions() -> None:
    @each_row("row", ["one"])
    def check(row: str) -> None:
        raise KeyError(row)

    with pytest.raises(ExceptionGroup, match="1 of 1 rows"):
        check()
