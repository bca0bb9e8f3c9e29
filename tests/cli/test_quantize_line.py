"""The last line of ``rung quantize``: what the file was and is, in one unit where both are small."""

import pytest

from rung.cli.views.quantize import shrunk


@pytest.mark.parametrize(
    ("after", "before", "line"),
    [
        (99 << 20, 269 << 20, "99 MB (was 269 MB)"),
        (4 << 30, 13 << 30, "4.0 GB (was 13.0 GB)"),
        (900 << 20, 2 << 30, "0.9 GB (was 2.0 GB)"),
    ],
)
def test_both_sizes_are_in_units_that_compare(after, before, line):
    assert shrunk(after, before) == line
