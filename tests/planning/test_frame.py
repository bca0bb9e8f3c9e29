"""Every plan says its memory, speed, verdict and choices in the same words, and reads its own JSON."""

import dataclasses
import json

import pytest

from rung.core.types import (
    Candidate,
    Device,
    MemoryUse,
    Placement,
    Plan,
    PlanFrame,
    no,
)
from rung.core.value import FrozenDict
from rung.planning.pipeline import NetworkStorage, PhasesPlan, PlannedPhase
from rung.splats.planning import SplatPlan
from rung.training.fitting import Fit

GB = 2**30
USE = MemoryUse(weights=2 * GB, kv_cache=GB // 2, activations=0, workspace=0, runtime=GB // 2, bound=GB)
SMALL = MemoryUse(weights=GB, kv_cache=0, activations=0, workspace=0, runtime=0)
BUDGET = 4 * GB
PLACES = (Placement("cuda:0", 0, 6, USE, BUDGET), Placement("cpu", 6, 8, SMALL, BUDGET))
REFUSED = Candidate("f16", "f16", PLACES, 64, 6.5, 1200.0, 99.0, no("too large"))
MODEL = Plan("m", "q8_0", "f16", "f16", 64, PLACES, (), "", 2, 6.5, 1200.0, 45.0, ("fits",), (REFUSED,))
STORAGE = FrozenDict({"text": NetworkStorage("f16", "f16", 1)})
PHASES = PhasesPlan("cuda:0", BUDGET, (PlannedPhase("encode", STORAGE, SMALL), PlannedPhase("denoise", STORAGE, USE)))
SPLATS = SplatPlan("cuda:0", "ref", 9, 3, 8, 8, 1.0, 0, 90, 3.0, 30.0, USE, BUDGET)
TRAINING = Fit(Device("cuda:0", "cuda", "a card", "sm_61", BUDGET), "f16", False, 1, 1, USE, BUDGET, 0)
ALL = {"model": MODEL, "pipeline": PHASES, "splats": SPLATS, "training": TRAINING}


@pytest.mark.parametrize("plan", ALL.values(), ids=ALL.keys())
def test_each_plan_says_its_largest_memory_of_its_budget(plan: PlanFrame):
    assert plan.memory_words().startswith("3.0 GB of 4.0 GB")
    assert plan.memory_words(named=True).startswith("3.0 GB of 4.0 GB on cuda:0")
    first = plan.summary()["memory"][0]
    assert (first["device"], first["budget"], first["total"]) == ("cuda:0", BUDGET, 3 * GB)
    assert sum(first[name] for name in USE.parts() if name != "total") == 3 * GB
    assert plan.summary()["verdict"] == {"ok": True, "reason": ""}
    json.dumps(plan.summary(), allow_nan=False)


TIGHT = {
    "model": dataclasses.replace(MODEL, placements=(dataclasses.replace(PLACES[0], budget=BUDGET - 1), PLACES[1])),
    "pipeline": dataclasses.replace(PHASES, budget=BUDGET - 1),
    "splats": dataclasses.replace(SPLATS, budget=BUDGET - 1),
    "training": dataclasses.replace(TRAINING, budget=BUDGET - 1),
}


@pytest.mark.parametrize("plan", TIGHT.values(), ids=TIGHT.keys())
def test_a_byte_less_than_the_prediction_with_its_bound_does_not_fit(plan: PlanFrame):
    assert not plan.verdict.ok
    assert plan.summary()["verdict"]["reason"] == "needs 4.0 GB of 4.0 GB on cuda:0"


@pytest.mark.parametrize("plan", [MODEL, PHASES, SPLATS], ids=lambda plan: type(plan).__name__)
def test_a_plan_reads_what_it_wrote_now_and_before_there_was_a_summary(plan):
    written = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert type(plan).from_json(written) == plan
    del written["summary"]
    assert type(plan).from_json(written) == plan


def test_a_plan_says_why_others_were_not_chosen():
    (other,) = MODEL.summary()["choices"]
    assert other["verdict"] == {"ok": False, "reason": "too large"}
    assert MODEL.summary()["speed"] == ["6.5 tokens/s", "1,200 tokens/s of a prompt"]
    assert SPLATS.summary()["speed"][0] == "3 steps/s"
