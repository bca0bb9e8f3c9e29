"""The screens before a command: ``rung`` alone, its help in groups, and tables at any width."""

from __future__ import annotations

import re

import pytest

from rung.cli.commands import COMMANDS, GROUPS
from rung.cli.views import output

ROW = ("quadro-p2200", "4.9 GB", "no matrix units, f16 and bf16 are emulated")


def test_rung_alone_asks_four_questions_with_a_command_each(rung):
    shown = rung()
    assert shown.code == 0
    for question in ("Will it run?", "Run it.", "Why did it fail?", "Make it smaller."):
        assert re.search(rf"^{re.escape(question)}.*\brung \w+", shown.out, re.M), question
    for command in re.findall(r"\brung (\w+)", shown.out):
        assert command in COMMANDS or command == "COMMAND", command


def test_rung_alone_asks_them_on_a_narrow_terminal_too(rung, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    shown = rung().out.splitlines()
    assert "Will it run?" in shown
    assert "Make it smaller." in shown


def test_help_names_every_command_in_its_group_in_whole_sentences(rung):
    shown = rung("--help").out
    assert "..." not in shown.split("Before you run")[1]
    parts = re.split("|".join(f"^{re.escape(group.title)}:$" for group in GROUPS), shown, flags=re.M)[1:]
    for group, part in zip(GROUPS, parts, strict=True):
        found = dict(re.findall(r"^  (\w+)  +(\S.*(?:\n   .*)*)", part, re.M))
        assert tuple(found) == group.commands
        assert all(text.rstrip().endswith(".") for text in found.values()), found


NEAR = {"chek": "Did you mean check", "foo": "There are check", "download": "rung pull", "/dev/null": "rung run"}


@pytest.mark.parametrize(("typed", "near"), NEAR.items())
def test_an_unknown_command_is_answered_with_those_that_exist(rung, typed, near):
    shown = rung(typed)
    assert shown.code == 2
    assert near in shown.err


@pytest.mark.parametrize("make", ["columns", "table"])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_tables_obey_columns_and_end_without_blanks(monkeypatch, capsys, make, width):
    monkeypatch.setenv("COLUMNS", str(width))
    if make == "columns":
        print("\n".join(output.columns(("device", "memory", "notes"), [ROW, ("cpu", "", "")])))
    else:
        table = output.table("device", "memory", "notes")
        table.add_row(*ROW)
        table.add_row("cpu", "", "")
        output.console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert lines == [line.rstrip() for line in lines]
    assert ("  memory 4.9 GB" in lines) == (width < 60)  # one fact a line where no table has room
    assert " ".join(" ".join(lines).split()).count("emulated") == 1


def test_piped_tables_are_as_wide_as_what_they_hold(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = output.table("device", "notes")
    table.add_row("cpu", "f32")
    output.console().print(table)
    assert capsys.readouterr().out == "device  notes\ncpu     f32\n"


def _functions():
    import importlib

    for name, module in COMMANDS.items():
        loaded = importlib.import_module(module)
        own = getattr(loaded, "COMMANDS", None)
        if isinstance(own, dict):
            yield from own.items()
        elif own:
            yield from ((each, getattr(importlib.import_module(f"{module}.{each}"), each)) for each in own)
        else:
            yield name, getattr(loaded, name)


def _parameters():
    import typing

    for name, function in _functions():
        for hint in typing.get_type_hints(function, include_extras=True).values():
            for info in getattr(hint, "__metadata__", ()):
                yield name, info.help


def test_every_option_is_described_by_a_phrase_of_its_own():
    """A phrase begins with a noun or a verb: "Rank of the adapter's matrices.", not "Of the adapter."."""
    bad = re.compile(r"(Of|What|Whether|At|In|By|With|And|From|Which|Those|Than|That)\b")
    found = list(_parameters())
    assert len(found) > 100
    assert not [(name, text) for name, text in found if not text or bad.match(text)]
