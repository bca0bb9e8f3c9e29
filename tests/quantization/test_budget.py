"""The choice of formats within a budget, beside every mixture that there is, and the command from end to end."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch

from rung import formats
from rung.cli.app import main
from rung.conversion.within_budget import Calibration, layers, sizes
from rung.core.errors import UsageError
from rung.core.value import FrozenDict
from rung.models import open_card
from rung.models.lookup import find_card
from rung.quantization import budget
from rung.quantization.budget import Option, choose, choose_both, corrected, hull, matrices, rounded, timed
from rung.quantization.divergence import Reference
from tests.tiny import gguf_vocabulary, tiny_checkpoint


def option(size, divergence, name="q4_0"):
    return Option(formats.get(name), size, divergence)


def random_options(seed, tensors=4, each=4):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(10, 100, (tensors, each))
    names = ("q4_0", "q4_1", "q5_0", "q5_1")
    return {
        str(t): [option(int(s), float(rng.exponential() / s), names[i % 4]) for i, s in enumerate(sizes[t])]
        for t in range(tensors)
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_choice_is_the_best_of_all_mixtures_of_its_size(seed):
    options = random_options(seed)
    mixtures = [
        (sum(one.bytes for one in each), sum(one.divergence for one in each))
        for each in itertools.product(*options.values())
    ]
    room = int(np.median([size for size, _ in mixtures]))
    found = choose(options, room, None)
    assert found.bytes <= room
    assert found.divergence == pytest.approx(min(d for s, d in mixtures if s <= found.bytes), rel=1e-9)
    goal = float(np.median([d for _, d in mixtures]))
    near = choose(options, None, goal)
    assert near.divergence <= goal
    assert near.divergence == pytest.approx(min(d for s, d in mixtures if s <= near.bytes), rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_rounded_inputs_count_within_a_size_and_not_within_a_kl(seed):
    rng = np.random.default_rng(seed)
    plain = random_options(seed)
    options = {
        role: [replace(each, inputs=float(rng.exponential() / each.bytes)) for each in listed]
        for role, listed in plain.items()
    }
    joined = {
        role: [replace(each, divergence=each.divergence + each.inputs, inputs=0.0) for each in listed]
        for role, listed in options.items()
    }
    room = sum(sorted(each.bytes for each in listed)[2] for listed in options.values())
    found = choose(options, room, None)
    assert found.formats == choose(joined, room, None).formats
    of_role = {role: {each.format: each for each in listed} for role, listed in plain.items()}
    assert found.divergence == pytest.approx(sum(of_role[role][fmt].divergence for role, fmt in found.formats.items()))
    goal = choose(plain, room, None).divergence
    assert choose(options, None, goal) == choose(plain, None, goal)
    assert choose_both(options, room, goal, 0) == choose_both(plain, room, goal, 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_choice_by_time_is_the_fastest_of_its_kl(seed):
    """No mixture of as little KL is faster."""
    rng = np.random.default_rng(seed)
    options = {
        role: [replace(each, seconds=float(rng.uniform(1, 9))) for each in listed]
        for role, listed in random_options(seed).items()
    }
    mixtures = [
        (sum(one.seconds for one in each), sum(one.divergence for one in each))
        for each in itertools.product(*options.values())
    ]
    goal = float(np.median([divergence for _, divergence in mixtures]))
    found = choose(options, None, goal, "seconds")
    assert found.divergence <= goal
    seconds = min(s for s, d in mixtures if d == pytest.approx(found.divergence, rel=1e-9))
    assert seconds == pytest.approx(min(s for s, d in mixtures if d <= found.divergence * (1 + 1e-9)), rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_a_choice_within_both_keeps_both_and_is_fast(seed):
    """Beside all mixtures: within both limits, and at most a third slower than the fastest of so few tensors."""
    rng = np.random.default_rng(seed)
    options = {
        role: [replace(each, seconds=float(rng.uniform(1, 9))) for each in listed]
        for role, listed in random_options(seed, tensors=6).items()
    }
    mixtures = [
        tuple(sum(getattr(one, name) for one in each) for name in ("bytes", "divergence", "seconds"))
        for each in itertools.product(*options.values())
    ]
    goal = float(np.quantile([divergence for _, divergence, _ in mixtures], 0.5))
    room = int(np.quantile([size for size, divergence, _ in mixtures if divergence <= goal], 0.5))
    found = choose_both(options, room, goal, 0, "seconds")
    assert found.bytes <= room
    assert found.divergence <= goal

    def seconds(choice):
        return min(s for b, d, s in mixtures if b == choice.bytes and d == pytest.approx(choice.divergence, rel=1e-9))

    fastest = min(s for b, d, s in mixtures if b <= room and d <= goal)
    small = choose_both(options, room, goal, 0)
    assert seconds(found) <= seconds(small)
    assert seconds(found) <= 1.35 * fastest
    wide = choose_both(options, 10**9, goal, 0, "seconds")
    assert wide.divergence == choose(options, None, goal, "seconds").divergence


def test_budgets_that_no_mixture_meets_are_refused():
    options = {"a": [option(10, 0.5), option(20, 0.1)]}
    with pytest.raises(UsageError, match="so small") as error:
        choose(options, 9, None)
    assert "1 bytes more" in str(error.value.facts)
    with pytest.raises(UsageError, match=r"0\.1"):
        choose(options, None, 0.05)
    assert choose(options, 10, None).bytes == 10
    with pytest.raises(UsageError, match="keeps both") as error:
        choose_both(options, 15, 0.2, 7)
    assert "27 bytes, 5 too many" in str(error.value.facts)
    assert "KL of 0.5" in str(error.value.facts)


def test_a_hull_is_convex_and_has_no_format_that_another_one_beats():
    found = hull(
        [option(10, 1.0), option(20, 1.0), option(20, 0.9), option(30, 0.1), option(40, 0.05), option(40, 0.2)]
    )
    assert [(one.bytes, one.divergence) for one in found] == [(10, 1.0), (30, 0.1), (40, 0.05)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget")
    tiny_checkpoint(folder / "model", "llama", vocab_size=320, hidden_size=64, intermediate_size=256)
    gguf_vocabulary(folder / "model")
    (folder / "text.txt").write_text(" ".join(f"{n} times {n + 1} is {n * n + n}." for n in range(400)))
    return folder


def quantize(capsys, model, *options):
    with pytest.raises(SystemExit) as ended:
        main(["quantize", str(model / "model"), *map(str, options)])
    out, said = capsys.readouterr()
    return ended.value.code, out, said


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """One for all tests, which read the same statistics of the same model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNG_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_a_file_is_never_larger_than_its_size_and_says_what_to_expect(model, tmp_path, capsys):
    text = ("--text", model / "text.txt")
    whole = sum(path.stat().st_size for path in (model / "model").glob("*.safetensors"))
    target = tmp_path / "a.gguf"
    code, out, _ = quantize(capsys, model, target, "--size", whole // 4, *text, "--json")
    assert code in (0, None)
    said = json.loads(out)
    assert target.stat().st_size == said["file_bytes"] <= whole // 4
    assert said["expected_kl"] > 0
    assert said["measured"]["divergence"] > 0
    fields = gguf.GGUFReader(target).fields
    measured = said["measured"]
    for key, value in {
        "expected_kl": said["expected_kl"],
        "measured_kl": measured["divergence"],
        "perplexity": measured["perplexity"],
        "perplexity_before": measured["perplexity_before"],
        "flips": measured["flips"],
        "tokens": measured["tokens"],
    }.items():
        assert fields[f"rung.quantization.{key}"].parts[-1][0] == pytest.approx(value, rel=1e-6)
    assert len(bytes(fields["rung.quantization.text_sha256"].parts[-1])) == 64
    code, out, _ = quantize(
        capsys, model, tmp_path / "b.gguf", "--max-kl", said["expected_kl"], *text, "--plan", "--json"
    )
    assert json.loads(out)["expected_kl"] <= said["expected_kl"]
    assert not (tmp_path / "b.gguf").exists()


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_bytes(model, tmp_path, capsys):
    """Killed when statistics are gathered, while passes correct them, while it writes, and while it judges."""
    text = ("--max-kl", "0.05", "--text", model / "text.txt")
    code, _, _ = quantize(capsys, model, tmp_path / "whole.gguf", *text)
    assert code in (0, None)
    target, cache = tmp_path / "killed.gguf", tmp_path / "other"
    cache.mkdir()
    for sign in ("statistics/part-*", "rounded-*", "killed.unjudged.gguf.part", "killed.unjudged.gguf"):
        places = [cache, tmp_path]
        command = [sys.executable, "-m", "rung", "quantize", str(model / "model"), str(target), *map(str, text)]
        child = subprocess.Popen(command, env=os.environ | {"RUNG_CACHE": str(cache)})
        while child.poll() is None and not any(list(path.glob(sign)) for path in places):
            time.sleep(0.001)
        child.kill()
        child.wait()
    assert not target.exists()
    again = subprocess.run(command, env=os.environ | {"RUNG_CACHE": str(cache)}, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert target.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert not list(tmp_path.glob("killed*[!f]"))


def test_a_picture_shows_the_choice_among_named_mixtures_and_by_layer(model, tmp_path, capsys):
    picture, target = tmp_path / "a.svg", tmp_path / "a.gguf"
    options = ("--max-kl", "0.05", "--text", model / "text.txt", "--picture", picture, "--json")
    code, _, _ = quantize(capsys, model, target, *options)
    assert code in (0, None)
    drawn = picture.read_text()
    for label in ("best of each size", "q4_0", "q8_0", "chosen, expected", "chosen, measured"):
        assert f">{label}<" in drawn
    by_layer = (tmp_path / "a-layers.svg").read_text()
    assert ">expected<" in by_layer
    assert ">measured<" in by_layer
    found = Calibration(find_card(str(model / "model"), offline=True), model / "text.txt", 1, lambda *_: None)
    choice = choose(found.options, None, 0.05)
    points = layers(found, choice)
    assert [layer for layer, _ in points["measured"]] == [-1, 0, 1]
    assert sum(kl for _, kl in points["expected"]) == pytest.approx(choice.divergence)
    assert sum(kl for _, kl in points["measured"]) == pytest.approx(choice.divergence, rel=1.0)
    best = [kl for _, kl in sizes(found)["best of each size"]]
    assert best == sorted(best, reverse=True)


def test_a_choice_for_a_device_is_the_fastest_there(model, tmp_path, capsys):
    """No slower than the smallest file within the same KL, and within it; with a size it only says how fast."""
    text = ("--text", model / "text.txt", "--plan", "--json")
    within = ("--max-kl", "0.02", *text)
    small = json.loads(quantize(capsys, model, tmp_path / "a.gguf", *within)[1])
    assert "tokens_per_second" not in small
    gains = []
    for device in ("p2200", "raspberry pi 5"):
        fast = json.loads(quantize(capsys, model, tmp_path / "a.gguf", *within, "--for", device)[1])
        assert fast["expected_kl"] <= 0.02
        assert fast["tokens_per_second"] > 0
        size = ("--size", str(small["file_bytes"] + 100))
        sized = json.loads(quantize(capsys, model, tmp_path / "a.gguf", *size, *text, "--for", device)[1])
        gains.append(fast["tokens_per_second"] / sized["tokens_per_second"])
    assert min(gains) >= 0.999
    assert max(gains) > 1.002  # little, for products take a small part of so small a model
    limits = ("--size", str(small["file_bytes"] + 4000), "--for", "p2200")
    both = json.loads(quantize(capsys, model, tmp_path / "a.gguf", *within, *limits)[1])
    assert both["file_bytes"] <= small["file_bytes"] + 4000
    assert both["expected_kl"] <= 0.02
    out = quantize(capsys, model, tmp_path / "a.gguf", *within[:-1], "--for", "p2200")[1]
    assert "tokens/s, predicted" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "q4_0", "--for", "p2200"), "--for chooses within --size or --max-kl"),
        (("--max-kl", "0.1", "--for", "p220"), "Did you mean"),
        (("--max-kl", "0.1", "--software", "torch 2.3"), "that of the card of --for"),
        ((), "one of three options"),
        (("--for", "p2200"), "one of two options"),
        (("--size", "1MB", "--max-kl", "0.1", "--format", "q4_0"), "goes without --size and --max-kl"),
        (("--size", "110000", "--max-kl", "0.001"), "No mixture keeps both"),
        (("--size", "huge"), "is not a size"),
        (("--max-kl", "-1"), "no KL"),
        (("--format", "q4_0", "--plan"), ""),
        (("--size", "3000"), "No mixture is so small"),
    ],
)
def test_budgets_that_make_no_sense(model, tmp_path, capsys, options, said):
    arguments = [*options, "--text", model / "text.txt"]
    code, _, error = quantize(capsys, model, tmp_path / "a.gguf", *arguments)
    assert code == 2
    assert said in error
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("more", [(), ("--max-kl", "9")])
def test_the_size_that_a_refusal_names_is_enough(model, tmp_path, capsys, more):
    target, text = tmp_path / "a.gguf", ("--text", model / "text.txt", *more)
    _, _, error = quantize(capsys, model, target, "--size", "3000", *text)
    (size,) = re.findall(r"--size (\d+)", error)
    assert quantize(capsys, model, target, "--size", size, *text)[0] == 0
    assert target.stat().st_size <= int(size)


@pytest.mark.parametrize(("text", "said"), [("a", "one token"), ("", "empty"), ("one two three", "too few")])
def test_texts_that_show_nothing_are_refused(model, tmp_path, capsys, text, said):
    (tmp_path / "t.txt").write_text(text)
    code, _, error = quantize(capsys, model, tmp_path / "a.gguf", "--size", "1MB", "--text", tmp_path / "t.txt")
    assert code == 2, error
    assert said in error


def test_inputs_do_not_count_by_time_where_no_kernel_takes_any_format():
    card = find_card("demo")
    listed = {tensor.role: (replace(option(10, 0.1), inputs=0.2),) for tensor in matrices(card)}

    class Nothing:
        def seconds(self, tensor, fmt):
            return None

    found = timed(card, listed, Nothing())
    assert set(found) == set(listed)
    assert all(each == (option(10, 0.1),) for each in found.values())


class Passes:
    """Passes that find a KL of 0.004 with rounded weights and ``measured`` with rounded inputs."""

    measured = 0.0

    def __init__(self, card, windows):
        self.card = card

    def compare(self, card, override):
        return SimpleNamespace(divergence=0.004)

    def computed(self, arithmetic):
        return SimpleNamespace(divergence=self.measured)


def test_what_errs_more_than_what_was_tried_is_expected_to_cost_more_than_its_errors(monkeypatch):
    monkeypatch.setattr(budget, "Reference", Passes)
    errors = (0.4, 0.04, 0.004, 0.0004)
    options = {"layers.0.q": tuple(option(10, each) for each in errors)}
    found = corrected(find_card("demo"), None, options, torch.zeros(1, 8), lambda label, done, total: None)
    risen = [each.divergence / error for each, error in zip(found["layers.0.q"], errors, strict=True)]
    assert risen[2:] == pytest.approx([1, 1])
    assert 1.05 < risen[1] < 1.5
    assert risen[0] == pytest.approx(risen[1] ** 2)


@pytest.mark.parametrize(
    ("inputs", "measured", "expected"),
    [
        ((1.0, 3.0), 0.06, (0.02, 0.06)),
        ((1.0, 3.0), math.nan, (0.0, 0.0)),
        ((1.0, 3.0), math.inf, (0.0, 0.0)),
        ((1.0, math.inf), 0.06, (0.0, 0.0)),
        ((0.0, 1e-310), 0.06, (0.0, 0.0)),
        ((-1.0, 0.0), 0.06, (0.0, 0.0)),
    ],
)
def test_inputs_count_as_much_as_a_pass_says_and_not_at_all_where_it_says_nothing(
    inputs, measured, expected, monkeypatch
):
    monkeypatch.setattr(Passes, "measured", measured)
    monkeypatch.setattr(budget, "Reference", Passes)
    options = {"layers.0.q": tuple(replace(option(10, 0.004), inputs=each) for each in inputs)}
    found = corrected(find_card("demo"), None, options, torch.zeros(1, 8), lambda label, done, total: None)
    assert [each.inputs for each in found["layers.0.q"]] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(2))
def test_expected_and_measured_agree_on_text_that_nothing_was_chosen_by(seed, model, tmp_path):
    """A model of chance, whose roundings hide their errors from the text they were made for: by a third at least."""
    card = open_card(model / "model")
    found = Calibration(card, model / "text.txt", 1, lambda label, done, total: None)
    parts = [{tuple(each) for each in part.tolist()} for part in (found.chosen_by, found.corrected_by, found.held_out)]
    assert all(parts)
    wide = {each.format.block: each.inputs for each in found.options["layers.0.down"]}
    assert 0 < wide[32] < wide[256]
    assert len({each.inputs for each in found.options["layers.0.up"]}) == 1  # 64 columns have no blocks of 256
    rng = np.random.default_rng(seed)
    mixture = {role: each[rng.integers(len(each))] for role, each in found.options.items()}
    chosen = {role: option.format for role, option in mixture.items()}
    override = rounded(card, found.rounder, chosen, tmp_path)
    measured = Reference(card, found.held_out).compare(card, override).divergence
    assert sum(option.divergence for option in mixture.values()) == pytest.approx(measured, rel=0.35)
    again = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    assert len(again) > len(chosen) / 2
    fresh = rounded(card, found.rounder, chosen, tmp_path)
    assert all(np.array_equal(override(role), fresh(role)) for role in chosen)
    assert again == {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}


def test_what_was_measured_is_shown_and_goes_where_the_weights_change(model, tmp_path, capsys, monkeypatch):
    target, again = tmp_path / "a.gguf", tmp_path / "b.gguf"
    code, out, _ = quantize(capsys, model, target, "--max-kl", "100", "--json")
    assert code in (0, None)
    measured = json.loads(out)["measured"]
    assert set(measured["kinds"]) == {"prose", "code", "licences", "languages"}
    assert measured["divergence"] == pytest.approx(np.mean([*measured["kinds"].values()]), rel=1e-6)
    card = open_card(target)
    for kind, kl in measured["kinds"].items():
        assert card.metadata[f"rung.quantization.measured_kl.{kind}"] == pytest.approx(kl, rel=1e-6)
    words = f"KL {measured['divergence']:.2g} to its source"
    assert card.divergence == words
    for command in (["check", "--device", "cpu"], ["show"]):
        with pytest.raises(SystemExit):
            main([command[0], str(target), *command[1:]])
        assert words in " ".join(capsys.readouterr().out.split())
    studio = tmp_path / ".lmstudio/models/me/mine"
    studio.mkdir(parents=True)
    (studio / "a.gguf").write_bytes(target.read_bytes())
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["list"])
    assert f"{measured['divergence']:.2g}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["quantize", str(target), str(again), "--format", "q4_1"])
    assert not open_card(again).divergence
    assert not any(key.startswith("rung.quantization") for key in open_card(again).metadata)


@pytest.mark.parametrize("value", ["a text", float("nan"), -1.0, True])
def test_a_measure_that_is_no_number_is_not_shown(value):
    card = find_card("demo", offline=True)
    odd = replace(card, metadata=FrozenDict({**card.metadata, "rung.quantization.measured_kl": value}))
    assert odd.divergence == ""
