"""Loading when the memory is full although the plan fitted: it is planned again with less."""

from dataclasses import replace
from pathlib import Path

import pytest

from rung.core.errors import DoesNotFit, OutOfMemory
from rung.core.types import StepClass
from rung.engine import load

MODEL = str(Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-q4_0.gguf")


@pytest.fixture
def full(monkeypatch):
    """Makes the first so many attempts to bind fail with an error; returns the plans that were tried."""
    tried = []

    def arrange(times, error):
        def bind(card, plan, devices, **others):
            tried.append(plan)
            if len(tried) <= times:
                raise error
            return plan

        monkeypatch.setattr(load, "bind_plan", bind)
        return tried

    return arrange


@pytest.fixture
def budgets(monkeypatch):
    """The budgets that plans were asked for; each plan after the first has half the context of the one before."""
    limits = []
    make = load.make_plan

    def planned(card, *, memory, **options):
        limits.append(memory)
        plan, devices = make(card, memory=None, **options)
        return replace(plan, context=plan.context >> (len(limits) - 1)), devices

    monkeypatch.setattr(load, "make_plan", planned)
    return limits


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemory("The memory of GPU is full.", ["16 MB were asked for"]),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_memory_is_planned_again_with_less(full, budgets, error):
    tried, steps, shown = full(2, error), [], []
    plan = load.load(MODEL, on_step=steps.append, on_plan=lambda plan, devices: shown.append(plan))
    assert plan is tried[2]
    assert shown == tried
    use = tried[0].placements[0].memory
    assert budgets[0] is None
    assert [list(budget) for budget in budgets[1:]] == [["cpu"], ["cpu"]]
    assert use.most - budgets[1]["cpu"] == pytest.approx(0.2 * (use.total - use.runtime), abs=1)
    assert [(step.op, step.step) for step in steps] == [("plan", StepClass.OUT_OF_MEMORY)] * 2
    assert [step.to.rpartition(" ")[2] for step in steps] == [str(p.context) for p in tried[1:]]


def test_when_no_smaller_plan_is_left_the_memory_is_to_blame(full):
    full(1, MemoryError())
    with pytest.raises(OutOfMemory, match="no smaller plan is left") as raised:
        load.load(MODEL)
    assert isinstance(raised.value.__cause__, DoesNotFit)
    assert raised.value.ways_out


@pytest.fixture
def shared(monkeypatch):
    """Have a card share the layers with the processor; returns the budgets that plans were asked for."""
    limits, make = [], load.make_plan

    def planned(card, *, memory, **options):
        limits.append(memory)
        plan, devices = make(card, memory=None, **options)
        (one,) = plan.placements
        return replace(plan, placements=(one, replace(one, device="webgpu:0"))), devices

    monkeypatch.setattr(load, "make_plan", planned)
    return limits


def test_a_processor_that_is_full_with_shared_layers_has_no_smaller_plan(full, shared):
    """With fewer layers on the card it would need more."""
    tried = full(1, MemoryError())
    with pytest.raises(OutOfMemory, match="no smaller plan is left"):
        load.load(MODEL)
    assert len(tried) == len(shared) == 1


def test_a_card_that_is_full_has_fewer_of_the_shared_layers(full, shared):
    tried = full(1, OutOfMemory("The memory of GPU is full.", ["16 MB were asked for"]))
    load.load(MODEL, memory="cpu=6GB")
    use = tried[0].placements[1].memory
    assert shared[1] == {"cpu": 6 * 2**30, "webgpu:0": int(use.most - 0.2 * (use.total - use.runtime))}


def test_another_error_is_no_question_of_memory(full, budgets):
    tried = full(1, KeyError("q"))
    with pytest.raises(KeyError):
        load.load(MODEL)
    assert len(tried) == 1


def test_it_does_not_try_for_ever(full, budgets):
    tried = full(99, MemoryError())
    with pytest.raises(MemoryError):
        load.load(MODEL)
    assert len(tried) == 4


def test_a_model_is_shown_by_its_plan():
    shown = repr(load.load(MODEL, context=64))
    assert shown.startswith("<Model llama-q4_0.gguf: stored on cpu, ")
    assert shown.endswith("context 64>")
