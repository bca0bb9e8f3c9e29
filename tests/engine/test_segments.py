"""Layers that a device of WebGPU and the processor share: numbers and answers of a model that lies on one of them."""

import numpy as np
import pytest
from tests.fixtures import references
from tests.support.devices import software_adapter
from tests.support.lora import write_lora

import rung
from rung.core.types import StepClass
from rung.planning import placement

adapter = software_adapter()
PROMPTS = ["A plan", "Memory is", "The model runs on a device with", "Precision of"]
GREEDY = {"max_tokens": 10, "temperature": 0, "raw": True}
#: Which device has the first layers.
ORDERS = ("webgpu", "cpu")
#: One with windows and norms behind products, in float32, and one with weights of eight bits.
FEW = ("gemma3-f32", "gemma2-q8_0")


def load(name, device, **options):
    if name == "demo":
        return rung.load("demo", device=device, context=256, **options)
    fixture = references.fixture(name)
    return rung.load(str(fixture.path), device=device, context=fixture.context, **options)


@pytest.fixture(params=ORDERS)
def order(request, monkeypatch):
    """Have one of the devices take the first layers, whichever would be faster."""
    plain = placement.arrange_in_order

    def shared(plans, storage, devices, *others):
        card = next(each for each in devices if each.kind == "webgpu")
        alone = placement.arrange(plans, storage, (card,), *others)
        if alone.over <= 0:
            return alone
        return plain(plans, storage, sorted(devices, key=lambda each: each.kind != request.param), *others)

    monkeypatch.setattr(placement, "arrange_shared", shared)
    return request.param


@pytest.fixture
def shared(adapter):
    """A function that loads a model with fewer layers on the adapter than it has, by a budget."""

    def load_shared(name, **options):
        whole = load(name, adapter.id, **options)
        budget = whole.plan.placements[0].memory.most - 1
        found = load(name, adapter.id, memory={adapter.id: budget}, **options)
        assert {each.device for each in found.plan.placements} == {adapter.id, "cpu"}
        return found

    return load_shared


@pytest.mark.parametrize("name", [FEW[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FEW[1:])])
def test_logits_are_those_of_transformers(shared, order, name):
    """As a prompt and token by token; no further away than the processor's, whose products are of int8."""
    model, recorded = shared(name, cache_type="f32"), np.load(references.FOLDER / f"{name}.npz")
    assert model.plan.placements[0].device.startswith(order)
    assert model.backend.step.names.count("webgpu.") == 1
    right, ids = recorded["logits"].astype(np.float32), recorded["ids"].tolist()
    here = np.asarray(load(name, "cpu", cache_type="f32").logits(ids))
    bar = 1e-11 if name.endswith("f32") else max(1e-3, references.agreement(right, here).divergence)
    for found in (np.asarray(model.logits(ids)), references.token_by_token(model, recorded["ids"])):
        agreement = references.agreement(right, found)
        assert agreement.divergence < bar
        assert agreement.same_choice > 0.95


def test_answers_are_those_of_the_processor_and_of_company(shared, order):
    here, model = load("demo", "cpu"), shared("demo")
    right = ["".join(here.generate(prompt, **GREEDY)) for prompt in PROMPTS]
    assert ["".join(model.generate(prompt, **GREEDY)) for prompt in PROMPTS] == right
    assert [answer.text for answer in model.generate_many(PROMPTS, [GREEDY] * 4, progress=False)] == right
    (step,) = model.report.steps
    assert (step.rung, step.step) == ("all layers", StepClass.OUT_OF_MEMORY)
    assert "layers" in step.to


def test_hidden_states_cross_the_bus_once_each_way(shared, order, monkeypatch):
    from rung.kernels.webgpu.gpu import gpu

    model = shared("demo")
    "".join(model.generate(PROMPTS[0], **GREEDY))
    placed = next(each for each in model.plan.placements if each.device != "cpu")
    device, counts, shape = gpu(placed.device), [], model.card.decoder
    run = device.run
    monkeypatch.setattr(device, "run", lambda work, rows=1: (counts.append(len(work)), run(work, rows)))
    layers = placed.last - placed.first
    before = device.crossed
    "".join(answer := model.generate(PROMPTS[1] + " 7", **GREEDY))
    head = placed.last == len(shape.layers)
    assert counts[-len(answer.tokens) + 1 :] == [5 * layers + head] * (len(answer.tokens) - 1)
    most = 4 * (2 * shape.hidden + head * shape.vocabulary) + 16_384  # numbers of rows, block tables, rotations
    assert (device.crossed - before) / len(counts) < most


def test_a_prefix_is_shared_inside_a_block(shared, order):
    model, text = shared("demo"), "the model runs on a device " * 20
    first = "".join(model.generate(text + "and", **GREEDY))
    again = model.generate(text + "and", **GREEDY)
    assert "".join(again) == first
    assert again.result["cached_tokens"] > 64


def test_an_adapter_changes_layers_on_both_devices(shared, order, tmp_path):
    """With answers without one, in one step."""
    folder, here, model = write_lora(tmp_path, layers=range(6)), load("demo", "cpu"), shared("demo")
    options = [{**GREEDY, **({"adapter": "one"} if n % 2 else {})} for n in range(4)]
    texts = []
    for each in (here, model):
        each.load_adapter(folder, "one")
        texts.append([answer.text for answer in each.generate_many(PROMPTS, options, progress=False)])
    assert texts[0] == texts[1]
    assert texts[0][1] != "".join(here.generate(PROMPTS[1], **GREEDY))


def test_embeddings_are_those_of_the_processor(shared, order):
    found, right = (each.embed(PROMPTS) for each in (shared("demo"), load("demo", "cpu")))
    assert (found * right).sum(axis=1).min() > 0.999


def test_a_lost_device_leaves_the_answer_with_its_adapter_to_the_processor(adapter, shared, order, tmp_path):
    from rung.kernels.webgpu.gpu import gpu

    here, model, folder = load("demo", "cpu"), shared("demo"), write_lora(tmp_path, layers=range(6))
    for each in (here, model):
        each.load_adapter(folder, "one")
    options = {"max_tokens": 20, "temperature": 0, "raw": True, "adapter": "one"}
    answer = model.generate(PROMPTS[0], **options)
    [next(iter(answer)) for _ in range(3)]
    gpu(adapter.id).device.destroy()
    list(answer)
    assert answer.text == "".join(here.generate(PROMPTS[0], **options))
    step = model.report.steps[-1]
    assert (step.op, step.device, step.step, step.to) == ("model", adapter.id, StepClass.DEVICE_LOST, "cpu")
    assert [each.device for each in model.plan.placements] == ["cpu"]


@pytest.mark.slow
def test_a_cache_in_q8_0_has_blocks_on_both_devices(shared, order):
    exact, found = shared("demo", cache_type="f32"), shared("demo", cache_type="q8_0")
    ids = np.random.default_rng(3).integers(3, 300, 96).tolist()
    assert 0 < references.agreement(np.asarray(exact.logits(ids)), np.asarray(found.logits(ids))).divergence < 2e-3
