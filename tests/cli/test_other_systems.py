"""Commands where Python has no ``fcntl``, ``termios``, ``pty`` and ``resource``, as on Windows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys, tests.hidden_posix; from rung.cli.app import main; main()"
MODEL = str(ROOT / "tests" / "fixtures" / "gguf" / "llama-q4_0.gguf")


def run(*arguments: str, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command with these modules hidden, and a store of its own."""
    import os

    variables = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "RUNG_MODELS": str(home)}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=variables, cwd=home)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["check", "gemma-2b", "--device", "p2200"], "Gemma 2B on a Quadro P2200: yes"),
        (["explain", "CUDA out of memory", "--device", "p2200"], "memory"),
        (["list"], "smollm2"),
        (["pull", "nothing-of-that-name"], "nothing-of-that-name"),
        (["run", MODEL, "the quick", "--max-tokens", "4", "--json"], '"tokens"'),
        (["devices"], "cpu"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_run_without_what_only_posix_has(tmp_path, arguments, shown):
    done = run(*arguments, home=tmp_path)
    assert shown in done.stdout + done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert "rung itself failed" not in done.stderr


def test_a_conversation_runs_without_a_terminals_modules(tmp_path):
    done = run("run", MODEL, "--max-tokens", "3", "--raw", "--json", home=tmp_path, stdin="the quick")
    assert len(json.loads(done.stdout)["tokens"]) == 3
