"""An option that an error proposes is printed as the command that was typed, with it."""

import subprocess
import sys

import pytest

from rung.cli.ways_out import complete

RUN = ("rung", "run", "smollm2", "why is it?")


@pytest.mark.parametrize(
    ("way", "typed", "whole"),
    [
        ("--context 64", (*RUN, "--context", "99"), "rung run smollm2 'why is it?' --context 64"),
        ("--context 64", (*RUN, "--context=99", "--json"), "rung run smollm2 'why is it?' --context 64 --json"),
        ("--context 64", RUN, "rung run smollm2 'why is it?' --context 64"),
        ("--context 64", (*RUN, "--context"), "rung run smollm2 'why is it?' --context 64"),
        ("--keep '*down=q8_0'", RUN, "rung run smollm2 'why is it?' --keep '*down=q8_0'"),
        (
            "--offline   # if it is here",
            (*RUN, "--raw"),
            "rung run smollm2 'why is it?' --raw --offline   # if it is here",
        ),
        ("--offline", (*RUN, "--offline", "--raw"), "rung run smollm2 'why is it?' --offline --raw"),
        ("rung formats", RUN, "rung formats"),
        ("--format q4_k_m, --format q8_0", RUN, "--format q4_k_m, --format q8_0"),
        ("--device a --device b", RUN, "--device a --device b"),
        ("--device a", (*RUN, "--device", "b", "--device", "c"), "--device a"),
        ("--memory 4GB", ("rung", "exec", "--", "python", "x.py"), "--memory 4GB"),
        ("--memory 4GB", (*RUN, "word " * 200), "--memory 4GB"),
        ("--memory 4GB", (), "--memory 4GB"),
    ],
)
def test_an_option_alone_becomes_the_whole_command(way, typed, whole):
    assert complete(way, typed) == whole


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_what_an_error_proposes_can_be_pasted_and_works(rung, json):
    refused = rung("plan", "demo", "--context", "99999", *json)
    (line,) = [line for line in refused.err.splitlines() if line.startswith("  1  ")]
    name, *words = line.split()[1:]
    assert (refused.code, name) == (2, "rung")
    assert rung(*words).code == 0


def test_a_wrong_name_of_the_library_is_answered_by_python():
    said = subprocess.run([sys.executable, "-c", "import rung; rung.lod"], capture_output=True, text=True).stderr
    assert "Did you mean: 'load'?" in said
