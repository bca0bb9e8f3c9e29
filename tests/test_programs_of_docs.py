"""The programs in the docs run as they stand, one page after the other in a folder of its own."""

import re
import shlex
from pathlib import Path

import pytest

from rung.cli.app import main

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [
    "quantize.md",
    "transformers.md",
    "peft.md",
    "bitsandbytes.md",
    "tune.md",
    "splats.md",
    "diffusers.md",
    "video.md",
    "compare.md",
    "library.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_programs_of_a_page(page, tmp_path, monkeypatch, capsys):
    """A block of output after a program is what it prints."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```\n(?:```\n(.*?)```)?", text, re.DOTALL)
    assert programs
    for program, output in programs:
        exec(compile(program, page, "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
        if output:
            assert printed == output


def test_commands_of_quantize(tmp_path, monkeypatch, capsys):
    """``rung quantize`` and ``rung convert`` print what the page says, seconds aside, on the model that it makes."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "quantize.md").read_text(encoding="utf-8").split("## Files", 1)[1]
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert program
    exec(compile(program[1], "quantize.md", "exec"), {"__name__": "__main__"})
    capsys.readouterr()
    commands = re.findall(r"^\$ rung (.*)\n((?:(?!\$ |```).*\n)*)", page, re.MULTILINE)
    assert commands
    for command, output in commands:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command))
        assert ended.value.code == 0
        printed = capsys.readouterr()
        assert _without_seconds(printed.err + printed.out) == _without_seconds(output), command


@pytest.mark.parametrize("page", ["../README.md", "check.md", "devices.md"])
def test_what_is_said_of_cards_that_are_not_here(page, tmp_path, monkeypatch, capsys):
    """``rung check`` and ``rung devices`` print what the pages show; ``...`` stands for what was left out."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    shown = re.findall(r"^\$ rung ((?:check|devices) .*)\n((?:(?!\$ |```).*\n)*)", text, re.MULTILINE)
    commands = [(command, output) for command, output in shown if "--trace" not in command]
    assert commands
    for command, output in commands:
        with pytest.raises(SystemExit):
            main(shlex.split(command))
        printed = " ".join("".join(capsys.readouterr()).split())
        for words in filter(None, (" ".join(part.split()) for part in output.split("..."))):
            assert words in printed, command
            printed = printed.partition(words)[2]


def _without_seconds(text):
    lines = re.sub(r"· [\d.]+ s", "· 0 s", text).splitlines()
    return [line.rstrip() for line in lines]
