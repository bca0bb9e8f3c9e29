"""``rung compare --fleet``: what nodes find is what one machine finds, whichever of them measures a format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_MODEL = str(Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-f16.gguf")
_FORMATS = ("--format", "q8_0", "--format", "q4_0", "--format", "nf4", "--context", "16")
#: Columns that depend on nothing but bytes.
_SAME = ("format", "weights", "KL", "perplexity", "agreement", "worst layer dB")


def _rows(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nodes_find_what_one_machine_finds(fleet, tmp_path):
    picture = tmp_path / "layers.svg"
    alone = _rows(fleet[0].rung("compare", _MODEL, *_FORMATS, "--json", seconds=300))
    done = fleet[1].rung("compare", _MODEL, *_FORMATS, "--fleet", "--picture", str(picture), "--json", seconds=300)
    together = _rows(done)
    assert [[row[name] for name in _SAME] for row in together] == [[row[name] for name in _SAME] for row in alone]
    assert {row["node"] for row in together} == {"one", "two"}
    assert all(row["tokens/s"] > 0 for row in together)
    assert "q4_0" in picture.read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "q4_9"), "q4_9"),
        (("--format", "q4_0", "--device", "sim:p2200"), "of a simulated card, and --fleet measures nodes"),
    ],
)
def test_what_nodes_cannot_measure_is_refused(fleet, options, said):
    done = fleet[0].rung("compare", _MODEL, *options, "--fleet", seconds=120)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_machine_that_is_in_no_fleet_says_so(machines):
    done = machines[2].rung("compare", _MODEL, "--format", "q4_0", "--fleet")
    assert "in no fleet" in done.stderr
