"""``rung plan`` and ``rung ladder``: tables, JSON, and a machine without torch."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest

from rung.core.types import Plan
from rung.core.value import FrozenDict
from rung.hardware import detect
from rung.ops import LADDERS


def test_a_plan_in_words_has_the_reason_and_every_candidate(rung, model):
    said = rung("plan", model)
    assert said.code == 0
    first, *rest = said.out.splitlines()
    assert first.startswith("CPU, ")
    assert "the formats are kept as they are stored" in first
    assert first.endswith("context 128")
    assert any(line.startswith("stored") and line.rstrip().endswith("yes") for line in rest)
    assert any("q4_0:" in line for line in rest), "what the tensors are stored in"


def test_a_plan_as_json_is_a_plan(rung, model):
    plan = Plan.from_json(json.loads(rung("plan", model, "--json", "--context", "64").out))
    assert (plan.context, plan.format) == (64, "stored")
    assert plan.memory <= sum(placement.budget for placement in plan.placements)


def test_the_ways_out_of_a_plan_that_does_not_fit_work(rung, model):
    size = Plan.from_json(json.loads(rung("plan", model, "--json").out)).memory
    said = rung("plan", model, "--memory", str(size - 4096))
    assert said.code == 1
    assert "does not fit" in said.err
    ways = [line.split("rung run ")[1].split() for line in said.err.splitlines() if "rung run " in line]
    assert ways
    for way in ways:
        assert rung("plan", *way).code == 0


def test_the_ways_out_of_a_card_that_is_not_here_work_as_pasted(rung):
    """The device keeps the name that was typed, and the command is the one that takes it."""
    said = rung("plan", "llama-3.1-8b", "--device", "p2200", "--context", "2048")
    assert said.code == 1
    assert "on Quadro P2200" in said.err
    ways = [line.split("rung ", 1)[1] for line in said.err.splitlines() if "  rung " in line]
    assert "plan llama-3.1-8b --format q4_0 --device p2200+cpu --context 2048" in ways
    for way in ways:
        assert rung(*shlex.split(way)).code == 0, way


def test_the_ways_out_of_a_simulated_run_keep_the_simulation(rung, model):
    said = rung("run", model, "hi", "--device", "sim:p2200", "--memory", "2MB")
    ways = [line for line in said.err.splitlines() if "rung run " in line]
    assert ways
    assert all("--device sim:p2200" in way for way in ways)


@pytest.mark.parametrize("where", ["p2200+cpu", "2xp2200"])
def test_several_devices_are_one_budget_as_in_check(rung, where):
    arguments = ("llama-3.1-8b", "--device", where, "--format", "q4_0", "--context", "2048", "--json")
    plan = Plan.from_json(json.loads(rung("plan", *arguments).out))
    (choice,) = json.loads(rung("check", *arguments).out)["choices"]
    assert len(plan.placements) == 2
    assert plan.memory == pytest.approx(choice["memory"]["total"], rel=1e-3)
    assert sum(placement.last - placement.first for placement in plan.placements) == 32


def test_several_devices_that_are_too_small_are_refused_together(rung):
    said = rung("plan", "llama-3.1-70b", "--device", "2xp2200")
    assert said.code == 1
    assert re.search(r"devices with [\d.]+ GB free together", said.err)


def test_a_network_of_transformers_is_planned_on_one_device(rung):
    said = rung("plan", "mixtral", "--device", "2x4090")
    assert said.code == 2
    assert "on one device" in said.err


def test_a_budget_above_the_device_is_said(rung):
    said = rung("plan", "gemma-2b", "--device", "p2200", "--memory", "20GB")
    assert "Quadro P2200 has less than --memory 20.0 GB: 4.9 GB is counted there." in said.err


def test_a_plan_that_is_waited_for_is_called_slow(rung):
    rows = rung("plan", "llama-3.1-8b", "--device", "arc pro b50", "--format", "q8_0").out.splitlines()
    assert rows[-1].startswith("q8_0")
    assert rows[-1].rstrip().endswith("slow")


def test_without_numba_the_plan_is_for_this_machine_with_it(rung, model, monkeypatch):
    (cpu, *others) = detect.devices()
    bare = replace(cpu, software=FrozenDict({n: v for n, v in cpu.software.items() if n not in ("torch", "numba")}))
    monkeypatch.setattr(detect, "devices", lambda cached=True: (bare, *others))
    said = rung("plan", model)
    assert said.code == 0, said.err
    assert "planned as if numba were installed: pip install 'rung[lean]'" in said.out
    assert any(line.startswith("stored") and line.rstrip().endswith("yes") for line in said.out.splitlines())


@pytest.mark.parametrize("op", ["linear", "embedding", "attention", "decode_step", "sample", "rasterize"])
def test_a_ladder_shows_every_rung_with_one_chosen_and_a_reason_for_each_no(rung, op):
    name = {"attention": "f16", "decode_step": "f16", "rasterize": "f32", "sample": "f32"}.get(op, "q4_k")
    found = json.loads(rung("ladder", op, name, "--json").out)["rungs"]
    cases = {row["case"] for row in found}
    for case in cases:
        rows = [row for row in found if row["case"] == case]
        assert [row["rung"] for row in rows] == [one.name for one in LADDERS[op].rungs]
        assert [row["state"] for row in rows].count("chosen") == 1
        assert all(row["reason"] for row in rows if row["state"] == "not here")
        before = rows[: [row["state"] for row in rows].index("chosen")]
        assert {row["state"] for row in before} <= {"not here"}
    table = rung("ladder", op, name).out
    assert table.startswith(f"{op} {name} on ")
    assert all(row["rung"] in table and row["reason"] in table for row in found)


@pytest.mark.parametrize(
    ("device", "format", "dtype"),
    [("v100", "q4_k", "f16"), ("3090", "q4_k", "bf16"), ("p2200", "q4_k", "f32"), ("v100", "f32", "f32")],
)
def test_a_ladder_is_asked_in_what_a_plan_computes_in(rung, device, format, dtype):
    found = json.loads(rung("ladder", "linear", format, "--device", device, "--json").out)
    assert found["dtype"] == dtype
    assert rung("ladder", "linear", format, "--device", device).out.splitlines()[0].endswith(f" in {dtype}")
    assert json.loads(rung("ladder", "attention", "f16", "--device", device, "--json").out)["dtype"] == "f32"


def test_a_ladder_is_asked_in_the_dtype_that_is_named(rung):
    def chosen(*options):
        found = json.loads(rung("ladder", "linear", "q4_k", "--device", "k80", *options, "--json").out)["rungs"]
        return {row["rung"] for row in found if row["state"] == "chosen"}

    assert chosen() == chosen("--dtype", "f32") == {"torch.decode"}
    assert chosen("--dtype", "bf16") == {"ref"}  # it multiplies none
    assert "attention is not computed in 'f16'." in rung("ladder", "attention", "f16", "--dtype", "f16").err
    assert rung("ladder", "linear", "q4_k", "--dtype", "half").code == 2


def test_a_configuration_alone_is_for_check(rung, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    said = rung("plan", str(tmp_path))
    assert said.code != 0
    assert f"rung check {tmp_path}" in said.err
