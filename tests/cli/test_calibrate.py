"""``rung calibrate``: which device is measured, what is kept of it, and what cannot be."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

import rung as package
from rung.core.types import Capability, Level, Proof
from rung.engine import planning
from rung.engine.calibration import importance
from rung.hardware import detect, probe_cache
from tests.planning.cards import cpu, p2200

FOUND = {"launch torch.decode q8_0": 2e-5, "layer gpu": 1e-4, "torch.decode q8_0": 5e10, "spread": 0.07}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a processor and that card; what is measured of either is said, not measured."""
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    measured = []

    def measure(device, threads, notify):
        measured.append(device.id)
        return FOUND

    monkeypatch.setattr(importance, "calibrate", measure)

    def have(*devices):
        monkeypatch.setattr(planning, "proven_devices", lambda on_probe, named=None: devices)
        monkeypatch.setattr(detect, "devices", lambda cached=True, software_adapters=False: devices)
        return measured

    return have


@pytest.mark.parametrize(
    ("options", "id"), [((), "cuda:0"), (("--device", "cuda"), "cuda:0"), (("--device", "cpu"), "cpu")]
)
def test_the_card_is_measured_unless_the_processor_is_asked_for(rung, machine, options, id):
    measured = machine(cpu(), p2200())
    said = rung("calibrate", *options, "--json")
    assert (said.code, measured) == (0, [id]), said.err
    assert json.loads(said.out) == {"device": id, "rates": FOUND, "note": ""}
    kept = {device.id: dict(probe_cache.recall(device).rates) for device in (cpu(), p2200())}
    assert kept == {"cpu": {}, "cuda:0": {}} | {id: FOUND}


def test_units_are_named_and_the_processor_is_not_forgotten(rung, machine):
    machine(cpu(), p2200())
    said = rung("calibrate")
    shown = dict(re.split("  +", line.strip()) for line in said.out.strip().splitlines())
    assert shown["launch torch.decode q8_0"] == "20.0 us"
    assert (shown["layer gpu"], shown["torch.decode q8_0"], shown["spread"]) == ("100.0 us", "50.0 G/s", "7%")
    assert "use these rates of Quadro P2200 from now on" in said.err
    assert "rung calibrate --device cpu" in said.err
    machine(cpu())
    assert "--device cpu" not in rung("calibrate").err


@pytest.mark.parametrize("name", ["p2200", "sim:p2200"])
def test_a_card_that_is_not_here_is_not_timed(rung, machine, name):
    measured = machine(cpu())
    said = rung("calibrate", "--device", name)
    assert (said.code, measured, said.out) == (2, [], "")
    assert "Quadro P2200 is not in this machine, so it cannot be timed." in said.err
    assert "the times would not be the card's" in said.err
    assert "rung check MODEL --device p2200" in said.err


def test_nor_one_that_a_block_simulates(rung, machine):
    with package.simulate("p2200"):
        said = rung("calibrate", "--device", "cuda:0")
    assert (said.code, "so it cannot be timed" in said.err) == (2, True)
    assert "rung check MODEL --device 'Quadro P2200'" in said.err


@pytest.mark.parametrize(("name", "words"), [("cuda:0", "There is no device 'cuda:0' here."), ("sim:p220", "P2200")])
def test_a_device_that_nobody_knows_is_a_wrong_question(rung, machine, name, words):
    measured = machine(cpu())
    said = rung("calibrate", "--device", name)
    assert (said.code, measured, words in said.err) == (2, [], True), said.err


def test_a_card_that_computes_nothing_or_is_full_says_so(rung, machine):
    absent = Capability("matmul.f32", Level.ABSENT, Proof.PROBE, "the driver does not answer")
    dead = replace(p2200(), capabilities=p2200().capabilities | {"matmul.f32": absent, "matmul.f16": absent})
    full = replace(p2200(), free=2**30)
    for card, words in ((dead, "the driver does not answer"), (full, "takes 2.0 GB of its memory")):
        measured = machine(cpu(), card)
        said = rung("calibrate", "--device", "cuda:0")
        assert (said.code, measured) == (1, [])
        assert words in said.err
        assert "rung calibrate --device cpu" in said.err
