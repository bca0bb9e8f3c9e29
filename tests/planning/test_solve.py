"""Plans: the default choice, budgets as contracts, splits, refusals with the smallest relaxations."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from rung import formats
from rung.core.errors import ContextTooLong, DeviceError, DoesNotFit, UnknownDevice, UnknownFormat, UsageError
from rung.core.types import Capability, Level, Plan, Proof
from rung.core.value import FrozenDict
from rung.planning.request import Request, parse_memory
from rung.planning.solve import solve, steps_down
from rung.planning.weight_plan import combined_db, percent
from tests.planning.cards import cpu, gemma_2b, p2200

GB = 2**30


def plan(card, *devices, **options):
    options["memory"] = parse_memory(options.get("memory"))
    return solve(card, devices or (cpu(),), Request(**options))


def test_a_file_keeps_what_is_stored():
    planned = plan(gemma_2b("q4_0", "gguf"))
    assert (planned.format, planned.cache_dtype, planned.context) == ("stored", "f16", 4096)
    assert math.isinf(planned.error_db)
    assert planned.packing == "r16"


def test_an_f32_file_computes_in_f32():
    planned = plan(gemma_2b("f32", "gguf", layers=2))
    assert (planned.dtype, planned.cache_dtype) == ("f32", "f32")


def test_a_folder_takes_the_finest_fast_format_where_16_bits_are_slow():
    planned = plan(gemma_2b())
    assert planned.format == "q8_0"
    assert "faster here" in planned.reasons[0]
    assert formats.get("q8_0").floor_db == max(
        formats.get(c.format).floor_db
        for c in planned.candidates
        if c.verdict and c.format not in ("bf16", "f16", "q4_k_m")
    )


def test_a_folder_stays_in_16_bits_where_nothing_is_faster():
    """Without a fast quantized rung every weight is decoded first, and 16 bits win."""
    planned = plan(gemma_2b(), cpu(vnni=Level.ABSENT))
    assert planned.format in ("bf16", "f16")


def test_a_tight_budget_takes_the_finest_format_that_fits():
    roomy = plan(gemma_2b()).memory
    planned = plan(gemma_2b(), memory=roomy - 200 * 2**20)
    assert planned.memory <= roomy - 200 * 2**20
    better = [
        c for c in planned.candidates if c.verdict and c.error_db > planned.error_db and c.format not in ("bf16", "f16")
    ]
    assert not better


def test_a_plan_never_exceeds_its_budget():
    for gb in (2.2, 2.6, 3.0, 3.5, 4.0, 6.0):
        try:
            planned = plan(gemma_2b(), memory=f"{gb}GB")
        except DoesNotFit:
            continue
        assert all(p.memory.total <= p.budget == int(gb * GB) for p in planned.placements)


def test_less_context_is_chosen_when_only_that_fits():
    full = plan(gemma_2b("q8_0", "gguf"))
    planned = plan(gemma_2b("q8_0", "gguf"), memory=full.memory - 2**20)
    assert planned.context < full.context
    assert any("do not fit" in reason for reason in planned.reasons)


def test_what_does_not_fit_comes_with_ways_out_that_work():
    card = gemma_2b("q8_0", "gguf")
    with pytest.raises(DoesNotFit) as caught:
        plan(card, memory="2.9GB", context=8192)
    ways = "\n".join(caught.value.ways_out)
    smaller = re.search(r"--format (\w+)", ways)
    assert smaller
    assert plan(card, memory="2.9GB", context=8192, format=smaller[1]).memory <= 2.9 * GB
    more = re.findall(r"--memory ([\d.]+GB)", ways)
    assert more[:-1] == ["2.9GB"] * (len(more) - 1)
    assert plan(card, memory=more[-1], context=8192)


def named(options):
    """Options of a command as arguments."""
    return {name.replace("-", "_"): value for name, value in options.items()}


@pytest.mark.parametrize(
    ("kind", "devices", "keywords"),
    [
        ("gguf", (cpu(),), {"memory": "2.9GB", "context": 8192}),
        ("gguf", (cpu(),), {"memory": "3.0GB", "context": 8192, "cache-type": "f16"}),
        ("gguf", (cpu(),), {"memory": "1GB"}),
        ("gguf", (cpu(),), {"memory": "1MB"}),
        ("gguf", (cpu(),), {"memory": "7000000"}),
        ("gguf", (cpu(),), {"memory": "2700MB", "format": "q8_0", "context": 8000}),
        ("gguf", (p2200(), cpu(4)), {"memory": "cuda:0=2GB,cpu=1000000000"}),
        ("folder", (cpu(),), {"memory": "1700MB"}),
        ("folder", (cpu(3.5),), {"format": "bf16"}),
        ("folder", (p2200(), cpu()), {"device": "cuda:0", "format": "f32"}),
    ],
)
def test_every_command_named_as_a_way_out_works_as_it_stands(kind, devices, keywords):
    card = gemma_2b("q8_0" if kind == "gguf" else "bf16", kind)
    with pytest.raises(DoesNotFit) as caught:
        plan(card, *devices, **named(keywords))
    commands = [way.split() for way in caught.value.ways_out if way.startswith("rung run gemma-2b ")]
    assert commands
    for command in commands:
        options = dict(zip((name.removeprefix("--") for name in command[3::2]), command[4::2], strict=True))
        kept = {name for name, value in options.items() if value == str(keywords.get(name))}
        assert kept >= keywords.keys() - {"context", "format", "memory", "device"}
        assert options.get("device", keywords.get("device")) == keywords.get("device")
        assert "context" not in options or int(options["context"]) <= keywords.get("context", 4096)
        options = {name: int(value) if name == "context" else value for name, value in options.items()}
        planned = plan(card, *devices, **named(options))
        assert "context" not in keywords or planned.context == options["context"], "the whole context, or what is said"
        if "memory" in options:
            budgets = parse_memory(options["memory"])
            assert all(p.memory.total <= budgets.get(p.device, budgets.get("*")) for p in planned.placements)


def refusal(card, *devices, **options):
    with pytest.raises(DoesNotFit) as caught:
        plan(card, *devices, **options)
    return caught.value.ways_out


def test_three_bits_are_a_way_out_where_four_do_not_fit():
    four = plan(gemma_2b(), p2200(), format="q4_0", context=2048).placements[0].memory
    ways = refusal(gemma_2b(), p2200(), memory=four.most - 50 * 2**20, context=2048, format="q8_0")
    assert any("--format q3_k_m" in way for way in ways)


def test_a_smaller_format_and_a_shorter_context_together_are_a_way_out():
    """Where the whole context needs more than 3 bits leave, and the format more than a short context leaves."""
    three = plan(gemma_2b(), p2200(), format="q3_k_s", context=8192).placements[0].memory
    ways = refusal(gemma_2b(), p2200(), memory=three.most - 20 * 2**20, context=8192, format="q8_0")
    (both,) = [way for way in ways if "--format" in way and "--context 4096" in way]
    assert "--format q3_k" in both or "--format q4" in both


def test_the_other_devices_are_a_way_out_for_the_one_that_was_named():
    ways = refusal(gemma_2b(), p2200(), cpu(), device="cuda:0", format="f32")
    assert "rung run gemma-2b --format f32" in ways
    alone = refusal(gemma_2b(), p2200(), device="cuda:0", format="f32")
    assert "rung run gemma-2b --format f32" not in alone


def test_the_context_named_as_a_way_out_fits_and_a_step_more_does_not():
    card = gemma_2b("q8_0", "gguf")
    budget = plan(card, context=2048).memory
    with pytest.raises(DoesNotFit) as caught:
        plan(card, memory=budget, context=8192)
    found = re.search(r"--context (\d+)", "\n".join(caught.value.ways_out))
    assert found
    context = int(found[1])
    assert plan(card, memory=budget, context=context)
    with pytest.raises(DoesNotFit):
        plan(card, memory=budget, context=context + 64)


def test_a_guess_that_ignores_the_processor_is_no_rate():
    """Without a fast kernel weights are decoded in NumPy first, at a rate that nobody measured."""
    for device, timed in ((cpu(), True), (cpu(vnni=Level.ABSENT), False)):
        assert {c.timed for c in plan(gemma_2b(), device, format="q4_k").candidates} == {timed}
    slow = plan(gemma_2b(), cpu(vnni=Level.ABSENT), format="q4_k")
    assert re.search(r"q4_k .* -  +-  +noticeable", str(slow))


def test_two_devices_share_the_layers():
    card = gemma_2b("q8_0", "gguf")
    first, second = cpu(1.9), cpu(4, "cpu:1")
    planned = plan(card, first, second)
    assert len(planned.placements) in (1, 2)
    small = plan(card, cpu(2.2), cpu(2.2, "cpu:1"))
    assert [p.device for p in small.placements] == ["cpu", "cpu:1"]
    assert small.placements[0].first == 0
    assert small.placements[0].last == small.placements[1].first
    assert small.placements[1].last == 18
    assert all(p.memory.total <= p.budget for p in small.placements)


def test_a_p2200_runs_gemma_2b():
    """The founding case: 5 GB, no bf16."""
    planned = plan(gemma_2b(), p2200(), cpu())
    assert all(p.memory.total <= p.budget for p in planned.placements)
    on_card = plan(gemma_2b(), p2200(), device="cuda:0")
    assert on_card.dtype == "f32"
    assert on_card.memory <= 5059 * 2**20


def without(device, level):
    """A card for which this torch has no code, or whose driver is too old, or of which nobody knows anything."""
    why = "torch 2.13.0+cu130 has no code for sm_61" if level is Level.ABSENT else ""
    lost = [Capability(name, level, Proof.PROBE, why) for name in device.capabilities]
    return replace(device, capabilities=FrozenDict({c.name: c for c in lost}))


@pytest.mark.parametrize(("level", "words"), [(Level.ABSENT, "no code for sm_61"), (Level.UNKNOWN, "devices --probe")])
def test_a_card_that_computes_nothing_is_left_out_and_refused_when_asked_for(level, words):
    card = gemma_2b("q4_0", "gguf")
    planned = plan(card, without(p2200(), level), cpu())
    assert [p.device for p in planned.placements] == ["cpu"]
    assert {p.device for c in planned.candidates for p in c.placements} == {"cpu"}
    with pytest.raises(DeviceError, match=r"Quadro P2200 \(cuda:0\) cannot run") as caught:
        plan(card, without(p2200(), level), cpu(), device="cuda:0")
    assert words in caught.value.facts[0]
    assert "rung run gemma-2b --device cpu" in caught.value.ways_out


def test_16_bits_that_were_refused_are_steps_down_and_nothing_else_is():
    refused = steps_down(plan(gemma_2b(), p2200(), context=4096), None)
    assert [(s.op, s.rung, s.device, str(s.step), s.to) for s in refused] == [
        ("plan", "bf16", "cuda:0", "unsupported", "q8_0"),
        ("plan", "f16", "cuda:0", "out of memory", "q8_0"),
    ]
    for card, device, options in (
        (gemma_2b(), cpu(64), {}),  # 16 bits fit, and another format was faster
        (gemma_2b(), replace(p2200(), memory=16 * 2**30, free=16 * 2**30), {}),  # f16 for bf16 loses nothing
        (gemma_2b(), p2200(), {"format": "q8_0"}),  # as asked
        (gemma_2b("q8_0", "gguf"), p2200(), {}),  # as stored
    ):
        assert steps_down(plan(card, device, **options), None) == ()


def test_an_explicit_format_is_kept_or_refused():
    assert plan(gemma_2b(), format="nf4").format == "nf4:64"
    with pytest.raises(DoesNotFit):
        plan(gemma_2b(), format="bf16", memory="3GB")
    with pytest.raises(UnknownFormat, match="Did you mean q4_k"):
        plan(gemma_2b(), format="q4k")


def test_rows_that_a_block_does_not_divide_take_a_better_format_and_say_so():
    card = gemma_2b()
    tensors = tuple(
        t if t.role != "layers.0.o" else type(t)(t.role, t.name, (2048, 96), "bf16", 0, 0, 1) for t in card.tensors
    )
    planned = plan(type(card)(**{**vars(card), "tensors": tensors}), format="q4_k")
    part = next(p for p in planned.parts if p.role == "o")
    assert "do not divide rows of 96" in part.reason
    assert formats.get(part.format).floor_db >= formats.get("q4_k").floor_db


def test_a_coarse_format_keeps_the_head_finer():
    planned = plan(gemma_2b(), format="q4_0")
    assert [p.format for p in planned.parts if p.role == "embed"] == ["q6_k"]


def test_bad_questions():
    with pytest.raises(ContextTooLong, match="9,000 tokens"):
        plan(gemma_2b(), context=9000)
    with pytest.raises(UnknownDevice, match="Did you mean cpu"):
        plan(gemma_2b(), device="cpuu")
    with pytest.raises(UsageError, match="is not a size"):
        plan(gemma_2b(), memory="lots")


def test_a_plan_prints_and_parses():
    planned = plan(gemma_2b())
    assert Plan.from_json(json.loads(json.dumps(planned.to_json(), allow_nan=False))) == planned


def test_budgets():
    assert parse_memory("cuda:0=4GB, cpu=8GB") == FrozenDict({"cuda:0": 4 * GB, "cpu": 8 * GB})
    assert parse_memory("4.6GB") == FrozenDict({"*": int(4.6 * GB)})
    assert parse_memory(5 * 2**20) == FrozenDict({"*": 5 * 2**20})


def test_noise_powers_add():
    assert combined_db([(1, 40.0), (1, 40.0)]) == pytest.approx(40.0)
    assert combined_db([(1, 40.0), (1, math.inf)]) == pytest.approx(43.0103, abs=1e-4)
    assert math.isinf(combined_db([(5, math.inf)]))
    assert percent(40.0) == pytest.approx(1.0)


@pytest.mark.parametrize("budget", ["2.2GB", "2.6GB"])
def test_where_no_context_fits_the_least_budget_for_a_short_one_is_named(budget):
    """Ways out stay within reach: less than what the whole context takes, and the longest context that it holds."""
    card = gemma_2b("q8_0", "gguf")
    whole = plan(card).placements[0].memory.most
    (way,) = [way for way in refusal(card, memory=budget) if "--context" in way and "--format" not in way]
    context, more = re.search(r"--context (\d+) --memory ([\d.]+GB)", way).groups()
    assert parse_memory(more)["*"] < whole
    assert plan(card, memory=more, context=int(context))
    with pytest.raises(DoesNotFit):
        plan(card, memory=more, context=int(context) + 64)


def test_the_cache_is_in_q8_0_where_16_bits_do_not_fit_and_the_plan_says_what_that_costs():
    card = gemma_2b("q4_0", "gguf")
    roomy = plan(card)
    use = roomy.placements[0].memory
    tight = plan(card, memory=use.most - 2**20)
    assert (tight.cache_dtype, tight.context, tight.packing) == ("q8_0", roomy.context, roomy.packing)
    assert tight.placements[0].memory.kv_cache == use.kv_cache * 17 // 32
    assert tight.placements[0].memory.most <= use.most - 2**20
    assert "cache f16 → q8_0: 16 bits do not fit, error 0.6 %" in tight.reasons
    (step,) = steps_down(tight, None)
    assert (step.op, step.rung, step.to, str(step.step)) == ("cache", "f16", "q8_0", "out of memory")
    assert steps_down(plan(card, cache_type="q8_0"), "q8_0") == ()
    assert plan(card, memory=use.most - 2**20, cache_type="f16").cache_dtype == "f16"


def test_finer_weights_with_a_cache_in_q8_0_are_better_than_coarse_ones_with_16_bits():
    """For a folder the least error is chosen, whether weights or the cache bring it."""
    use = plan(gemma_2b(), format="q6_k").placements[0].memory
    planned = plan(gemma_2b(), memory=use.most - 2**20, context=4096)
    assert (planned.format, planned.cache_dtype) == ("q6_k", "q8_0")


@pytest.mark.parametrize(
    ("card", "device", "options", "reason"),
    [
        (gemma_2b("q4_0", "gguf"), p2200(), {}, "torch.decode, which has no kernel"),
        (gemma_2b(), cpu(), {"format": "bf16"}, "stored as floats"),
        (gemma_2b("q4_0", "gguf"), cpu(vnni=Level.ABSENT), {}, "no isa.kernels"),
    ],
)
def test_a_cache_that_cannot_be_is_refused_with_the_reason(card, device, options, reason):
    with pytest.raises(UsageError) as caught:
        plan(card, device, cache_type="q8_0", **options)
    assert reason in " ".join(caught.value.facts)


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0", "q5_1", "q4_0"])
def test_the_cache_that_was_asked_for_is_counted(cache_type):
    planned = plan(gemma_2b("q4_0", "gguf"), cache_type=cache_type)
    bits = {"f32": 32, "f16": 16, "q8_0": 8.5, "q5_1": 6, "q4_0": 4.5}[cache_type]
    assert planned.placements[0].memory.kv_cache == 18 * 2 * 256 * 4096 * bits / 8
    assert f"cache {cache_type}: as asked" in planned.reasons


def test_an_unknown_type_of_cache_is_named():
    with pytest.raises(UsageError, match="q8_0"):
        Request(cache_type="q8")
