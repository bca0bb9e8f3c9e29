"""docs/README.md, the index by task: each command is one of the CLI with its options, each page is there."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from rung.cli.commands import command_line

DOCS = Path(__file__).parents[2] / "docs"
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"`rung (.*?)` \|", INDEX)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_index_is_read_by_the_command_line(line):
    words, command = shlex.split(line), typer.main.get_command(command_line(shlex.split(line)))
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"rung has no command {words[0]}"
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)  # raises for an option or an argument that it does not take


def test_the_index_is_whole_and_its_pages_are_there():
    assert len(COMMANDS) >= 15
    pages = re.findall(r"\]\((.*?\.md)\)", INDEX)
    assert [page for page in pages if not (DOCS / page).is_file()] == []
