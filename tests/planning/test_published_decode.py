"""Predictions for kernels of GPUs beside published rates of llama.cpp, and what they are made of."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rung import formats
from rung.core.types import Case, Level
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.kernels.cpu.pack.layouts import FORMATS as PACKED
from rung.kernels.webgpu import instructions
from rung.ops import LADDERS
from rung.planning.network_spec import Subject
from rung.planning.speed import Group, groups, rates
from rung.planning.weight_plan import Weight

FILE = Path(__file__).parents[2] / "benchmarks" / "published_decode.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("published_decode", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["published_decode"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["published_decode"]


def test_predictions_keep_their_bars(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["published_decode.py"])
    assert script.main() == 0, capsys.readouterr().out


def test_every_row_has_a_source_and_makes_sense(script):
    rows, sources = script.read()
    assert {row.source for row in rows} == set(sources)
    assert all(address.startswith("https://") for address in sources.values())
    assert all(1 < row.rate < 1000 and row.depth > 0 for row in rows)
    assert len({(row.device, row.backend, row.model, row.format, row.source) for row in rows}) == len(rows)


def test_ranks_share_the_middle_of_equal_values(script):
    assert script.spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert script.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert script.spearman([1, 1, 2], [5, 5, 9]) == pytest.approx(1)


@pytest.fixture
def subject():
    from rung.models.lookup import find_outline

    outline = find_outline("llama-2-7b", offline=True)
    return Subject.of_component(outline.components[0], outline.kind, outline.path)


def seconds(device, subject, count=7e9, size=3.9e9, rung="webgpu.rows"):
    group = Group("q4_0", rung, False, count, size)
    return 1 / rates((group,), subject, device, 4096, "f16", 1).decode


def test_a_prompt_reads_the_weights_once_for_sixteen_rows(subject):
    card = replace(catalog.device("3090"), bandwidth=1e9)
    group = Group("q4_0", "webgpu.rows", False, 7e9, 3.9e9)
    predicted = rates((group,), subject, card, 4096, "f16", 512)
    assert 56 < predicted.prefill / predicted.decode < 72  # a token reads the cache, too
    quick = replace(card, bandwidth=1e14, peaks=FrozenDict(f32=1e12))
    predicted = rates((group,), subject, quick, 4096, "f16", 512)
    assert predicted.prefill < 16 * 1e12 / (7e9 * 2 * (instructions.of("q4_0", int8=True) + 15 * 0.4))


def test_what_follows_a_norm_behind_a_product_takes_more_instructions_and_fewer_than_float32(subject):
    """In Gemma 2 all but o and down follow one; in Llama nothing does."""
    from rung.models.lookup import find_outline

    outline = find_outline("gemma-2-2b", offline=True)
    gemma = Subject.of_component(outline.components[0], outline.kind, outline.path)
    q4_0 = formats.get("q4_0")
    for model in (gemma, subject):
        matrices = [each for each in model.tensors if len(each.shape) == 2]
        found = groups([(Weight(each, q4_0, "webgpu", "webgpu.rows", 1), 1) for each in matrices], model)
        after = sum(math.prod(each.shape) for each in matrices if each.role.split(".")[-1] not in ("o", "down"))
        assert sum(each.summed for each in found) == (after if model is gemma else 0)
    card = replace(catalog.device("3090"), bandwidth=1e14)
    plain, half = (Group("q4_0", "webgpu.rows", False, 7e9, 3.9e9, 1, part) for part in (0.0, 3.5e9))
    slower = [1 / rates((each,), subject, card, 4096, "f16", 1).decode for each in (half, plain)]
    less = instructions.of("q4_0") - instructions.of("q4_0", int8=True)
    assert 0 < slower[0] - slower[1] < 3.5e9 * 2 * less / card.peaks["f32"]


def test_instructions_are_those_that_were_counted():
    """The bar of the shaders for the common types; what was not counted takes as many as the slowest."""
    assert all(1 < instructions.of(name) <= 4 for name in ("q4_0", "q4_1", "q8_0"))
    assert all(0.5 < instructions.of(name, int8=True) <= 1.5 for name in ("q4_0", "q4_1", "q8_0"))
    assert instructions.of("nf4:64:nested") == instructions.of("nf4:128")
    assert instructions.of("a new format") == max(instructions.of(name) for name in PACKED)


def test_without_an_instruction_for_four_products_tokens_take_those_of_float32(subject):
    """The ladder, and the prediction, by what the card has."""
    card = replace(catalog.device("3090"), bandwidth=1e14)
    dots = card.capability("dot8")
    assert dots.level is Level.NATIVE
    without = {**card.capabilities, "dot8": replace(dots, level=Level.EMULATED)}
    plain = replace(card, capabilities=FrozenDict(without))
    more = instructions.of("q4_0") - instructions.of("q4_0", int8=True)
    assert seconds(plain, subject) - seconds(card, subject) == pytest.approx(7e9 * 2 * more / card.peaks["f32"])
    options = {"linears": ("webgpu.rows",), "head_dim": 128, "devices": 1}
    case = Case("decode_step", "f16", "f32", (32, 4096, 11008, 32000), FrozenDict(options))
    for device, name in ((card, "webgpu.int8"), (plain, "webgpu.f32")):
        reached = replace(device, kind="webgpu", software=FrozenDict(wgpu="0.32.0"))
        assert LADDERS["decode_step"].climb(reached, case).rung.name == name


def test_a_token_takes_its_bytes_or_its_instructions_and_its_dispatches(subject):
    card = catalog.device("3090")
    bound = seconds(card, subject)
    dispatches = bound - 3.9e9 / (0.75 * card.bandwidth)
    assert 3e-6 * 6 * 32 < dispatches < 6e-6 * 6 * 32  # 3 to 5 µs each, and a little for the cache
    quick = replace(card, bandwidth=card.bandwidth * 1e3)
    computed = 7e9 * 2 * instructions.of("q4_0", int8=True) / card.peaks["f32"]
    assert computed < seconds(quick, subject) < computed + 1.2 * dispatches
    assert seconds(card, subject, rung="torch.decode") > 5 * bound
