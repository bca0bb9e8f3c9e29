"""The sessions of docs/bundle.md, as a person types them; the demo stands for the starter that they name."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from rung.engine.load import load
from rung.models.lookup import demo_path
from rung.models.store import folder, starters
from rung.models.store.folder import Manifest, StoredFile
from tests.bundle.conftest import PYTHON
from tests.tiny_starter import use_store

PAGE = (Path(__file__).parents[2] / "docs" / "bundle.md").read_text(encoding="utf-8")
#: Each command with what it prints.
SESSIONS = re.findall(r"^```\n\$ (.*)\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
ANSWER = "The capital of Japan is Tokyo."
TINY = Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-q4_0.gguf"


@pytest.fixture
def pulled(_cache, tmp_path, monkeypatch):
    """A folder to type in, and a store with both starters, whose files are others here."""
    use_store(tmp_path, monkeypatch)
    table = starters.TABLE.read_text(encoding="utf-8")
    for name, file in {"smollm2": demo_path(), "gemma3-270m": TINY}.items():
        data, starter = file.read_bytes(), starters.starters()[name]
        sha256 = hashlib.sha256(data).hexdigest()
        table = table.replace(f"size = {starter.size}", f"size = {len(data)}").replace(starter.sha256, sha256)
        manifest = Manifest(
            name, starter.title, starter.license, "q4_0", "a test", (StoredFile("a.gguf", len(data), sha256),)
        )
        manifest.folder.mkdir(parents=True)
        manifest.path.write_bytes(data)
        folder.write_manifest(manifest)
    (tmp_path / "starters.toml").write_text(table)
    monkeypatch.setattr(starters, "TABLE", tmp_path / "starters.toml")
    starters.starters.cache_clear()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    starters.starters.cache_clear()


def without_numbers(text: str) -> str:
    """A text with a mark for each size and count, on a machine whose device has proved itself already."""
    text = re.sub(
        r"^(?:Finding out what|Compiling and checking) .*\n",
        "",
        text.replace(os.environ["HOME"], "~"),
        flags=re.MULTILINE,
    )
    return re.sub(r"\d[\d.,]*", "N", re.sub(r"[kMG]B", "B", text.replace("1 core,", "1 cores,")))


def typed(command: str, rung) -> str:
    """The output of a command, its answer before the last line."""
    program, *words = shlex.split(command)
    if program == "rung":
        said = rung(*words)
        return said.err if said.code else said.out
    assert program == "python3"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA", "RUNG"))}
    said = subprocess.run([PYTHON, *words], env=plain, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    *before, last = said.stderr.splitlines(keepends=True)
    return "".join([*before, said.stdout, last])


def test_sessions_print_what_the_page_shows(pulled, rung):
    """Numbers and the model's answer are others here. ``--any-python`` has pip fetch packages, and is left out."""
    shown = {command: output for command, output in SESSIONS if not re.search("--(with|any)-python", command)}
    assert len(shown) == 3
    expected = "".join(load("demo", device="cpu").generate("What is the capital of Japan?", temperature=0))
    for command, output in shown.items():
        printed = typed(command, rung)
        assert without_numbers(printed) == without_numbers(output.replace(ANSWER, expected)), command


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="Python travels on Linux alone")
def test_the_session_with_python_prints_what_the_page_shows(pulled, rung):
    ((command, output),) = [each for each in SESSIONS if "--with-python" in each[0]]
    assert without_numbers(typed(command, rung)) == without_numbers(output)
    said = subprocess.run([output.splitlines()[-1], "--help"], capture_output=True, text=True)
    assert said.stdout.startswith("smollm2, with rung")
