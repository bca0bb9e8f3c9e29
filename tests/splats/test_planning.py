"""Plans for training splats: what is chosen when memory gets short, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rung.core.errors import DoesNotFit, UsageError
from rung.core.text import parse_size
from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.models.card import SceneCard, View
from rung.splats.planning import SCALES, SplatPlan, SplatRequest, plan
from rung.splats.planning.costs import Kept, Load, crossing_bytes, memory_use, step_seconds

CPU = Device(
    "cpu",
    "cpu",
    "a processor",
    "x86_64",
    16 << 30,
    8 << 30,
    software=FrozenDict({"torch": "2", "numba": "0"}),
    details=FrozenDict({"cores": 2}),
)


def scene(count: int = 60, width: int = 400, height: int = 400) -> SceneCard:
    pose = (1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    center = (width / 2, height / 2)
    views = tuple(View(f"{n:05}", f"{n:05}.JPG", width, height, 350.0, 350.0, *center, pose) for n in range(count))
    return SceneCard("colmap", "scene", views)


def test_a_small_scene_on_a_processor():
    planned = plan(scene(), CPU)
    assert (planned.width, planned.height, planned.scale, planned.format) == (400, 400, 1.0, "f32")
    assert planned.rung == "numba.tile"
    assert planned.cache_bytes == 60 * 400 * 400 * 3  # all of them
    assert planned.splats == 40_000
    assert planned.steps < 30_000
    assert planned.seconds <= 1800
    assert "steps instead of 30,000" in planned.reasons[0]
    assert planned.fits
    assert SplatPlan.from_json(planned.to_json()) == planned


@pytest.mark.parametrize("card", [scene(), scene(7000, 1600, 1200), scene(1, 64, 48)], ids=["small", "large", "one"])
@pytest.mark.parametrize("device", [CPU, catalog.device("p2200"), catalog.device("4090")], ids=lambda d: d.name)
def test_no_plan_is_above_its_budget_and_more_memory_is_never_less(card, device):
    """From the most memory to the least: splats, resolution and cache never grow, then there is a refusal."""
    before = math.inf
    for tenth in range(60, 1, -2):
        budget = tenth * (1 << 30) // 10
        try:
            planned = plan(card, device, budget)
        except DoesNotFit:
            before = 0
            continue
        assert before > 0, "less memory fits where more did not"
        assert planned.peak <= budget
        assert planned.memory.total <= planned.peak
        assert planned.splats * planned.width * planned.height <= before
        before = planned.splats * planned.width * planned.height


def test_splats_go_when_memory_is_short():
    counts = [
        plan(scene(2), CPU, budget << 20, max_splats=2_000_000, max_resolution=400).splats
        for budget in (6000, 2000, 1000)
    ]
    assert counts[0] == 2_000_000 > counts[1] > counts[2]
    assert "would be of use" in plan(scene(2), CPU, 1 << 30, max_splats=2_000_000).reasons[-1]


def test_before_splats_go_means_become_8_bits_and_harmonics_16():
    """From the most memory to the least: each way of keeping harmonics comes once, and only the last loses splats."""
    choices = []
    for budget in range(2625, 700, -50):
        planned = plan(scene(2), CPU, budget << 20, max_splats=1_000_000, max_resolution=400)
        kept = (planned.state, planned.harmonics, planned.splats < 1_000_000)
        assert ("8 bits" in " ".join(planned.reasons)) == (planned.state == "8bit")
        choices += [] if choices[-1:] == [kept] else [kept]
    assert choices == [("f32", "f32", False), ("8bit", "f32", False), ("8bit", "f16", False), ("8bit", "f16", True)]


def test_a_format_that_is_asked_for_is_kept():
    large = {"max_splats": 1_000_000, "max_resolution": 400}
    halves = plan(scene(2), CPU, format="f32+sh16")
    assert (halves.format, halves.state) == ("f32+sh16", "8bit")
    assert halves.peak < plan(scene(2), CPU).peak
    full, short = (plan(scene(2), CPU, budget << 20, format="f32", **large) for budget in (3000, 1000))
    assert (full.format, full.state, short.format, short.state) == ("f32", "f32", "f32", "8bit")
    assert short.splats < full.splats
    assert SplatPlan.from_json(halves.to_json()) == halves


def test_bytes_of_a_splat_are_those_of_its_arrays():
    assert Kept().bytes(48) == (4 * 59, 4 * 59, 8 * 59)
    assert Kept("8bit").bytes(48) == (4 * 59, 4 * (11 + 9), 8 * 11 + 2 * (48 + 4))
    assert Kept("8bit", "f16").bytes(48)[0] == 4 * 11 + 2 * 48


def test_the_refusal_names_a_budget_that_does():
    with pytest.raises(DoesNotFit) as caught:
        plan(scene(), CPU, 100 << 20)
    assert "needs" in caught.value.facts[0]
    way = caught.value.ways_out[-1]
    enough = parse_size(way.rpartition(" ")[2])
    assert plan(scene(), CPU, enough).peak <= enough


def test_the_refusal_can_be_pasted_into_a_shell():
    with pytest.raises(DoesNotFit) as caught:
        plan(replace(scene(), path="my scene"), CPU, 100 << 20)
    assert all(way.startswith("rung splat train 'my scene' --out DIR --") for way in caught.value.ways_out)


def test_a_refusal_of_large_pictures_names_smaller_ones_that_fit():
    card, budget = scene(60, 8000, 6000), 1 << 30
    with pytest.raises(DoesNotFit) as caught:
        plan(card, CPU, budget, max_resolution=8000)
    words = caught.value.ways_out[0].split()
    assert words[-2] == "--max-resolution"
    assert plan(card, CPU, budget, max_resolution=int(words[-1])).fits


def test_many_large_pictures_stream_through_a_cache():
    card = scene(7000, 1600, 1200)
    planned = plan(card, CPU, 8 << 30, max_resolution=1600)
    assert 0 < planned.cache_bytes < 7000 * 1600 * 1200 * 3
    assert planned.peak <= 8 << 30
    assert planned.memory.workspace == planned.cache_bytes + 4 * (
        2 * 1600 * 1200 + 2 * 1600 * 1200
    )  # one being decoded


def test_what_is_asked_for_is_kept():
    planned = plan(scene(10, 800, 600), CPU, max_splats=5000, max_resolution=300, sh_degree=1, steps=77)
    assert (planned.splats, planned.max_resolution, planned.height, planned.sh_degree, planned.steps) == (
        5000,
        300,
        225,
        1,
        77,
    )
    assert plan(scene(10, 80, 60), CPU, max_resolution=4000).max_resolution == 80  # never larger than the photograph
    timed = plan(scene(), CPU, seconds=60)
    assert timed.seconds <= 60 or timed.steps == 500
    assert not timed.reasons


def test_large_pictures_are_made_smaller_for_a_processor_and_not_for_a_card():
    card = scene(100, 1600, 1200)
    assert plan(card, CPU).scale < 1
    assert plan(card, catalog.device("4090")).scale == 1
    assert plan(card, catalog.device("4090")).steps == 30_000
    assert {planned.scale for planned in SplatRequest(card, CPU).plans()} == set(SCALES)


def test_speed_grows_with_the_device_and_falls_with_splats():
    cards = [catalog.device(name) for name in ("p2200", "3060", "4090")]
    rates = [plan(scene(), device, max_splats=100_000).steps_per_second for device in cards]
    assert rates == sorted(rates)
    many = plan(scene(), CPU, max_splats=100_000).steps_per_second
    assert many < plan(scene(), CPU, max_splats=50_000).steps_per_second
    four = replace(CPU, details=FrozenDict({"cores": 4}))
    assert plan(scene(), four, max_splats=100_000).steps_per_second == pytest.approx(2 * many)


def test_memory_is_no_worse_than_linear():
    for count in (1_000, 30_000, 1_000_000):
        one, two = (Load(times * count, 160_000, 3) for times in (1, 2))
        assert one.listed < two.listed < 2 * one.listed
        small, large = (memory_use(CPU, "numba.tile", load, 0) for load in (one, two))
        assert small.total < large.total < 2 * small.total


def test_a_step_is_counted_with_what_adam_keeps_and_a_bound():
    used = memory_use(CPU, "numba.tile", Load(1000, 160_000, 3), 12_345)
    assert used.weights == used.gradients == 4 * 59 * 1000
    assert used.optimizer == 2 * used.weights
    assert used.workspace == 12_345
    assert used.bound == round(0.05 * (used.total - 12_345))


def test_two_pictures_and_a_bent_lens_are_counted():
    card = scene(10)
    assert SplatRequest(card, CPU, 1).plans()[-1].cache_bytes == 2 * 100 * 100 * 3
    bent = replace(card, views=tuple(replace(view, lens="fisheye", bend=(0.1,) * 4) for view in card.views))
    straight, curved = (plan(each, CPU, max_splats=5000, max_resolution=400) for each in (card, bent))
    assert curved.memory.workspace == straight.memory.workspace + (64 << 20)


@pytest.mark.parametrize("change", [{"image": "a.png"}, {"mask": "a.png"}], ids=["png", "mask"])
def test_what_may_be_transparent_takes_four_bytes_a_pixel(change):
    card = scene(10)
    half = replace(card, views=(*card.views[:5], *(replace(view, **change) for view in card.views[5:])))
    assert plan(half, CPU).cache_bytes == 5 * 400 * 400 * (3 + 4)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_splats": 0}, "--max-splats 0"),
        ({"max_resolution": -4}, "--max-resolution -4"),
        ({"sh_degree": 4}, "0 to 3"),
        ({"format": "q4_k"}, "there are f32"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, words):
    with pytest.raises(UsageError, match=words):
        plan(scene(), CPU, **wrong)


def test_what_crosses_the_bus_and_lies_on_a_card_of_webgpu():
    """Copies of splats and gradients are there, the optimizer's means are not unless the memory is the host's."""
    load, card = Load(100_000, 640_000, 3), replace(CPU, id="webgpu:0", kind="webgpu")
    planned, shared = (
        memory_use(replace(card, details=FrozenDict({"shared_memory": way})), "webgpu.tile", load, 0)
        for way in (False, True)
    )
    assert (planned.weights, planned.gradients, planned.optimizer) == (59 * 400_000, 59 * 400_000, 0)
    assert (shared.weights, shared.gradients, shared.optimizer) == (59 * 800_000, 59 * 800_000, 59 * 800_000)
    assert shared.total > planned.total
    assert crossing_bytes(load) == (2 * 59 * 4 + 24) * 100_000 + 40 * 640_000
    assert crossing_bytes(load, Kept("8bit")) == (2 * 14 * 4 + 24) * 100_000 + 40 * 640_000
    assert step_seconds(card, "webgpu.tile", load) > crossing_bytes(load) / 1e10
