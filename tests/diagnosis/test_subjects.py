"""Short statements: what complains of a card or a CUDA, and what only says that all is well."""

import pytest

from rung.diagnosis.explain import rules_of, scene
from rung.diagnosis.rules.subjects import RULES


@pytest.mark.parametrize(
    "line",
    [
        "compiled for sm_80 sm_86 sm_90",
        "Compiling for CUDA 12",
        "-- CUDA_ARCH_LIST: 8.0;8.6",
        "Found CUDA 12.4 and gcc 11",
        "works fine with CUDA 11.8",
        "Running on RTX 5090",
        "CUDA 12.1 support enabled",
    ],
)
def test_what_says_that_all_is_well_complains_of_nothing(line):
    assert not {rule.id for rule in RULES} & {rule.id for rule in rules_of(scene([line.encode()], {}))}


def test_of_two_cards_the_one_that_fails_counts():
    on_older = scene([b"fails on my RTX 5090, works on an RTX 3090"], {})
    on_newer = scene([b"fails on my RTX 3090, works on an RTX 5090"], {})
    assert "works-on-older-card" in {rule.id for rule in rules_of(on_older)}
    assert "works-on-older-card" not in {rule.id for rule in rules_of(on_newer)}
