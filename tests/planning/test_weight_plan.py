"""Test what packed weights keep resident, in huge pages where mappings are their own; sums over equal weights."""

from __future__ import annotations

import pytest

from rung.hardware import catalog
from rung.kernels.cpu.pack import packing
from rung.kernels.cpu.pack.layouts import HUGE, packed_bytes
from rung.models.networks.component import describe
from rung.models.networks.values import plain
from rung.planning.gguf_mixtures import storage
from rung.planning.network_spec import Subject, is_table
from rung.planning.weight_plan import OWN_MAPPING, plan_weights
from rung.planning.weight_plan_cache import WeightPlanCache
from tests.models import meta_models
from tests.planning.cards import cpu, gemma_2b


def test_the_threshold_is_the_arena_s():
    assert packing._ARENA // 4 == OWN_MAPPING


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q6_k", "q8_0"])
def test_large_packed_weights_fill_huge_pages(name):
    weights = plan_weights(Subject.of_card(gemma_2b()), storage(name), cpu(), "f32", packed=True)
    for weight in weights:
        if weight.packing != "r16":
            continue
        least = packed_bytes(weight.format, weight.tensor.shape)
        if least > OWN_MAPPING:
            assert weight.bytes % HUGE == 0
            assert 0 <= weight.bytes - least < HUGE
        else:
            assert weight.bytes == least


@pytest.mark.parametrize("name", ["q4_k", "q4_k_m", "nf4"])
@pytest.mark.parametrize("config", ["mixtral-8x7b-v0.1", "gemma-2b"])
def test_sums_over_what_is_alike_are_those_over_every_weight(config, name):
    """Layers are alike, so a weight plan thinks about one tensor of each class."""
    outline = plain(config, "config", config, describe(meta_models.config(config), "x"))
    subject = Subject.of_component(outline.components[0], "config", "x")
    planned = WeightPlanCache(subject).plan(storage(name), catalog.device("zen 4"), "f32", True)
    assert [weight.tensor for weight in planned.weights] == list(subject.tensors)
    assert planned.bytes(0, subject.layers)[0] == sum(weight.bytes for weight in planned.weights)
    multiplied = [w for w in planned.weights if w.multiplies and not is_table(w.tensor.role)]
    share = {True: subject.experts_share, False: 1.0}
    counted = sum(share["experts" in w.tensor.role] * w.count for w in multiplied)
    assert sum(g.count for g in planned.groups if not (g.once and subject.tied)) == pytest.approx(counted)
    assert len(planned.kinds) < len(subject.tensors) / 3 or name == "q4_k_m"
