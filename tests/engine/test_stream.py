"""Text as it grows: whole characters, and never part of a stop string."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.core.errors import UsageError
from rung.engine.generation import StopStrings, TextStream
from rung.engine.tokenizers.tokenizer import Tokenizer


def bytes_tokenizer() -> Tokenizer:
    """One token a byte, so that every character beyond ASCII is split; token 0 is a control token."""
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<s>", *(f"<0x{value:02X}>" for value in range(256))],
            "tokenizer.ggml.scores": [0.0] * 257,
            "tokenizer.ggml.token_type": [3] + [6] * 256,
        }
    )


def tokens(text: str) -> list[int]:
    return [value + 1 for value in text.encode()]


def run(text: str, stops: list[str]) -> tuple[list[str], TextStream]:
    stream = TextStream(bytes_tokenizer(), stops)
    parts = []
    for token in tokens(text):
        parts.append(stream.push(token))
        if stream.stopped:
            break
    parts.append(stream.finish())
    return parts, stream


def test_characters_come_whole() -> None:
    parts, stream = run("né👍🏽!", [])
    assert [part for part in parts if part] == ["n", "é", "👍", "🏽", "!"]
    assert not stream.stopped


def test_a_stop_string_is_never_shown_not_even_its_beginning() -> None:
    parts, stream = run("Hello STOP there", ["STOP"])
    assert "".join(parts) == "Hello "
    assert stream.stopped
    assert stream.stop == "STOP"
    assert "S" not in "".join(parts)


def test_what_only_looked_like_a_stop_string_is_shown_late_but_shown() -> None:
    parts, stream = run("STO STOPP", ["STOPS"])
    assert "".join(parts) == "STO STOPP"
    assert parts[:3] == ["", "", ""]
    assert parts[3] == "STO "
    assert not stream.stopped


def test_the_end_of_an_answer_shows_what_was_held_back() -> None:
    parts, _ = run("wait ST", ["STOP"])
    assert parts[-1] == "ST"
    assert "".join(parts) == "wait ST"


def test_a_stop_string_beyond_ascii_in_the_middle_of_a_character() -> None:
    parts, stream = run("ab終わり", ["終わ"])
    assert "".join(parts) == "ab"
    assert stream.stopped


def test_a_character_cut_short_is_replaced_and_may_complete_nothing() -> None:
    stream = TextStream(bytes_tokenizer(), ["x"])
    assert [stream.push(token) for token in tokens("é")[:1]] == [""]
    assert stream.finish() == "\ufffd"


def test_overlapping_beginnings() -> None:
    assert "".join(run("aaab", ["aab"])[0]) == "a"
    assert "".join(run("ababac", ["abac"])[0]) == "ab"
    assert "".join(run("xyabcd", ["abc", "yabcde", "b"])[0]) == "xya"[:3]


def test_of_stops_that_begin_together_the_longer_one_in_one_piece() -> None:
    stops = StopStrings(["ab", "abc"])
    assert stops.push("xabc") == "x"
    assert stops.found == "abc"
    assert stops.push("more") == ""
    assert stops.finish() == ""


def test_control_tokens_are_not_text() -> None:
    stream = TextStream(bytes_tokenizer(), [])
    assert stream.push(0) == ""
    assert stream.push(tokens("a")[0]) == "a"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError):
        TextStream(bytes_tokenizer(), [""])


@settings(deadline=None)  # one example may wait for a processor
@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.integers())
def test_the_text_is_what_comes_before_the_first_completed_stop(text: str, stops: list[str], seed: int) -> None:
    cuts = random.Random(seed)
    found = StopStrings(stops)
    out, rest = "", text
    while rest and found.found is None:
        count = cuts.randint(1, 3)
        out += found.push(rest[:count])
        assert text.startswith(out)
        rest = rest[count:]
    out += found.finish()
    if found.found is None:
        assert out == text
        assert not any(stop in text for stop in stops)
    else:
        assert text.startswith(out + found.found)
        assert not any(stop in out for stop in stops)
