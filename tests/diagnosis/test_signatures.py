"""Patterns cost linear time, and the words that stand for them are sound."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rows import each_row

from rung.diagnosis import signatures
from rung.diagnosis.anchors import anchors

_PARSER = re._parser


def repeats(tree, inside=False):
    """Unbounded repetitions, and whether one stands inside another."""
    for operation, argument in tree:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            _, high, body = argument
            unbounded = str(high) == "MAXREPEAT"
            if unbounded:
                yield inside
            yield from repeats(body, inside or unbounded)
        elif name == "SUBPATTERN":
            yield from repeats(argument[3], inside)
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from repeats(branch, inside)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from repeats(argument[1], inside)


@each_row("signature", signatures(), lambda s: s.id)
def test_no_pattern_repeats_inside_a_repetition(signature):
    assert not any(repeats(_PARSER.parse(signature.text, re.MULTILINE)))


@each_row("signature", signatures(), lambda s: s.id)
def test_an_example_holds_one_of_its_anchors(signature):
    words = anchors(signature.text)
    assert not words or any(word in signature.example.lower() for word in words)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("out of memory", {"out of memory"}),
        ("cuda|vulkan", {"cuda", "vulkan"}),
        (r"a?\d+ hello", {" hello"}),
        (r"(?:cat|dog) food", {" food"}),
        (r"\d+", set()),
        (r"x|y", set()),
        (r"(?i)HELLO\s+Worlds", {"worlds"}),
    ],
)
def test_anchors_of_plain_patterns(pattern, words):
    assert anchors(pattern) == words


@settings(deadline=None)  # one example may wait for a processor
@given(st.from_regex(r"(?:alpha|beta)+ \d{1,3} (?:gamma )?delta", fullmatch=True))
def test_every_match_holds_an_anchor(text):
    words = anchors(r"(?:alpha|beta)+ \d{1,3} (?:gamma )?delta")
    assert words
    assert any(word in text for word in words)
