"""Predicted speeds of processors beside measured ones: rung's on a Zen 4, llama.cpp's as others have published them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rung
from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.planning.network_spec import Subject
from rung.planning.speed import Group, Rates, rates
from tests.planning.cards import gemma_2b

OWN = {"llama 3.2 3b": "q4_k_m", "llama 3.1 8b": "q4_k_m"}
#: Tokens a second of llama.cpp with q4_k_m: https://github.com/geerlingguy/ai-benchmarks and the issues of
#: https://github.com/brand-o/normiebench (34, 41, 46, 8, 52).
PUBLISHED = [
    ("pi 5", "llama 3.2 3b", 4.61, None),
    ("pi 500+", "llama 3.2 3b", 5.55, None),
    ("pi 400", "llama 3.2 3b", 1.60, None),
    ("n150", "llama 3.2 3b", 9.06, None),
    ("ryzen ai 5 340", "llama 3.2 3b", 23.8, None),
    ("i5-9500", "llama 3.1 8b", 6.51, 35.4),
    ("i7-8550u", "llama 3.1 8b", 4.42, 13.1),
    ("i5-1135g7", "llama 3.1 8b", 6.86, 25.5),
    ("ryzen 7 8840u", "llama 3.1 8b", 9.63, 49.8),
    ("threadripper 3970x", "llama 3.1 8b", 16.8, 155.5),
]


@pytest.mark.parametrize(("name", "model", "decode", "prefill"), PUBLISHED)
def test_predictions_beside_what_llama_cpp_reaches(name, model, decode, prefill):
    """Decoding within a factor of 2; prompts, which rung reads faster, up to 2.5."""
    choice = rung.check(model, [name], formats=(OWN[model],)).choices[0]
    assert decode / 2 < choice.speed.decode_tokens_per_second < decode * 2
    if prefill:
        assert prefill / 1.25 < choice.speed.prefill_tokens_per_second < prefill * 2.5


def zen4(level: str, per_clock: float) -> Device:
    """Two cores of a Zen 4 at 3.7 GHz, which read 33 GB/s, held to a level."""
    device = catalog.device("epyc 9554")
    details = {"instructions_per_second": 2 * 3.7e9 * per_clock, "cores": 2, "reads": 0.88}
    kernels = replace(device.capability("isa.kernels"), detail=level)
    peaks = FrozenDict({dtype: peak / 32 for dtype, peak in device.peaks.items()})
    known = replace(device, bandwidth=33e9, peaks=peaks, details=FrozenDict(device.details | details))
    return known.with_capabilities([kernels])


def predicted(device: Device) -> Rates:
    """Gemma 2B with a vocabulary of 32,000 in q4_0."""
    subject = Subject.of_card(gemma_2b("q4_0", "gguf"))
    layers, head = 1_981_808_640, 32_000 * 2048
    groups = [
        Group("q4_0", "numba.row", once, count, count * 4.5 / 8) for once, count in ((False, layers), (True, head))
    ]
    return rates(groups, subject, device, 2048, "f16", 256)


#: Decode and prefill of rung at that level by benchmarks/cpu_levels.py, instructions a clock of cores.table.
@pytest.mark.parametrize(
    ("level", "per_clock", "decode", "prefill"), [("avx2", 4.0, 24.1, 79.6), ("avx512_vnni", 1.7, 26.0, 118.0)]
)
def test_predictions_beside_what_rung_reaches_on_a_zen_4(level, per_clock, decode, prefill):
    found = predicted(zen4(level, per_clock))
    assert found.decode == pytest.approx(decode, rel=0.25)
    assert found.prefill == pytest.approx(prefill, rel=0.35)


def test_a_token_takes_as_long_as_its_bytes_or_as_its_instructions():
    device = zen4("avx2", 4.0)
    slow = replace(device, details=FrozenDict(device.details | {"instructions_per_second": 1e9}))
    wide = replace(device, bandwidth=1e12)
    assert predicted(slow).decode < predicted(device).decode < predicted(wide).decode
    assert predicted(wide).prefill == pytest.approx(predicted(device).prefill, rel=0.1)


def test_what_was_measured_goes_before_what_was_counted():
    device = zen4("avx2", 4.0)
    measured = {"numba.row q4_0": 1e10, "numba.row q4_0 many": 1e11}
    found = predicted(replace(device, rates=FrozenDict(measured)))
    assert found.decode == pytest.approx(1e10 / ((1_981_808_640 + 32_000 * 2048) * 4.5 / 8), rel=0.1)
    assert found.prefill == pytest.approx(1e11 / 2 / 1_981_808_640, rel=0.15)


def test_lower_levels_of_one_processor_are_slower():
    found = [predicted(zen4(level, 2.0)) for level in ("generic", "ssse3", "avx", "avx2", "avx512_vnni")]
    assert [each.prefill for each in found] == sorted(each.prefill for each in found)
    assert [each.decode for each in found] == sorted(each.decode for each in found)


@pytest.mark.parametrize("name", ["ryzen 5800x", "raspberry pi 5", "apple m1 cpu", "i5-8250u"])
def test_the_answer_says_the_level_and_how_sure_it_is(name):
    speed = rung.check("llama 3.2 1b", [name], formats=("q4_0",)).choices[0].speed
    assert speed.level == catalog.device(name).capability("isa.kernels").detail != ""
    assert speed.uncertainty == 0.5


def test_a_name_of_a_whole_machine_asks_about_its_gpu_and_its_processor():
    answer = rung.check("llama 3.2 1b", ["m1"], formats=("q4_0",))
    assert list(answer.best_by_device) == ["apple-m1", "apple-m1-cpu"]
    assert answer.choices[answer.best].device == "apple-m1-cpu"
    assert list(rung.check("llama 3.2 1b", ["m1 8gb"], formats=("q4_0",)).best_by_device) == [
        "apple-m1-8gb",
        "apple-m1-cpu-8gb",
    ]
    assert list(rung.check("llama 3.2 1b", ["3090"], formats=("q4_0",)).best_by_device) == ["geforce-rtx-3090"]
