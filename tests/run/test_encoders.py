"""Compiled encoders are believed after a check in a child process, once; else numpy encodes and that is said."""

from __future__ import annotations

import numpy as np
import pytest

from rung import formats
from rung.formats import Encoded
from rung.kernels.cpu import target
from rung.kernels.cpu.encode import encoding
from rung.run import worker
from rung.run.self_check import encoders

compiles = pytest.mark.skipif(not target.features(), reason="nothing is compiled here")
Q4_K, MXFP4 = formats.get("q4_k"), formats.get("mxfp4")


@pytest.fixture
def worker_calls(monkeypatch, tmp_path):
    """An empty cache of proofs, and the jobs that children are given."""
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    monkeypatch.setattr(encoding, "can_compile", lambda: True)
    monkeypatch.setattr(target, "lower_levels", list)
    jobs = []

    def run(received, limit, environment):
        jobs.extend(received)
        return [outcome for _ in received]

    outcome = worker.Outcome("returned", "")

    def answers(other):
        nonlocal outcome
        outcome = other
        return jobs

    monkeypatch.setattr(worker, "run", run)
    return answers


def test_a_proof_is_kept(worker_calls):
    jobs, notes = worker_calls(worker.Outcome("returned", "")), []
    assert encoders.prove([Q4_K, MXFP4, Q4_K], notes.append) == {Q4_K}
    assert encoders.prove([Q4_K], notes.append) == {Q4_K}
    assert [job.arguments["format"] for job in jobs] == ["q4_k"]
    assert notes == ["Compiling and checking 1 encoder for this machine, once."]


@pytest.mark.parametrize("how", ["crashed", "returned"])
def test_an_encoder_that_fails_is_said_each_time_and_not_tried_again(worker_calls, how):
    jobs, notes = worker_calls(worker.Outcome(how, "data of tied weights is another one", "illegal instruction")), []
    for _ in range(2):
        assert encoders.prove([Q4_K], notes.append) == frozenset()
    assert len(jobs) == 1
    assert sum(note.startswith("NumPy encodes q4_k, which takes longer: the compiled") for note in notes) == 2


def test_a_check_that_ran_out_of_time_is_made_again(worker_calls):
    jobs = worker_calls(worker.Outcome("timeout", error="no answer within 120 s"))
    assert encoders.prove([Q4_K]) == encoders.prove([Q4_K]) == frozenset()
    assert len(jobs) == 2


def test_without_a_compiler_numpy_encodes(monkeypatch):
    notes = []
    monkeypatch.setattr(encoding, "can_compile", lambda: False)
    assert encoders.prove([Q4_K], notes.append) == frozenset()
    assert encoders.prove([MXFP4], notes.append) == frozenset()
    assert len(notes) == 1
    assert notes[0].startswith("NumPy encodes, which takes longer")


@pytest.mark.slow
@compiles
def test_a_child_compiles_and_finds_all_of_them_right(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    all_formats = [formats.get(name) for name in (*encoding.FORMATS, "nf4:4096", "nf4:64:nested")]
    assert encoders.prove(all_formats) == frozenset(all_formats)


@compiles
@pytest.mark.parametrize("part", ["data", "errors"])
def test_a_wrong_byte_or_sum_is_found(part, monkeypatch):
    assert encoders.compare("q8_0", rows=3) == ""
    convert, errors = encoding.convert, encoding.errors

    def wrong(before, *more, **options):
        encoded = convert(before, *more, **options)
        data = encoded.parts["data"].copy()
        data[-1, -1] ^= 1
        return Encoded(encoded.format, encoded.shape, encoded.parts | {"data": data})

    if part == "data":
        monkeypatch.setattr(encoding, "convert", wrong)
        assert encoders.compare("q8_0", rows=3) == "data of normal weights is another one"
    else:
        monkeypatch.setattr(encoding, "errors", lambda *of: errors(*of) * (1 + 1e-8 * (np.arange(3) == 2)[:, None]))
        assert encoders.compare("q8_0", rows=3) == "the error of normal weights is another one"
