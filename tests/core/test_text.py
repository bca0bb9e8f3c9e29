"""Sizes as people read and write them."""

import doctest

import pytest

from rung.core import text


def test_examples():
    assert doctest.testmod(text).failed == 0


@pytest.mark.parametrize(
    ("written", "count"),
    [("4.6GB", int(4.6 * 2**30)), ("500 MB", 500 * 2**20), ("2g", 2 * 2**30), ("1024", 1024), (".5GiB", 2**29)],
)
def test_sizes_are_read(written, count):
    assert text.parse_size(written) == count


@pytest.mark.parametrize("wrong", ["", "much", "-1GB", "0", "4.6XB", "1e3GB", "4..6GB"])
def test_what_is_no_size_is_refused(wrong):
    with pytest.raises(ValueError, match=r"size|above zero"):
        text.parse_size(wrong)


def test_did_you_mean():
    assert text.did_you_mean("q4k", ["q4_k", "nf4"]) == " Did you mean q4_k?"
    assert text.did_you_mean("zzz", ["q4_k"]) == ""
