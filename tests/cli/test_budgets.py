"""An unclear budget ends every command that takes one with the right spelling."""

from __future__ import annotations

import shlex

import pytest


@pytest.mark.parametrize("command", ["check", "plan", "run"])
def test_commands_refuse_it_alike(rung, command):
    prompt = ("hello",) if command == "run" else ()
    said = rung(command, "demo", *prompt, "--memory", "4,6GB")
    assert said.code == 2
    assert f"1  rung {shlex.join([command, 'demo', *prompt])} --memory 4.6GB" in said.err


@pytest.mark.parametrize("command", ["check", "plan", "run"])
def test_a_model_that_is_not_there_is_a_wrong_question_everywhere(rung, command, tmp_path):
    said = rung(command, str(tmp_path / "no.gguf"))
    assert said.code == 2
    assert "no.gguf" in said.err
