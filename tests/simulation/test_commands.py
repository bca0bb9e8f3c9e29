"""``sim:NAME`` in the commands that compute, and names of the catalog in those that reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import rung as package
from rung.core.errors import UnknownDevice
from tests.cli.conftest import rung  # noqa: F401  the fixture that calls a command

MODEL = str(Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-q8_0.gguf")
QUESTION = (MODEL, "the", "--raw", "--max-tokens", "4", "--temperature", "0")


def test_run_computes_on_the_simulated_card(rung):  # noqa: F811
    said = rung("run", *QUESTION, "--device", "sim:p2200")
    assert said.code == 0, said.err
    assert "simulated Quadro P2200, 5.0 GB" in said.err
    assert "simulated: the times are not the card's" in said.err
    assert said.out == rung("run", *QUESTION, "--device", "cpu", "--format", "stored").out
    assert not torch.cuda.is_available()


def test_the_answer_as_json_says_what_ran_and_that_it_was_simulated(rung):  # noqa: F811
    said = rung("run", *QUESTION, "--device", "sim:2080ti", "--json")
    result = json.loads(said.out)
    assert result["simulated"] is True
    assert result["report"]["rungs"]["linear q8_0"] == "cuda.rows"
    assert result["plan"]["placements"][0]["device"] == "cuda:0"


def test_a_bare_name_that_is_not_here_gets_the_hint(rung):  # noqa: F811
    said = rung("run", *QUESTION, "--device", "p2200")
    assert said.code == 2
    assert "Quadro P2200 is not in this machine." in said.err
    assert "--device sim:p2200" in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", MODEL, "--format", "q4_0"),
        ("splat", "train", "demo", "--out", "splats"),
        ("tune", MODEL, "data.jsonl", "--out", "adapter"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_whatever_computes_answers_a_bare_name_with_the_hint(rung, arguments):  # noqa: F811
    said = rung(*arguments, "--device", "p2200")
    assert said.code == 2
    assert "Quadro P2200 is not in this machine." in said.err


def test_software_stands_beside_every_device_that_is_simulated_or_reasoned_about():
    """Not where the answer is the code in a file (inspect), which is the software, nor where nothing but what is here
    can be timed (calibrate)."""
    import importlib
    import inspect

    from rung.cli.commands import COMMANDS

    found = set()
    splat = COMMANDS["splat"]
    modules = {**COMMANDS, **{name: f"{splat}.{name}" for name in ("train", "eval", "render")}}
    for name in set(modules) - {"splat", "cache", "fleet"}:
        function = getattr(importlib.import_module(modules[name]), name)
        if "device" in inspect.signature(function).parameters:
            found.add((name, "software" in inspect.signature(function).parameters))
    assert {name for name, there in found if not there} == {"inspect", "calibrate"}
    assert len(found) > 10


def test_an_unknown_name_after_sim(rung):  # noqa: F811
    said = rung("run", *QUESTION, "--device", "sim:p220")
    assert said.code == 2
    assert "Did you mean" in said.err


def test_software_is_of_a_simulated_card_and_known(rung):  # noqa: F811
    said = rung("run", *QUESTION, "--software", "torch 2.3+cu121")
    assert (said.code, "--software is of a simulated card" in said.err) == (2, True)
    said = rung("run", *QUESTION, "--device", "sim:p2200", "--software", "torch 0.1+cu999")
    assert (said.code, "not 0.1" in said.err) == (2, True)


@pytest.mark.parametrize("name", ["p2200", "sim:p2200"])
def test_commands_that_reason_take_both_names(rung, name):  # noqa: F811
    assert "Quadro P2200" in rung("plan", MODEL, "--device", name).out
    assert "Quadro P2200" in rung("ladder", "linear", "q8_0", "--device", name).out
    assert "Quadro P2200" in rung("devices", name).out
    assert package.plan(MODEL, device=name).placements[0].device == "quadro-p2200"


def test_a_model_is_loaded_inside_the_block_or_not_at_all():
    with pytest.raises(UnknownDevice, match="not in this machine"):
        package.load(MODEL, device="sim:p2200")
    with package.simulate("RTX 2080 Ti"):
        model = package.load(MODEL, device="cuda:0")
        assert model.plan.placements[0].device == "cuda:0"
        assert torch.cuda.memory_allocated() > 0
        there = model.logits([1, 5, 9])
    here = package.load(MODEL, device="cpu").logits([1, 5, 9])  # with activations in int8 instead of f16
    assert (there - here).norm() < 0.03 * here.norm()


@pytest.mark.slow
def test_a_model_is_loaded_on_the_second_card_of_two():
    with package.simulate("3060", "3090"):
        model = package.load(MODEL, device="cuda:1")
        assert model.plan.placements[0].device == "cuda:1"
        assert torch.cuda.memory_allocated(0) == 0 < torch.cuda.memory_allocated(1)
        there = model.logits([1, 5, 9])
    here = package.load(MODEL, device="cpu").logits([1, 5, 9])
    assert (there - here).norm() < 0.03 * here.norm()


def test_two_cards_in_a_command(rung):  # noqa: F811
    said = rung("run", *QUESTION, "--device", "sim:2x3090")
    assert said.code == 0, said.err
    assert "simulated GeForce RTX 3090, 24.0 GB" in said.err


def test_wrong_numbers_are_found_by_the_self_check_on_the_card():
    """A card that multiplies f16 to NaN without a word: the rung is left before it is used."""
    import numpy as np

    from rung import formats
    from rung.core.types import StepClass
    from rung.core.value import FrozenDict
    from rung.run.binding import Binder
    from rung.run.journal import Journal

    values = np.random.default_rng(1).standard_normal((48, 64), dtype=np.float32)
    encoded = formats.encode(values, formats.get("f16"), "w")
    with package.simulate("GTX 1660", defects=[package.Defect("matmul", "f16")]) as card:
        journal = Journal()
        linear = Binder(card, journal, dtype="f16").linear(encoded)
        assert [r.name for r in linear.rungs] == ["ref", "ref"]
        assert torch.isfinite(linear(torch.ones(3, 64, device="cuda"))).all()
    (step,) = {(s.rung, s.step, s.to) for s in journal.report(FrozenDict(), FrozenDict()).steps}
    assert step == ("torch.decode", StepClass.BROKEN, "ref")
    assert "NaN" in journal.report(FrozenDict(), FrozenDict()).steps[0].reason


@pytest.mark.parametrize(
    ("name", "id"), [("RX 7900 XTX", "rocm:0"), ("Arc A770", "xpu:0"), ("M1 Pro", "mps")], ids=["amd", "intel", "apple"]
)
def test_a_model_runs_on_the_cards_of_every_vendor(name, id):
    here = package.load(MODEL, device="cpu").logits([1, 5, 9])
    with package.simulate(name):
        model = package.load(MODEL, device=id)  # left to the plan, a model this small may be faster on this processor
        assert model.plan.placements[0].device == id
        there = model.logits([1, 5, 9])
    assert (there - here).norm() < 0.03 * here.norm()
