"""Plans with devices of WebGPU: whole language models, or layers that the processor shares, by predicted speed."""

from dataclasses import replace

import pytest

from rung.core.errors import DeviceError, DoesNotFit, UsageError
from rung.core.types import Capability, Device, Level, Proof, Rung, StepClass
from rung.core.value import FrozenDict
from rung.engine.planning import smaller_budgets
from rung.kernels.webgpu.layouts import gpu_bytes
from rung.models.card import Layer
from rung.models.lookup import find_outline
from rung.ops import LADDERS
from rung.planning import memory, placement, weight_plan
from rung.planning.check import check
from rung.planning.check_result import Question
from rung.planning.network_spec import Subject
from rung.planning.request import Request, parse_memory
from rung.planning.solve import choose_device, solve, steps_down
from rung.planning.weight_plan_cache import WeightPlanCache
from tests.planning.cards import cpu, gemma_2b, p2200

#: Names of the rungs: of a linear's row, and of a whole token.
ROWS, STEP = "webgpu.rows", "webgpu.f32"


def reached(card: Device | None = None) -> Device:
    """The card once more, through WebGPU; without one a card that no other family knows."""
    names = {"matmul.f32": Level.NATIVE, "matmul.f16": Level.NATIVE, "matmul.bf16": Level.ABSENT}
    names["package.torch"] = Level.ABSENT
    card = card or replace(p2200(), name="another card")
    return replace(
        card,
        id="webgpu:0",
        kind="webgpu",
        capabilities=FrozenDict({n: Capability(n, level, Proof.PROBE) for n, level in names.items()}),
        software=FrozenDict(wgpu="0.32.0", numba="0.68.1", driver="1"),
        details=FrozenDict(card=card.id),
    )


@pytest.fixture
def rungs(monkeypatch):
    """Rungs of WebGPU, as long as the ladders have none of their own."""
    added = {
        "linear": Rung("linear", ROWS, "nowhere:ROWS", kinds=("webgpu",), needs=("package.wgpu",)),
        "decode_step": Rung("decode_step", STEP, "nowhere:STEP", kinds=("webgpu",), formats=("f32", "f16")),
    }
    known = {op: LADDERS[op] for op in LADDERS}
    for op, rung in added.items():
        if all("webgpu" not in each.kinds for each in known[op].rungs):
            known[op] = replace(known[op], rungs=(rung, *known[op].rungs))
    for module in (memory, weight_plan, weight_plan):
        monkeypatch.setattr(module, "LADDERS", known)


def plan(card, *devices, **options):
    options["memory"] = parse_memory(options.get("memory"))
    return solve(card, devices, Request(**options))


@pytest.mark.usefixtures("rungs")
@pytest.mark.parametrize("format", ["q4_0", "f16"])
def test_the_way_to_a_card_is_taken_that_is_predicted_to_be_the_fastest(format):
    card, large = gemma_2b(format, "gguf"), replace(p2200(), free=8 << 30, memory=8 << 30)
    devices = (cpu(), large, reached(large))
    both = plan(card, *devices, context=512)
    alone = {device.id: plan(card, device, context=512).decode_rate for device in devices}
    assert both.placements[0].device == max(alone, key=alone.get) == "webgpu:0"
    assert both.dtype == "f32"
    slow = replace(reached(large), bandwidth=2e9)
    assert plan(card, cpu(), slow, context=512).placements[0].device == "cpu"


@pytest.mark.usefixtures("rungs")
def test_weights_are_held_once_as_they_are_stored():
    planned = plan(gemma_2b("q4_0", "gguf"), reached(), context=512)
    stored = sum(tensor.bytes for tensor in gemma_2b("q4_0", "gguf").tensors)
    assert planned.placements[0].memory.weights == pytest.approx(stored, rel=0.1)


def test_an_embedding_that_is_no_head_lies_on_the_card_as_kernels_read_it():
    card = gemma_2b("q5_0", "gguf")
    subject = Subject.of_card(replace(card, decoder=replace(card.decoder, tied_head=False)))
    for device, packing in ((reached(), "webgpu"), (cpu(), "stored"), (p2200(), "stored")):
        weights = weight_plan.plan_weights(subject, None, device, "f32", packed=True)
        (embed,) = (each for each in weights if each.tensor.role == "embed")
        assert embed.packing == packing
        if packing == "webgpu":
            assert embed.bytes == gpu_bytes(embed.format, embed.tensor.shape)


@pytest.mark.usefixtures("rungs")
def test_what_parts_of_attention_leave_is_counted():
    """Beyond 1,024 positions: of 64 rows, 8 heads and 16 parts 258 float32."""
    card, contexts = gemma_2b("q4_0", "gguf"), (1023, 1024, 1025)
    less, most, more = (plan(card, reached(), context=each).placements[0].memory.workspace for each in contexts)
    assert more - most == most - less + 4 * 64 * 8 * 16 * 258


def test_the_cache_is_in_q8_0_where_16_bits_do_not_fit():
    card, roomy = gemma_2b("q4_0", "gguf"), plan(gemma_2b("q4_0", "gguf"), reached(), context=4096)
    use = roomy.placements[0].memory
    small = replace(reached(), free=use.most - 2**20, memory=use.most - 2**20)
    budgeted = plan(card, small, context=4096, memory=f"webgpu:0={use.most - 2**20}")
    assert (roomy.cache_dtype, budgeted.cache_dtype) == ("f16", "q8_0")
    assert budgeted.placements[0].memory.kv_cache == use.kv_cache * 17 // 32
    assert budgeted.decode_rate > roomy.decode_rate
    assert plan(card, reached(), context=512, cache_type="q8_0").cache_dtype == "q8_0"


def small_card(gigabytes=2.0, **changes):
    size = int(gigabytes * 2**30)
    return replace(reached(), free=size, memory=size, **changes)


def on(planned, device):
    (found,) = (each for each in planned.placements if each.device == device)
    return found


@pytest.mark.parametrize("options", [{"device": "webgpu:0"}, {"together": True}, {"memory": "cpu=2.2GB"}, {}])
def test_a_small_card_has_as_many_layers_as_fit_and_the_processor_the_others(options):
    card = gemma_2b("q8_0", "gguf")
    planned = plan(card, small_card(), cpu(), context=512, **options)
    first, second = planned.placements
    assert (first.first, first.last, second.last) == (0, second.first, 18)
    there, here = on(planned, "webgpu:0"), on(planned, "cpu")
    assert there.memory.most <= there.budget
    layer = (there.memory.weights + there.memory.kv_cache) / (there.last - there.first)
    assert there.memory.most + layer > there.budget
    assert there.memory.kv_cache * 18 == (there.last - there.first) * (here.memory.kv_cache + there.memory.kv_cache)
    assert planned.packing == "r16"
    assert any(f"{there.last - there.first} of 18 layers" in reason for reason in planned.reasons)
    (step,) = (step for step in steps_down(planned, None) if step.rung == "all layers")
    assert (step.device, step.step) == ("webgpu:0", StepClass.OUT_OF_MEMORY)
    alone = plan(card, cpu(), context=512).decode_rate
    assert alone < planned.decode_rate < plan(card, small_card(5), context=512).decode_rate


def test_the_embedding_of_shared_layers_is_the_processors():
    card = gemma_2b("q8_0", "gguf")
    card = replace(card, decoder=replace(card.decoder, tied_head=False))
    head = replace(card.tensor("embed"), name="head", role="head")
    card = replace(card, tensors=(*card.tensors, head))
    planned = plan(card, small_card(), cpu(), context=512)
    there = on(planned, "webgpu:0")
    layers = sum(t.bytes for t in card.tensors if t.role.startswith("layers")) / 18 * (there.last - there.first)
    head_bytes = head.bytes if there.last == 18 else 0
    assert there.memory.weights == pytest.approx(layers + head_bytes, rel=0.01)


def test_layers_are_shared_in_the_order_that_is_faster():
    """A head that a card does not hold together with a layer is the processor's."""
    card = gemma_2b("q8_0", "gguf")
    first = plan(card, small_card(1.1), cpu(), context=512, device="webgpu:0").placements[0]
    assert (first.device, first.first) == ("webgpu:0", 0)
    plans = WeightPlanCache(Subject.of_card(card))
    request = Request(context=512, memory=parse_memory("webgpu:0=2GB"))
    devices = small_card(), cpu()
    taken = placement.arrange(plans, None, devices, request, 512, True)
    both = [placement.arrange_in_order(plans, None, each, request, 512, True) for each in (devices, devices[::-1])]
    assert taken.rates.decode == max(each.rates.decode for each in both if each.over <= 0)
    assert len({each.rates.decode for each in both}) == 2


def test_a_card_that_holds_all_layers_shares_none_and_a_slow_one_has_none():
    card = gemma_2b("q8_0", "gguf")
    planned = plan(card, small_card(5), cpu(), context=512)
    assert [each.device for each in planned.placements] == ["webgpu:0"]
    assert all(len(each.placements) == 1 for each in planned.candidates)
    slow = small_card(bandwidth=2e9)
    assert [each.device for each in plan(card, slow, cpu(), context=512).placements] == ["cpu"]


def test_a_model_of_one_layer_is_not_divided():
    with pytest.raises(DoesNotFit):
        plan(gemma_2b("q8_0", "gguf", layers=1), small_card(0.7), cpu(), context=512, device="webgpu:0")


def test_windows_of_the_layers_of_a_device_are_counted_there():
    card = gemma_2b("q8_0", "gguf")
    layers = tuple(Layer(512 if n < 9 else None, 0) for n in range(18))
    card = replace(card, decoder=replace(card.decoder, layers=layers))
    planned = plan(card, small_card(1.1), cpu(), context=8192)
    there, here = on(planned, "webgpu:0"), on(planned, "cpu")
    whole = plan(card, cpu(), context=8192).placements[0].memory.kv_cache
    assert there.memory.kv_cache + here.memory.kv_cache == whole


def test_a_cache_in_q8_0_is_shared_and_one_of_few_bits_refused():
    card = gemma_2b("q8_0", "gguf")
    planned = plan(card, small_card(), cpu(), context=4096, device="webgpu:0", cache_type="q8_0")
    assert (planned.cache_dtype, len(planned.placements)) == ("q8_0", 2)
    with pytest.raises(UsageError, match="not for this model here"):
        plan(card, small_card(), cpu(), context=4096, device="webgpu:0", cache_type="q4_0")


def test_memory_that_card_and_processor_share_is_counted_once():
    card = gemma_2b("q8_0", "gguf")
    integrated = small_card(details=FrozenDict(shared_memory=True))
    with pytest.raises(DoesNotFit):
        plan(card, integrated, cpu(2.5), context=512)
    assert len(plan(card, small_card(), cpu(2.5), context=512).placements) == 2


def test_layers_are_shared_with_the_processor_alone():
    card, small = gemma_2b("q8_0", "gguf"), replace(p2200(), free=2 << 30, memory=2 << 30)
    for others in ((small,), (replace(small_card(), id="webgpu:1"),), ()):
        with pytest.raises(DoesNotFit):
            plan(card, *others, small_card(), context=512)
    with pytest.raises(DoesNotFit):
        plan(card, small, small_card(), cpu(), context=512, together=True)


def test_what_the_processor_has_no_compiled_functions_for_is_not_shared():
    card = gemma_2b("q8_0", "gguf")
    with pytest.raises(DoesNotFit):
        plan(card, small_card(), cpu(vnni=Level.ABSENT), context=512, device="webgpu:0")
    (found,) = check(
        find_outline("gemma-2b", offline=True),
        [(small_card(), cpu(vnni=Level.ABSENT))],
        Question(formats=("q8_0",)),
        alternatives=False,
        relaxations=False,
    ).choices
    assert not found.verdict
    (found,) = check(
        find_outline("gemma-2b", offline=True), [(small_card(), cpu())], Question(formats=("q8_0",))
    ).choices
    assert found.verdict
    assert "of 18 layers" in found.verdict.reason
    assert found.command.endswith("--device webgpu:0")


@pytest.mark.usefixtures("rungs")
def test_what_torch_computes_is_refused_there():
    outline = find_outline("gemma-2b", offline=True)
    (training,) = check(outline, [reached()], Question(training="lora", formats=("nf4",))).choices
    assert "torch computes it" in training.verdict.reason
    (inference,) = check(outline, [reached()], Question(formats=("q4_0",))).choices
    assert inference.verdict
    assert inference.device == "webgpu:0"
    assert "--device webgpu:0" in inference.command


def test_without_a_rung_nothing_runs_there(monkeypatch):
    bare = {
        op: replace(LADDERS[op], rungs=tuple(r for r in LADDERS[op].rungs if "webgpu" not in r.kinds)) for op in LADDERS
    }
    for module in (memory, weight_plan, weight_plan):
        monkeypatch.setattr(module, "LADDERS", bare)
    with pytest.raises(DeviceError, match="cannot run a model") as refused:
        plan(gemma_2b("q4_0", "gguf"), cpu(), reached(), device="webgpu:0")
    assert "no rung computes through WebGPU" in refused.value.facts[0]
    assert plan(gemma_2b("q4_0", "gguf"), cpu(), reached(), context=512).placements[0].device == "cpu"


@pytest.mark.usefixtures("rungs")
def test_programs_of_torch_get_a_device_of_torch():
    assert choose_device((cpu(), reached()), None).id == "cpu"
    assert choose_device((cpu(), reached(p2200()), p2200()), None).id == "cuda:0"
    assert choose_device((cpu(), reached()), "webgpu:0").id == "webgpu:0"


def test_an_embedding_that_is_no_head_is_counted_wherever_its_file_has_it():
    card = gemma_2b("q8_0", "gguf")
    card = replace(card, decoder=replace(card.decoder, tied_head=False))
    embedding = card.tensor("embed")
    head = replace(embedding, name="head", role="head")
    rest = tuple(tensor for tensor in card.tensors if tensor.role != "embed")
    totals = set()
    for tensors in ((embedding, head, *rest), (head, *rest, embedding)):
        found = plan(replace(card, tensors=tensors), small_card(), cpu(16.0), context=512)
        totals.add(tuple(each.memory.weights for each in found.placements))
    assert len(totals) == 1


def test_two_named_devices_of_which_the_card_holds_all_share_nothing():
    found = plan(gemma_2b("q8_0", "gguf"), small_card(8.0), cpu(16.0), context=512, together=True)
    assert [each.device for each in found.placements] == ["webgpu:0"]


def test_a_processor_without_room_for_the_other_layers_is_named():
    with pytest.raises(DoesNotFit) as refused:
        plan(gemma_2b("q8_0", "gguf"), small_card(), cpu(1.0), context=512, device="webgpu:0")
    assert " on cpu, " in refused.value.facts[0]


def test_the_plan_after_a_full_card_keeps_the_budget_of_the_processor():
    found = plan(gemma_2b("q8_0", "gguf"), small_card(), cpu(8.0), context=512, memory="cpu=6GB")
    less = smaller_budgets(found, "cpu=6GB")
    (use,) = (each.memory for each in found.placements if each.device == "webgpu:0")
    assert less == {"cpu": 6 * 2**30, "webgpu:0": int(use.most - 0.2 * (use.total - use.runtime))}
