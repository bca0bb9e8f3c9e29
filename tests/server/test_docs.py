"""The programs of docs/serve.md, run as they stand against a server."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from rung.server.api import ENDPOINTS
from tests.server.conftest import serving

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


def test_what_is_typed_of_slots_saves_and_restores_them(tmp_path):
    lines = re.findall(r"^    (curl .*/(?:completion|slots/).*)$", PAGE, re.MULTILINE)
    with serving(tmp_path, "demo", "--slot-save-path", str(tmp_path / "slots")) as server:
        commands = [shlex.split(each.replace("http://127.0.0.1:8080", server.url)) for each in lines]
        said = [json.loads(subprocess.run(each, capture_output=True, check=True).stdout) for each in commands]
    completed, saved, erased, restored = said
    assert (completed["id_slot"], 0 < completed["tokens_predicted"] <= 4) == (0, True)
    assert saved["n_saved"] == erased["n_erased"] == restored["n_restored"] > 0
    assert saved["filename"] == restored["filename"] == "model.bin"


def test_each_path_is_on_the_page():
    """Aliases without ``/v1`` apart."""
    assert len(PROGRAMS) >= 3
    paths = {row.path.partition("/{")[0] for row in ENDPOINTS}
    assert [path for path in sorted(paths) if f"`{path}`" not in PAGE and f"/v1{path}" not in paths] == []
