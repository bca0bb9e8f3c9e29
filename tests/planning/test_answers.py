"""Answers of ``check``: the sentence on cards of the catalog, what runs instead, speeds beside those of others."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rung import formats
from rung.core import text
from rung.core.types import Level
from rung.formats.table import grade
from rung.hardware import catalog
from rung.hardware.catalog import llama_cpp
from rung.models.lookup import find_outline
from rung.models.outline import open_outline
from rung.planning.answers.values import article, group_name, share_words
from rung.planning.check import check
from rung.planning.check_result import Question
from rung.planning.gguf_mixtures import storage
from rung.planning.network_spec import Subject
from rung.planning.placement import arrange
from rung.planning.request import Request
from rung.planning.speed import READING_SPEED, at_reading_speed
from rung.planning.weight_plan_cache import WeightPlanCache
from tests.planning.cards import cpu

GB = 2**30
CONFIGS = Path(__file__).parents[1] / "models" / "configs"
#: The CPU that layers are moved to: two cores with fast kernels.
PROCESSOR = replace(cpu(), name="two cores")


def ask(model, card, processor=PROCESSOR, **options):
    devices = [card if not isinstance(card, str) else catalog.device(card)]
    return check(find_outline(model), devices, Question(**options), cpu=processor)


GEMMA, LLAMA = "Gemma 2B on a", "Llama 3.1 8B on a"
RATE = r"[\d.]+ tokens/s"


@pytest.mark.parametrize(
    ("model", "card", "options", "said"),
    [
        ("gemma-2b", "p2200", {}, f"{GEMMA} Quadro P2200: yes, with q8_0 and 4,096 tokens of context, {RATE}"),
        (
            "llama 3.1 8b", "p2200", {},
            f"{LLAMA} Quadro P2200: yes, with q3_k_m and 4,096 tokens of context, {RATE}; "
            rf"or (partly|a quarter|a third|half) on the CPU with q\w+, {RATE}",
        ),
        ("llama 3.1 8b", "2080ti", {}, f"{LLAMA} GeForce RTX 2080 Ti: yes, with q8_0 .*"),
        ("llama 3.1 8b", "5800x", {}, f"{LLAMA} Ryzen 7 5800X: yes, with q6_k .* {RATE}"),
        ("llama 3.1 8b", "gtx 1050 ti", {}, f"{LLAMA} GeForce GTX 1050 Ti: not on the card alone; .* on the CPU .*"),
        ("llama 3.1 70b", "p2200", {}, r".* P2200: no, the least that was tried, q4_k, needs 38.\d GB of 4.9 GB"),
        ("gemma-2b", "p2200", {"formats": ("f16",)}, f"{GEMMA} Quadro P2200: not with f16; it runs with q8_0 .*"),
        ("gemma-2b", "p2200", {"context": 8192}, f"{GEMMA} Quadro P2200: yes, with q8_0 and 8,192 tokens .*"),
        ("gemma-2b", "t4", {"training": "lora"}, f"{GEMMA} Tesla T4: yes, training fits with f16, .*"),
        ("gemma-2b", "rtx a6000", {}, f"{GEMMA}n RTX A6000: yes, with q8_0 .*"),
    ],
)  # fmt: skip
def test_the_sentence_answers_and_names_the_card(model, card, options, said):
    assert re.fullmatch(said + r"\.", ask(model, card, **options).sentence)


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (
            "all-minilm-l6-v2",
            {"formats": ("f16",)},
            r"yes, with f16 and 512 tokens of context, reading [\d,]+ tokens/s",
        ),
        ("whisper-tiny", {"formats": ("f16",)}, rf"yes, with f16 and 448 tokens of context, {RATE}"),
        ("sd-1.5-unet", {"formats": ("q8_0",)}, r"yes, with q8_0, [\d.]+ GB of 4.9 GB"),
        (
            "flux.1-dev-transformer",
            {"formats": ("bf16",)},
            r"no, the least that was tried, bf16, needs [\d.]+ GB of 4.9 GB",
        ),
    ],
)
def test_the_sentence_of_networks_that_write_no_text(config, options, said):
    answer = check(
        open_outline(CONFIGS / f"{config}.json"), [catalog.device("p2200")], Question(**options), cpu=PROCESSOR
    )
    assert re.fullmatch(rf"\S+ on a Quadro P2200: {said}\.", answer.sentence)
    assert not answer.alternatives


def rate_in(words):
    return float(re.search(r"([\d.]+) tokens/s", words)[1])


@pytest.mark.parametrize("model", ["gemma 2 9b", "llama 3.1 8b", "qwen2.5 14b"])
def test_one_rule_says_slowly_of_first_choices_and_of_others(model):
    """The word, the level and the number that is shown agree, wherever the choice stands."""
    pairs = set()
    for card in ("p2200", "gtx 1050 ti", "3060", "arc a380", "2080ti", "4090", "v100"):
        answer = ask(model, card)
        for choice in [*answer.choices, *(other.choice for other in answer.alternatives)]:
            decode = choice.speed.decode_tokens_per_second
            if choice.verdict and decode is not None:
                assert (choice.level == "slow") == (float(text.rate(decode)) < READING_SPEED), (card, choice.format)
        first, _, rest = answer.sentence.partition("; or ")
        if "tokens/s" in first:
            assert ("slowly" in first) == (rate_in(first) < READING_SPEED), answer.sentence
            pairs.add((bool(answer.alternatives), "slowly" in first))
        if "tokens/s" in rest and "slowly" not in first:
            assert ("slowly" in rest) == (rate_in(rest) < READING_SPEED), answer.sentence
    assert len(pairs) >= 2


@pytest.mark.parametrize(("decode", "fast"), [(4.9449, False), (4.949, True), (4.96, True), (5.0, True), (0.1, False)])
def test_what_is_shown_as_reading_speed_is_no_slower_than_it(decode, fast):
    """4.96 is printed as 5.0, so that it is not called slower than 5."""
    assert at_reading_speed(decode) is fast
    assert (float(text.rate(round(decode, 2))) >= READING_SPEED) is fast


def test_conversion_is_a_reason_and_not_slow_where_the_speed_is_known():
    choice = ask("qwen3 0.6b", "p2200", formats=("f16",)).choices[0]
    assert choice.speed.decode_tokens_per_second > READING_SPEED
    assert choice.level == "yes"
    assert "f16 is emulated" in choice.verdict.reason


def test_of_a_pipeline_the_fast_format_is_best_and_not_the_emulated_one(tmp_path):
    """The Quadro P2200 converts f16 to multiply it: it fits, and q8_0 is what to take."""
    parts = ("text_encoder", "unet", "vae")
    for part in parts:
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_bytes((CONFIGS / f"sd-1.5-{part.replace('_', '-')}.json").read_bytes())
    index = {"_class_name": "StableDiffusionPipeline"} | {part: ["diffusers", "X"] for part in parts}
    (tmp_path / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    outline = open_outline(tmp_path)
    answer = check(outline, [catalog.device("p2200")], Question(formats=("f16", "q8_0", "nf4")))
    levels = {choice.format: choice.level for choice in answer.choices}
    assert levels == {"f16": "slow", "q8_0": "yes", "nf4": "yes"}
    assert answer.choices[answer.best].format == "q8_0"
    assert ": yes, with q8_0" in answer.sentence
    alone = check(outline, [catalog.device("p2200")], Question(formats=("f16",)))
    assert ": slowly, with f16" in alone.sentence
    native = check(outline, [catalog.device("v100")], Question(formats=("f16", "q8_0")))
    assert native.choices[native.best].format == "f16"


def test_of_many_devices_the_smallest_is_named_at_reading_speed_and_at_all():
    cards = [catalog.device(name) for name in ("arc a380", "2080ti", "4090", "3060", "rtx a6000")]
    answer = check(find_outline("llama 3.1 8b"), cards, Question(formats=("q4_k_m",)), alternatives=False)
    rates = {choice.device: choice.speed.decode_tokens_per_second for choice in answer.choices}
    fast = sum(rate >= READING_SPEED for rate in rates.values())
    assert rates["arc-a380"] < READING_SPEED
    assert 0 < fast < 5
    assert f"runs on 5 of 5 devices, on {fast} at reading speed; the smallest at reading speed is a" in answer.sentence
    assert "; the smallest that runs it at all is an Arc A380, with q4_k_m, " in answer.sentence
    slow = check(find_outline("llama 3.1 8b"), [cards[0]] * 1 + [replace(cards[0], id=f"{n}") for n in range(4)],
                 Question(formats=("q4_k_m",)), alternatives=False)  # fmt: skip
    assert "slowly on each; the smallest is an Arc A380" in slow.sentence


def test_of_several_devices_each_is_answered_and_of_many_their_number():
    cards = [catalog.device(name) for name in ("p2200", "v100", "t4", "3060", "4090")]
    model = find_outline("gemma-2b")
    assert re.fullmatch(
        r"Gemma 2B: on a Quadro P2200 yes, .*; on a Tesla V100 SXM2 yes, .*; on a Tesla T4 yes, .*\.",
        check(model, cards[:3], Question()).sentence,
    )
    assert check(model, cards, Question()).sentence.startswith(
        "Gemma 2B runs on 5 of 5 devices; the smallest is a Quadro P2200, with q8_0"
    )


@pytest.mark.parametrize("card", ["p2200", "gtx 1050 ti", "gtx 1060 6gb", "arc a380", "rtx 2060", "gtx 1080"])
@pytest.mark.parametrize("model", ["llama 3.1 8b", "qwen2.5 14b", "gemma 2 9b"])
def test_what_runs_instead_really_fits(model, card):
    """Planned again with the options that the alternative names, it has the same memory, and that is there."""
    answer = ask(model, card)
    assert bool(answer.alternatives) == (answer.best is None) or "no, " in answer.sentence
    device = catalog.device(card)
    for other in answer.alternatives:
        group = (device, PROCESSOR) if other.on_cpu else (device,)
        question = Question(formats=(other.choice.format,), context=other.context)
        (again,) = check(find_outline(model), [group], question).choices
        assert again.verdict
        assert again.memory == other.choice.memory
        assert again.memory.total <= again.free
        assert (0 < other.on_cpu < 1) == (len(group) == 2)


def test_a_shorter_context_is_offered_where_the_whole_one_does_not_fit():
    answer = ask("llama 3.1 8b", replace(catalog.device("p2200"), free=int(4.56 * GB), memory=int(4.56 * GB)), None)
    assert (answer.alternatives[-1].choice.format, answer.alternatives[-1].context) == ("q3_k_m", 2048)
    assert "2,048 tokens of context" in answer.sentence


def test_of_shorter_contexts_the_longest_that_fits_is_offered():
    answer = ask("llama 3.1 8b", "rtx 4060 ti", None, context=131072)
    other = answer.alternatives[0]
    assert 2048 < other.context < 131072
    again = ask("llama 3.1 8b", "rtx 4060 ti", None, context=2 * other.context)
    assert not any(choice.verdict for choice in again.choices), "twice as much does not fit in any format"


def test_an_option_that_was_given_is_kept_or_it_is_no_yes():
    kept = ask("llama 3.1 8b", "p2200")
    changed = ask("llama 3.1 8b", "p2200", None, formats=("q8_0",))
    other_format = ask("llama 3.1 8b", "p2200", formats=("q8_0",))
    assert (kept.ok, changed.ok, other_format.ok) == (True, False, True)
    assert [other.choice.format for other in other_format.alternatives if other.on_cpu] == ["q8_0"]
    assert not any(other.as_asked for other in changed.alternatives)
    long = ask("llama 3.2 3b", "p2200", None, formats=("q8_0",), context=32768)
    assert not long.ok
    assert "not with 32,768 tokens of context; it runs with q8_0 and 16,384 tokens" in long.sentence


def test_where_nothing_runs_a_purchase_is_never_the_only_way():
    ways = ask("llama 3.1 70b", "p2200").relaxations
    assert [way.command for way in ways[:2]] == [
        "rung check --device 'Quadro P2200'",
        "rung check llama-3.1-70b --fits",
    ]
    assert ways[-1].command is None


def test_json_has_the_answer_first_and_what_else_was_tried():
    data = ask("llama 3.1 8b", "p2200").to_json()
    assert next(iter(data)) == "answer"
    assert data["choices"][0]["memory"]["total"] > data["choices"][0]["free"], "refused ones have their memory too"
    assert {"change", "context", "on_cpu", "as_asked", "format", "memory", "command"} <= data["alternatives"][0].keys()
    json.dumps(data, allow_nan=False)


# ---- speeds


def test_processors_of_each_level_have_a_speed_of_their_fast_kernels():
    for name in ("5800x", "epyc 7763", "graviton4", "grace cpu", "i7-8700k", "xeon platinum 8375c"):
        choices = {choice.format: choice for choice in ask("llama 3.1 8b", name).choices}
        assert choices["q4_k_m"].speed.decode_tokens_per_second > choices["bf16"].speed.decode_tokens_per_second


def test_below_reading_speed_the_faster_one_is_best():
    """Not the most exact, as where all can be read: within a tenth of the fastest the finest is taken."""
    for bandwidth in (5e9, 10e9, 20e9, 40e9):
        answer = ask("llama 3.1 8b", replace(cpu(), bandwidth=bandwidth))
        rates = {choice.format: choice.speed.decode_tokens_per_second for choice in answer.choices if choice.verdict}
        best = answer.choices[answer.best]
        if max(rates.values()) < READING_SPEED:
            assert rates[best.format] >= 0.9 * max(rates.values())
        else:
            assert rates[best.format] >= READING_SPEED


def test_a_format_that_takes_far_more_than_its_bits_has_a_reason():
    choices = {choice.format: choice for choice in ask("llama 3.1 8b", cpu()).choices}
    assert choices["q5_k"].memory.weights > 1.5 * choices["q6_k"].memory.weights
    assert "its kernel wants q5_k unpacked" in choices["q5_k"].verdict.reason
    assert "unpacked" not in choices["q6_k"].verdict.reason


@pytest.mark.parametrize(("card", "format"), [("2080ti", "q8_0"), ("2080ti", "q4_k"), ("v100", "f16"), ("m2", "q4_k")])
def test_the_bound_is_bandwidth_over_the_bytes_of_a_token(card, format):
    device = catalog.device(card)
    config = json.loads((CONFIGS / "llama-3.1-8b.json").read_text(encoding="utf-8"))
    hidden, layers, wide = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    keys = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    matrices = layers * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * wide)
    head, bits = hidden * config["vocab_size"], formats.get(format).bits
    finer = formats.get("q6_k").bits if bits < 6 else bits
    read = (matrices * bits + head * finer) / 8 + 2 * 2 * 512 * layers * keys
    choice = next(c for c in ask("llama 3.1 8b", device, None, formats=(format,)).choices)
    assert choice.speed.bound_tokens_per_second == pytest.approx(device.bandwidth / read, rel=0.01)


def test_no_speed_is_above_what_the_memory_allows():
    cards = [catalog.device(product.name) for product in catalog.products()[::3]]
    question = Question(formats=("bf16", "q4_k_m"))
    for choice in check(find_outline("gemma-2b"), cards, question, alternatives=False).choices:
        speed = choice.speed
        if speed.decode_tokens_per_second is not None:
            assert speed.decode_tokens_per_second <= speed.bound_tokens_per_second, choice.device


def test_llama_cpp_is_named_where_it_is_faster_with_a_command():
    known = ask("llama 3.1 8b", "3060", formats=("q4_k_m",)).choices[0].speed
    assert not known.slower
    assert 50 <= known.llama_cpp.tokens_per_second <= 65
    assert "discussions/15013" in known.llama_cpp.source
    assert known.llama_cpp.command == "llama-server -hf unsloth/Llama-3.1-8B-Instruct-GGUF:Q4_K_M -ngl 99 -c 4096"
    unknown = ask("llama 3.1 8b", "arc pro b50", formats=("q4_k_m",)).choices[0].speed
    assert unknown.slower
    assert (unknown.llama_cpp.tokens_per_second, unknown.llama_cpp.source) == (None, ""), "never invented"
    fast = ask("llama 3.1 8b", cpu(), formats=("q4_k_m",)).choices[0].speed
    assert not fast.slower


def test_a_command_of_llama_cpp_names_weights_that_exist(tmp_path, monkeypatch):
    """A hub repository of GGUF files where one is known, else a file that rung writes first, else no command."""
    assert ask("34b", "4090", formats=("q4_k_m",)).choices[0].speed.llama_cpp.command == ""
    writes = ask("nanbeige4.1-3b", "4090", formats=("nf4",)).choices[0].speed.llama_cpp.command
    assert writes == (
        "rung quantize Nanbeige/Nanbeige4.1-3B nanbeige4.1-3b-q4_k_m.gguf --format q4_k_m && "
        "llama-server -m nanbeige4.1-3b-q4_k_m.gguf -ngl 99 -c 4096"
    )
    config = check(open_outline(CONFIGS / "gemma-2b.json"), [catalog.device("4090")], Question(formats=("q8_0",)))
    assert config.choices[0].speed.llama_cpp.command == "", "a configuration has no weights"
    for model in ("gemma-2b", "smollm2", "34b", "nanbeige4.1-3b", "mixtral", "gpt-oss-20b"):
        for choice in ask(model, "4090").choices:
            peer = choice.speed.llama_cpp
            assert peer is None or "ORG/REPO" not in peer.command


def test_what_llama_cpp_is_given_rung_quantize_writes():
    formats = ("bf16", "f16", "q8_0", "int8", "q6_k", "q5_k", "q4_k_m", "q4_k", "nf4", "q4_0", "q3_k_m", "q3_k_s")
    for choice in ask("nanbeige4.1-3b", "h100", formats=formats).choices:
        written, _, served = choice.speed.llama_cpp.command.partition(" && ")
        words = written.split()
        assert words[:2] == ["rung", "quantize"]
        assert storage(words[words.index("--format") + 1]) is not None
        assert served.split()[:3] == ["llama-server", "-m", words[3]]


@pytest.mark.parametrize(
    ("card", "bits", "read", "measured"),
    [
        ("2080ti", 4.85, 8.54e9, 45.06),  # https://github.com/geerlingguy/ai-benchmarks, DeepSeek R1 14B in Q4_K_M
        ("m2 ultra", 4.85, 4.62e9, 76.28),  # https://github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference
        ("m2 ultra", 16, 15.01e9, 36.25),
        ("rtx a6000", 4.85, 4.62e9, 102.22),
        ("4080", 4.85, 4.62e9, 106.22),
        ("m1 max", 16, 141e9, None),  # more than it has, and still a share
    ],
)
def test_figures_for_one_model_tell_those_of_another(card, bits, read, measured):
    """Held against measurements of others that are not in the table."""
    rate, row = llama_cpp.expected(catalog.find(card).name, bits, read)
    assert row.card == catalog.find(card).name
    assert measured is None or rate == pytest.approx(measured, rel=0.2)


def test_published_figures_are_of_cards_and_below_what_their_memory_allows():
    for card, rows in llama_cpp.published().items():
        assert catalog.find(card).name == card
        for row in rows:
            assert 0.2 < row.tokens_per_second * row.bytes / catalog.find(card).bandwidth < 0.95
            assert "https://" in row.source


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llama-2-7b", "llama-2-7b"),
        ("llama-3-8b", "llama-3.1-8b"),
        ("llama-3-70b", "llama-3.1-70b"),
        ("llama-3.2-3b", ""),
    ],
)
def test_the_bytes_of_published_models_are_those_of_their_shapes(name, config):
    outline = open_outline(CONFIGS / f"{config}.json") if config else find_outline("llama 3.2 3b")
    plans = WeightPlanCache(Subject.of_component(outline.components[0], "folder", name))
    device = catalog.device("b300")
    sizes = {row.model: row.bytes for rows in llama_cpp.published().values() for row in rows}
    for model, published in sizes.items():
        if model.partition(":")[0] == name:
            weight_plan = arrange(plans, storage(model.partition(":")[2]), (device,), Request(), 512, True).weight_plan
            assert weight_plan.token_bytes[0] == pytest.approx(published, rel=0.02), model


def test_a_model_that_is_too_small_has_no_figure():
    assert llama_cpp.expected("GeForce RTX 4090", 4.5, 0.3e9) is None


# ---- words


def test_better_floors_have_better_words():
    words = ["as stored", "hard to tell", "slight", "noticeable", "clear loss", "poor"]
    grades = [grade(floor) for floor in (math.inf, *range(60, 0, -1))]
    assert list(dict.fromkeys(grades)) == words
    known = {
        name: grade(formats.get(name).floor_db) for name in ("q8_0", "q6_k", "q5_k", "q4_k", "nf4", "q3_k", "q2_k")
    }
    assert list(known.values()) == ["hard to tell"] * 2 + ["slight"] + ["noticeable"] * 2 + ["clear loss", "poor"]


def test_names_in_a_sentence():
    names = {
        "Quadro P2200": "a",
        "RTX A6000": "an",
        "Apple M4": "an",
        "Xeon 6980P": "a",
        "NVIDIA H200": "an",
        "Tesla T4": "a",
    }
    assert {name: article(name) for name in names} == names
    pair = [replace(catalog.device("3090"), id=each) for each in "ab"]
    assert group_name([*pair, replace(PROCESSOR, real=True)]) == "2 x GeForce RTX 3090 + this CPU"
    assert [share_words(share) for share in (0.01, 0.25, 0.5, 0.66, 0.99)] == [
        "partly",
        "a quarter",
        "half",
        "two thirds",
        "mostly",
    ]


def test_a_device_without_kernels_is_the_reason_and_not_its_name():
    plain = replace(cpu(vnni=Level.ABSENT), name="anything")
    choice = next(c for c in ask("gemma-2b", plain).choices if c.format == "q4_k")
    assert choice.speed.reason == "rung has no fast kernel for q4_k on this CPU"
