"""Measure what a way to run costs, beside rung's own engine, and choose one by a KL."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from rung import formats
from rung.core.errors import DoesNotFit, UsageError
from rung.core.value import FrozenDict
from rung.engine import planning as engine_planning
from rung.engine.load import load
from rung.engine.planning import make_plan
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.models import open_card
from rung.models.lookup import find_path
from rung.ops.decode_step.rope import spread_evenly
from rung.quantization import choose_within
from rung.quantization.divergence import Reference
from rung.quantization.network import EXACT, Arithmetic, in_blocks
from rung.quantization.running import Costs, choose_way, choose_way_of, within


def nothing(label, done, total):
    pass


@pytest.fixture(scope="module")
def demo():
    return open_card(find_path("demo"))


def planning(card):
    def plan(*, format, cache_type):
        return make_plan(card, format=format, cache_type=cache_type, device="cpu", context=256)[0]

    return plan


def test_blocks_are_those_of_the_codec():
    x = np.random.default_rng(0).normal(0, 3, (40, 96)).astype(np.float32)
    x[3, :32] = 0
    encoded = formats.decode(formats.encode(x, formats.get("q8_0")))
    np.testing.assert_array_equal(in_blocks(torch.from_numpy(x), torch.float16).numpy(), encoded)


def test_inputs_in_blocks_of_256_share_a_step():
    x = np.random.default_rng(0).normal(0, 3, (8, 512)).astype(np.float32)
    x[:, 300] = 100
    found = Arithmetic(inputs="int8:256").entering(torch.from_numpy(x), "f32").numpy()
    steps = np.abs(x).reshape(8, 2, 256).max(axis=2) / 127
    np.testing.assert_allclose(found[:, 300], 100, rtol=1e-6)
    codes = found.reshape(8, 2, 256) / steps[..., None]
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-3)
    error = np.abs(found - x).reshape(8, 2, 256).max(axis=2)
    assert ((error > 0.4 * steps) & (error < 0.501 * steps)).all()
    rest = torch.from_numpy(x[:, :96])
    assert torch.equal(Arithmetic(inputs="int8:256").entering(rest, "f32"), in_blocks(rest, torch.float32))


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q5_1", "q4_0"])
def test_it_is_what_the_engine_loses(demo, cache_type):
    """Compare the engine's logits of the same tokens with those of f32 throughout."""
    ids = torch.randint(3, demo.decoder.vocabulary, (1, 200), generator=torch.Generator().manual_seed(1))
    expected = Reference(demo, ids).computed(Arithmetic(cache_type, "int8")).divergence
    logits = {}
    for name, options in (("exact", {"format": "f32"}), ("mine", {"cache_type": cache_type})):
        with SequenceReader(load("demo", context=256, device="cpu", **options).backend) as reader:
            found = torch.from_numpy(reader.logits(ids[0].tolist()).astype(np.float64))
            logits[name] = found[:-1].log_softmax(dim=1)
    lost = (logits["exact"].exp() * (logits["exact"] - logits["mine"])).sum(dim=1).mean()
    assert expected == pytest.approx(float(lost), rel=0.35)
    assert expected > 1e-7


def test_less_is_lost_by_wider_ways_and_nothing_by_f32(demo):
    costs = Costs(demo, 256, nothing)
    narrow = ("q4_0", "q5_1", "q8_0", "f32")
    found = [costs.of(Arithmetic(*each)) for each in (*((cache, "int8") for cache in narrow), ("f16",))]
    assert all(wide > narrow for wide, narrow in pairwise(found))
    assert found[-1] > costs.of(EXACT) == 0


def test_the_least_memory_within_a_kl_is_chosen(demo):
    costs = Costs(demo, 256, nothing)
    memory = []
    for cache in ("q4_0", "q5_1", "q8_0"):
        looser = costs.of(Arithmetic(cache, "int8"))
        way, usual = choose_way(demo, looser * 1.01, planning(demo), nothing)
        assert (way.format, way.plan.cache_dtype) == (None, cache)
        assert way.divergence == pytest.approx(looser)
        memory.append(way.plan.memory)
    assert memory[0] < memory[1] < memory[2] < usual.memory
    assert "in f16" in way.words(usual, 0.1)
    way, _ = choose_way(demo, 0.0, planning(demo), nothing)
    assert (way.format, way.plan.cache_dtype, way.divergence) == ("f32", "f32", 0.0)


@pytest.mark.parametrize("size", [32, 64, 96])
def test_nibbles_are_rotated_by_a_rotation_and_nearest_where_values_are_equal(size):
    x = np.random.default_rng(size).standard_normal((7, size)).astype(np.float32)
    turned = spread_evenly(x)
    np.testing.assert_allclose((turned**2).sum(axis=1), (x**2).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(spread_evenly(turned), x, atol=1e-5)
    x[:] = 0
    x[:, 5] = 8
    part = size & -size
    np.testing.assert_allclose(np.abs(spread_evenly(x))[:, :part], 8 / part**0.5, rtol=1e-6)
    np.testing.assert_allclose(Arithmetic("q4_0").stored(torch.from_numpy(x)), x, atol=8e-3)


def test_what_does_not_fit_is_not_taken_and_the_refusal_says_what_there_is(demo):
    def tight(*, format, cache_type):
        if format is not None:
            raise DoesNotFit("too large", ["it takes a lot"])
        return planning(demo)(format=format, cache_type=cache_type)

    with pytest.raises(UsageError) as refused:
        choose_way(demo, 1e-9, tight, nothing)
    said = "\n".join(refused.value.facts)
    assert "a cache in f16" in said
    assert "it takes a lot" in said
    least = float(refused.value.ways_out[0].split()[1])
    assert choose_way(demo, least, tight, nothing)[0].divergence <= least


@pytest.mark.parametrize(("max_kl", "loading"), [(-1, {}), (float("nan"), {}), (1, {"cache_type": "f16"})])
def test_what_makes_no_sense_is_refused_before_torch_is_looked_for(monkeypatch, max_kl, loading):
    monkeypatch.setattr(engine_planning, "need_software", lambda **_: pytest.fail("software was looked for"))
    with pytest.raises(UsageError, match="--max-kl"):
        choose_within("demo", max_kl, loading)


def test_memory_for_others_is_left_by_what_is_chosen():
    """``rung serve`` has requests beside a model, and plans with room for them once the way is chosen."""
    options = {"device": "cpu", "context": 256}
    usual = choose_way_of("demo", 10, options, nothing)[1]
    tight = {**options, "memory": f"{(usual.placements[0].memory.most >> 20) + 2}MB"}
    assert within("demo", 10, tight, nothing).changes["cache_type"] == "q4_0"
    with pytest.raises(DoesNotFit):
        within("demo", 10, {**tight, "reserved": 64 << 20}, nothing)


def test_a_measurement_is_kept(demo, monkeypatch):
    first = Costs(demo, 256, nothing).of(Arithmetic("q8_0", "int8"))
    monkeypatch.setattr(Reference, "__init__", partial(pytest.fail, "measured again"))
    assert Costs(demo, 256, nothing).of(Arithmetic("q8_0", "int8")) == first


def test_a_file_that_is_far_from_its_source_has_less_of_the_budget(demo):
    changed = replace(demo, metadata=FrozenDict({**demo.metadata, "rung.quantization.measured_kl": 0.5}))
    with pytest.raises(UsageError, match="No way") as refused:
        choose_way(changed, 0.4, planning(changed), nothing)
    assert any("weights alone are 0.5" in fact for fact in refused.value.facts)
    assert choose_way(changed, 0.5, planning(changed), nothing)[0].format == "f32"


@pytest.mark.slow
def test_a_context_of_one_token_is_measured_on_windows_that_have_a_next_one(demo):
    costs = Costs(demo, 1, nothing)
    assert costs.tokens > 3000
    assert 0 < costs.of(Arithmetic("q8_0", "int8")) < 1
