"""Test the time of a token: that of its weights, the cache that it reads, and its layers; from measured rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rung import formats
from rung.core.value import FrozenDict
from rung.models.card import Layer
from rung.planning.memory import workspace
from rung.planning.network_spec import Subject
from rung.planning.request import Request
from rung.planning.solve import solve, speed
from rung.planning.speed import Group, rates
from rung.planning.weight_plan import Weight
from rung.planning.weight_plan_cache import WeightPlanCache
from tests.planning.cards import cpu, gemma_2b, p2200

CACHE = {"cache 64 1": 8e9, "cache 64 2": 7.6e9, "cache 64 4": 7e9, "cache 64 8": 5e9}
RATES = {**CACHE, **{name.replace("64", "128"): rate / 2 for name, rate in CACHE.items()}}
RATES |= {"layer numba.step": 1e-5, "layer numba.glue": 1e-3, "numba.row q8_0": 2e10, "numba.row q4_0": 1e10}


def device(**more):
    return replace(cpu(), rates=FrozenDict(RATES | more))


def subject(heads=8, kv_heads=1, head_dim=256, window=None, layers=2):
    card = gemma_2b("q8_0", "gguf", layers=layers)
    shape = replace(card.decoder, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    return Subject.of_card(replace(card, decoder=replace(shape, layers=(Layer(window, 0),) * layers)))


def seconds(of, depth, known=None):
    return 1 / rates((), of, known or device(), 8192, "f16", depth).decode


@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (2, 64), (4, 64), (8, 64), (1, 128), (2, 128), (8, 256)])
def test_reading_the_cache_takes_what_was_measured_for_its_heads(group, head_dim):
    of = subject(2 * group, 2, head_dim)
    read = 2 * 2 * 2 * head_dim * 2 * 1000
    expected = read / RATES[f"cache {64 if head_dim == 64 else 128} {group}"]
    assert seconds(of, 1001) - seconds(of, 1) == pytest.approx(expected, rel=1e-6)


def test_heads_beyond_four_take_a_pass_each():
    """Six heads are four together and two alone: as many passes as one measurement of each kind has beside fetching."""
    took = {g: seconds(subject(g, 1, 64), 1001) - seconds(subject(g, 1, 64), 1) for g in (1, 4, 6, 8)}
    fours = took[8] - took[4]
    fetched = took[4] - fours
    assert took[6] == pytest.approx(fetched + fours + 2 * (took[1] - fetched), rel=1e-6)


def test_a_window_ends_what_is_read():
    assert seconds(subject(window=100), 5000) == seconds(subject(window=100), 100) < seconds(subject(), 5000)


def test_layers_take_the_time_of_the_rung_that_computes_tokens():
    """One linear without a kernel for whole tokens, and each layer is computed part by part."""
    one = [Group("q8_0", "numba.row", False, 1, 1), Group("u8:128", "torch.decode", False, 1, 1)]
    took = [1 / rates(parts, subject(), device(), 64, "f16", 1).decode for parts in (one[:1], one)]
    assert took[1] - took[0] == pytest.approx(2 * (1e-3 - 1e-5), rel=0.01)


def test_networks_of_transformers_take_its_time_for_each_layer_and_expert():
    """Beside weights and cache: of layers, of the experts that a token visits, and of what a prompt is between them."""
    plain = subject()
    borrowed = replace(plain, borrowed=True)
    mixture = replace(borrowed, shape=replace(plain.shape, experts=8, experts_per_token=3))
    known = device(**{"layer transformers": 5e-4, "expert transformers": 2e-4, "values transformers": 1e8})
    took = [seconds(of, 1, known) for of in (plain, borrowed, mixture)]
    assert took[1] - took[0] == pytest.approx(2 * (5e-4 - 1e-5), rel=1e-6)
    assert took[2] - took[1] == pytest.approx(2 * 3 * 2e-4, rel=1e-6)
    assert seconds(borrowed, 1001) - seconds(borrowed, 1) == pytest.approx(seconds(plain, 1001) - seconds(plain, 1))
    slower = device(**{"values transformers": 5e7, "values many": 1e12})
    read = [1 / rates((), borrowed, one, 512, "bf16", 512).prefill for one in (known, slower)]
    values = 2 * (plain.shape.hidden + plain.shape.feed_forward)
    assert read[1] - read[0] == pytest.approx(values / 5e7 - values / 1e8, rel=1e-6)


def test_a_format_that_was_not_measured_takes_the_middle_of_its_rung():
    took = []
    for name in ("q8_0", "q4_0", "iq4_xs"):
        took.append(1 / rates([Group(name, "numba.row", False, 1, 1e9)], subject(), device(), 64, "f16", 1).decode)
    assert took[0] < took[2] < took[1]


@pytest.mark.parametrize("prompt", [64, 512, 4000])
def test_a_plan_predicts_what_it_was_made_for_and_any_other_depth(prompt):
    card, here = gemma_2b("q8_0", "gguf", layers=2), device()
    plan = solve(card, (here,), Request(prompt_tokens=prompt, context=4096))
    found = speed(WeightPlanCache(Subject.of_card(card)), plan, (here,), prompt)
    assert (found.decode, found.prefill) == (plan.decode_rate, plan.prefill_rate)
    assert speed(WeightPlanCache(Subject.of_card(card)), plan, (here,), prompt + 32).decode < plan.decode_rate


def test_a_head_in_place_is_never_decoded():
    """One row is multiplied with it, which ``numba.stored`` does in place; ``torch.decode`` decodes it."""
    card = gemma_2b("f16", "gguf", layers=1)
    embed, down = card.tensor("embed"), card.tensor("layers.0.down")
    planned = WeightPlanCache(Subject.of_card(card)).plan(None, cpu(), "f32", False).weights
    head, wide = (next(w for w in planned if w.tensor is tensor) for tensor in (embed, down))

    def of(rung: str, *weights: Weight) -> int:
        return workspace(replace(weight, rung=rung, tensor=replace(weight.tensor)) for weight in weights)

    assert head.count > wide.count > 0
    small = replace(wide, tensor=replace(down, shape=(64, 64)))
    assert of("numba.stored", head, small) == of("numba.stored", small) < of("torch.decode", head, small)


def test_a_copy_that_is_kept_for_the_way_back_is_not_read():
    """q5_k is packed in a layout without a way back: of a file in q8_0 it is held twice, of one in q5_k once."""
    sizes, read = [], []
    for stored in ("q8_0", "q5_k"):
        plans = WeightPlanCache(Subject.of_card(gemma_2b(stored, "gguf", layers=1)))
        weight_plan = plans.plan(formats.get("q5_k"), cpu(), "f32", True)
        sizes.append(sum(weight.bytes for weight in weight_plan.weights if weight.tensor.role == "layers.0.down"))
        read.append([group.bytes for group in weight_plan.groups if group.format == "q5_k" and not group.once])
    assert sizes[0] > 1.4 * sizes[1]
    assert read[0] == pytest.approx(read[1], rel=1e-6)


def test_reading_takes_the_values_between_linears_and_the_head_once():
    """For 100 tokens: the linears of each, attention to half of the others, the columns of state and feed-forward part
    of every layer, and one row of the head."""
    known = device(**{"values many": 5e8, "attention many": 1e10, "numba.row q8_0 many": 1e11})
    of, depth = subject(layers=3), 100
    parts = (Group("q8_0", "numba.row", False, 1e6, 1e6), Group("q8_0", "numba.row", True, 2e8, 2e8))
    took = depth / rates(parts, of, known, 8192, "f16", depth).prefill
    linears = depth * 2 * 1e6 / 1e11
    attention = depth * 4 * (3 * 50) * of.shape.heads * of.shape.head_dim / 1e10
    between = depth * 3 * (of.shape.hidden + of.shape.feed_forward) / 5e8
    head = 2e8 / 2e10
    assert took == pytest.approx(linears + attention + between + head)


#: What may be measured of a card: seconds of launches, bytes and operations a second.
CARD = {"launch torch.decode q8_0": 3e-5, "layer gpu": 2e-4, "torch.decode q8_0": 5e10, "torch.decode q8_0 many": 4e12}
CARD |= {f"cache 128 {group}": rate for group, rate in {1: 9e10, 2: 8e10, 4: 7e10, 8: 4e10}.items()}
CARD |= {"attention many": 1e12, "values many": 3e9}


@pytest.mark.parametrize("slow", ["bytes", "launches"])
def test_a_measured_card_launches_while_it_computes(slow):
    """Time of a token and a prompt of Gemma 2B after 512 tokens follows from the rates of the card alone."""
    known = CARD | ({"launch torch.decode q8_0": 3e-3} if slow == "launches" else {})
    card = replace(p2200(), rates=FrozenDict(known), bandwidth=1.0, peaks=FrozenDict({"f32": 1.0}))
    plan = solve(gemma_2b("q8_0", "gguf"), (card,), Request(context=1024, prompt_tokens=512))
    layers, hidden, wide, heads, dim = 18, 2048, 16384, 8, 256
    layer = 2 * hidden * heads * dim + 2 * hidden * dim + 3 * hidden * wide
    head = 256_000 * hidden
    launched = layers * known["layer gpu"] + (7 * layers + 1) * known["launch torch.decode q8_0"]
    read = (layers * layer + head) * 34 / 32 / 5e10 + layers * 2 * dim * 2 * 512 / 4e10
    assert (launched > read) == (slow == "launches")
    assert plan.decode_rate == pytest.approx(1 / max(launched, read))
    prompt = 512 * (2 * layers * layer / 4e12 + layers * (hidden + wide) / 3e9) + head * 34 / 32 / 5e10
    prompt += 4 * 512 * layers * 256 * heads * dim / 1e12
    assert plan.prefill_rate == pytest.approx(512 / max(launched, prompt))


def test_launches_are_made_for_each_chunk_of_a_prompt():
    known = replace(p2200(), rates=FrozenDict(CARD | {"layer gpu": 1.0}))
    took = [depth / rates((), subject(layers=3), known, 8192, "f16", depth).prefill for depth in (100, 512, 513)]
    assert took == pytest.approx([3.0, 3.0, 6.0])


def test_a_format_of_a_card_that_was_not_measured_is_predicted_from_its_bandwidth():
    parts = [Group("q4_0", "torch.decode", False, 1e9, 1e9)]
    took = [
        1 / rates(parts, subject(), replace(p2200(), rates=FrozenDict(known)), 64, "f16", 1).decode
        for known in ({"layer gpu": 1e-9}, {"layer gpu": 1e-9, "torch.decode q4_0": 1e9})
    ]
    assert took == pytest.approx([(1e9 + 8 * 1e9) / (0.75 * 200e9), 1.0], rel=1e-3)
