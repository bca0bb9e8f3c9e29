"""The rules of a plan at their edges: half the speed, the context, budgets by device, what a split holds twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rung import formats
from rung.models.decoder_memory import activation_bytes
from rung.planning.request import Request, parse_memory
from rung.planning.solve import solve
from tests.planning.cards import cpu, gemma_2b, p2200

SIXTEEN = ("bf16", "f16")


def plan(card, *devices, **options):
    options["memory"] = parse_memory(options.get("memory"))
    return solve(card, devices or (cpu(),), Request(**options))


def ratio(planned):
    """Speed of the fastest 16-bit candidate that fits over that of the fastest quantized one."""
    rates = {True: 0.0, False: 0.0}
    for candidate in planned.candidates:
        if candidate.verdict:
            wide = candidate.format in SIXTEEN
            rates[wide] = max(rates[wide], candidate.decode_rate)
    return rates[True] / rates[False]


def test_sixteen_bits_are_taken_from_half_the_speed_of_the_fastest_on():
    """With faster memory the time beside the weights counts for more, and the ratio rises past a half."""
    ratios = []
    for speed in (20e9, 100e9, 200e9, 300e9, 400e9, 600e9, 1e12, 1.5e12, 2e12, 4e12, 1e13):
        planned = plan(gemma_2b(), replace(cpu(), bandwidth=speed))
        ratios.append(ratio(planned))
        assert (planned.format in SIXTEEN) == (ratios[-1] >= 0.5), ratios
    assert any(0.35 < one < 0.5 for one in ratios)
    assert any(0.5 < one < 0.65 for one in ratios)


@pytest.mark.parametrize(("most", "context"), [(300, 300), (4095, 4095), (4097, 4096), (8192, 4096)])
def test_the_context_is_the_smaller_of_the_models_and_4096(most, context):
    card = gemma_2b("q4_0", "gguf", layers=2)
    assert plan(replace(card, decoder=replace(card.decoder, context=most))).context == context


def test_a_budget_by_device_goes_before_the_one_for_all():
    planned = plan(gemma_2b("q4_0", "gguf", layers=2), cpu(), cpu(22, "cpu:1"), memory="cpu=3GB,9GB", device="cpu")
    assert planned.placements[0].budget == 3 * 2**30
    planned = plan(gemma_2b("q4_0", "gguf", layers=2), cpu(), cpu(22, "cpu:1"), memory="cpu=3GB,9GB", device="cpu:1")
    assert planned.placements[0].budget == 9 * 2**30


def test_a_split_begins_on_the_gpu():
    planned = plan(gemma_2b("q8_0", "gguf"), cpu(), p2200(), memory="cuda:0=2GB,cpu=2.6GB")
    assert [placement.device for placement in planned.placements] == ["cuda:0", "cpu"]
    assert [placement.first for placement in planned.placements] == [0, planned.placements[0].last]


def test_a_split_with_a_tied_head_holds_the_embedding_twice():
    card = gemma_2b("q8_0", "gguf")
    whole = plan(card, cpu()).placements[0].memory.weights
    first, second = plan(card, cpu(2.2), cpu(2.2, "cpu:1")).placements
    twice = first.memory.weights + second.memory.weights - whole
    assert 0 <= twice - card.tensor("embed").bytes < 2 << 20, "in huge pages"


def test_a_weight_that_is_encoded_and_then_widened_is_held_twice():
    """q5_k has a generic packing: from a file the stored weight stays in the file, encoded by us it stays in memory."""
    encoded = plan(gemma_2b("bf16"), format="q5_k").placements[0].memory.weights
    stored = plan(gemma_2b("q5_k", "gguf"), device="cpu").placements[0].memory.weights
    layers = [t for t in gemma_2b().tensors if len(t.shape) > 1 and t.role != "embed"]
    copies = sum(formats.get("q5_k").bytes(tensor.shape) for tensor in layers)
    assert encoded - stored > 0.8 * copies


def test_scores_of_a_soft_cap_count_where_torch_computes_them():
    shape = replace(gemma_2b().decoder, feed_forward=64)
    capped = replace(shape, attention_softcap=50.0)
    scores = 4 * 2 * (shape.heads // shape.kv_heads) * 512 * 4096
    assert activation_bytes(capped, 4096) - activation_bytes(shape, 4096) == scores
    assert activation_bytes(capped, 4096, converted=False) == activation_bytes(shape, 4096, converted=False)
