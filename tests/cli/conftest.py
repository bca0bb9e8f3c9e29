"""The command line, called in this process: exit code, stdout and stderr."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rung.cli.app import main

FIXTURES = Path(__file__).parents[1] / "fixtures" / "gguf"


@dataclass
class Said:
    """The result of a command."""

    code: int
    out: str
    err: str


class Pipe(io.TextIOWrapper):
    """A stdin that is a pipe with that text in it."""

    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8")


@pytest.fixture
def rung(capsys, monkeypatch):
    """Calls ``rung`` with arguments; ``stdin`` is what is piped in."""

    def call(*arguments: str, stdin: str = "") -> Said:
        monkeypatch.setattr(sys, "stdin", Pipe(stdin))
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        return Said(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def model() -> str:
    """A tiny model: random weights, no chat template."""
    return str(FIXTURES / "llama-q4_0.gguf")
