"""What a packed weight keeps resident: whole huge pages where it has a mapping of its own."""

from __future__ import annotations

import pytest

from rung.kernels.cpu import arena
from rung.kernels.cpu.layouts import HUGE, packed_bytes
from rung.planning.mixture import storage
from rung.planning.recipe import OWN_MAPPING, recipe
from rung.planning.subject import Subject
from tests.planning.cards import cpu, gemma_2b


def test_the_threshold_is_the_arena_s():
    assert arena._ARENA // 4 == OWN_MAPPING


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q6_k", "q8_0"])
def test_large_packed_weights_fill_huge_pages(name):
    weights = recipe(Subject.of_card(gemma_2b()), storage(name), cpu(), "f32", packed=True)
    for weight in weights:
        if weight.packing != "r16":
            continue
        least = packed_bytes(weight.format, weight.tensor.shape)
        if least > OWN_MAPPING:
            assert weight.bytes % HUGE == 0
            assert 0 <= weight.bytes - least < HUGE
        else:
            assert weight.bytes == least
