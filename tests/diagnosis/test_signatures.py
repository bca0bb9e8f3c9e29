"""Patterns cost linear time, and the words that stand for them are sound."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("signature", signatures(), ids=lambda s: s.id)
def test_no_pattern_repeats_inside_a_repetition(signature):
    assert not any(repeats(_PARSER.parse(signature.text, re.MULTILINE)))


#: What makes backtracking expensive: near misses in a row, and what wildcards swallow. Lines are cut at 5,000 letters.
NASTY = (
    "a" * 5_000,
    " " * 5_000,
    "_a" * 2_500,
    "0" * 5_000,
    "a.b(" * 1_250,
    "x y " * 1_250,
    "'\"`" * 1_600,
    "é" * 5_000,
)


@pytest.mark.parametrize("signature", signatures(), ids=lambda s: s.id)
def test_no_text_makes_a_pattern_slow(signature):
    half = signature.example[: len(signature.example) // 2]
    own = [half * (5_000 // max(1, len(half))), (signature.example[:-1] + "~") * (5_000 // len(signature.example))]

    def seconds(text):
        before = time.thread_time()
        signature.pattern.search(text)
        return time.thread_time() - before

    for text in (*NASTY, *own):  # a disturbed one is tried again
        assert any(seconds(text) < 0.2 for _ in range(3)), text[:40]


@pytest.mark.parametrize("signature", signatures(), ids=lambda s: s.id)
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
