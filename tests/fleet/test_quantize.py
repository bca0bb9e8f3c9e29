"""``rung quantize --fleet``: nodes encode, and the file is that of one machine."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

_SOURCE = str(Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-f16.gguf")


#: Encodes 400 pieces on the nodes of a fleet, and ends these processes in the middle of them.
_ENDING = """
import os, sys, numpy
from rung import formats
from rung.conversion.tensor_pieces import Piece
from rung.fleet import ray_node
with ray_node.connected():
    from rung.fleet.work.pieces import Encoders
    nodes = Encoders(print)
    before = formats.encode(numpy.ones((64, 256), numpy.float32), formats.get("f32"), "a")
    def pieces():
        for number in range(400):
            for pid in sys.argv[1:] if number == 200 else ():
                os.kill(int(pid), 9)
            yield Piece(number, 0, before, formats.get("q4_0"), "a", None, True)
    print(len({piece.number for piece, _ in nodes(pieces())}), "are done")
    nodes.end()
"""


def _pieces_of(done):
    return {name: int(count) for name, count in re.findall(r"(one|two) (\d+)", done.stderr)}


def _encoder(machine):
    until = time.monotonic() + 60
    while not (found := machine.processes_named("ray::Encoder")):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found[0]


@pytest.mark.parametrize("driver", [0, 1])
def test_the_file_is_that_of_one_machine(fleet, tmp_path, driver):
    machine = fleet[driver]
    alone, together = tmp_path / "alone.gguf", tmp_path / "together.gguf"
    assert machine.rung("quantize", _SOURCE, str(alone), "--format", "q4_0").returncode == 0
    for _ in range(8):  # where one begins late the other one may have done all of so small a file
        together.unlink(missing_ok=True)
        done = machine.rung("quantize", _SOURCE, str(together), "--format", "q4_0", "--fleet", seconds=120)
        assert done.returncode == 0, done.stderr
        assert together.read_bytes() == alone.read_bytes()
        assert sum(_pieces_of(done).values()) == 21
        if _pieces_of(done).keys() == {"one", "two"}:
            return
    raise AssertionError(done.stderr)


def test_encoders_that_end_are_begun_again_without_a_word(fleet, tmp_path):
    head = fleet[0]
    head.rung("quantize", _SOURCE, str(tmp_path / "first.gguf"), "--format", "q4_0", "--fleet", seconds=120)
    before = [_encoder(machine) for machine in fleet[:2]]
    done = head.rung_python("-c", _ENDING, *map(str, before))
    assert done.stdout == "400 are done\n", done.stderr
    assert not {*before} & {_encoder(machine) for machine in fleet[:2]}


def test_what_is_judged_by_a_text_is_refused(fleet, tmp_path):
    done = fleet[0].rung("quantize", _SOURCE, str(tmp_path / "a.gguf"), "--size", "1MB", "--fleet")
    assert done.returncode != 0
    assert "--format alone" in done.stderr


def test_a_machine_that_is_in_no_fleet_says_so(machines, tmp_path):
    done = machines[2].rung("quantize", _SOURCE, str(tmp_path / "a.gguf"), "--format", "q4_0", "--fleet")
    assert "in no fleet" in done.stderr


@pytest.mark.parametrize("hanging", [0, 1])
def test_encoders_stay_and_one_that_hangs_is_not_waited_for(fleet, tmp_path, hanging):
    head = fleet[0]
    head.rung("quantize", _SOURCE, str(tmp_path / "first.gguf"), "--format", "q4_0", "--fleet", seconds=120)
    encoders = [_encoder(machine) for machine in fleet[:2]]
    os.kill(encoders[hanging], signal.SIGSTOP)
    try:
        together = tmp_path / "together.gguf"
        done = head.rung("quantize", _SOURCE, str(together), "--format", "q8_0", "--fleet", seconds=120)
        assert done.returncode == 0, done.stderr
        assert _pieces_of(done) == {"two" if hanging == 0 else "one": 21}
    finally:
        os.kill(encoders[hanging], signal.SIGCONT)
    alone = tmp_path / "alone.gguf"
    assert head.rung("quantize", _SOURCE, str(alone), "--format", "q8_0").returncode == 0
    assert together.read_bytes() == alone.read_bytes()
    assert [_encoder(machine) for machine in fleet[:2]] == encoders
