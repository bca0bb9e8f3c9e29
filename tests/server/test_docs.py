"""The programs of docs/serve.md, run as they stand against a server."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from rung.server.api import ENDPOINTS

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"```sh\n(curl .*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda text: text.split()[1])
def test_programs_print_what_the_model_says(program, server, model, capsys):
    exec(compile(program.replace("http://127.0.0.1:8080", server.url), "serve.md", "exec"), {})
    assert capsys.readouterr().out == "".join(model.generate("hello", max_tokens=12)) + "\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_answered(command, server):
    words = shlex.split(command.replace("http://127.0.0.1:8080", server.url))
    said = subprocess.run(words, capture_output=True, check=True).stdout
    assert json.loads(said)["choices"]


def test_each_path_is_on_the_page():
    """Aliases without ``/v1`` apart."""
    assert len(PROGRAMS) >= 3
    paths = {row.path.partition("/{")[0] for row in ENDPOINTS}
    assert [path for path in sorted(paths) if f"`{path}`" not in PAGE and f"/v1{path}" not in paths] == []
