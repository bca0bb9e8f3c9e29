"""Words wrapped while they stream, against the text that came and the width of each line."""

import io
import random
import sys
import textwrap
import unicodedata

import pytest

from rung.cli.views import output
from rung.cli.views.answer import WordWrapper, columns_of

PROSE = (
    "The fox, a small and clever animal, lives at the edge of the forest. It hunts at dusk; in winter its coat is "
    "thicker.\n\nList:\n  - a first item that is somewhat longer than the line\n  - a second\n"
)


def wrapped(text, width, pieces=None):
    shown = []
    wrapper = WordWrapper(shown.append, lambda: width)
    for piece in pieces or text:
        wrapper.push(piece)
    wrapper.finish()
    return "".join(shown)


def reference(text, width):
    """Python's own wrapping, a line of the text at a time."""
    options = {"drop_whitespace": True, "break_on_hyphens": False, "replace_whitespace": False}
    return "\n".join("\n".join(textwrap.wrap(line, width, **options)) for line in text.split("\n"))


@pytest.mark.parametrize("width", [10, 20, 33, 80, 1000])
def test_prose_is_wrapped_as_python_wraps_it_in_whatever_pieces_it_comes(width):
    random.seed(width)
    left, pieces = PROSE, []
    while left:
        cut = random.randint(1, 9)
        pieces.append(left[:cut])
        left = left[cut:]
    assert wrapped(PROSE, width, pieces) == reference(PROSE, width)


def test_code_is_left_alone():
    code = "```python\nprint('a line of code that is much longer than the terminal is wide')\n```\n"
    assert wrapped(code + PROSE, 20) == code + reference(PROSE, 20)


@pytest.mark.parametrize(
    "text",
    [
        "木のある森は静かで、狐はそこで暮らしている。" * 4,
        "한국어 문장은 띄어쓰기가 있다. " * 6,
        "e\u0301te\u0301 " * 40,
        "🦊🌲" * 30,
        "x" * 95,
    ],
)
@pytest.mark.parametrize("width", [7, 20])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(text, width):
    found = wrapped(text, width)
    for line in found.split("\n"):
        columns = sum(
            2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in line
        )
        assert columns <= width
        assert columns == columns_of(line)
        assert len(line) == 0 or unicodedata.combining(line[0]) == 0
    assert found.replace("\n", "").replace(" ", "") == text.replace(" ", "")


def test_a_terminal_that_gets_narrower_is_obeyed():
    width, shown = [40], []
    wrapper = WordWrapper(shown.append, lambda: width[0])
    wrapper.push("one two three four five ")
    width[0] = 10
    wrapper.push("six seven eight nine")
    wrapper.finish()
    assert "".join(shown) == "one two three four five\nsix seven\neight nine"


class Terminal(io.StringIO):
    """A stream that is a terminal, or a pipe."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_notes_end_at_words_on_a_terminal_and_stay_whole_in_a_pipe(monkeypatch, terminal):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", Terminal(terminal))
    way = "  1  rung run smollm2 --context 1088 --memory 0.4GB"
    said = f"{PROSE[:110]}\n  a fact that is longer than the forty columns of this terminal\n{way}"
    output.note(said)
    lines = sys.stderr.getvalue().splitlines()
    if not terminal:
        assert lines == said.split("\n")
        return
    assert lines[-1] == way, "a command that is cut cannot be pasted"
    assert max(map(len, lines[:-1])) <= 40
    assert " ".join(" ".join(lines[:-1]).split()) == " ".join(" ".join(said.split("\n")[:-1]).split())
    assert [line for line in lines if line.startswith("  ")][1].startswith("    ")
