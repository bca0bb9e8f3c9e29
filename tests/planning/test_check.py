"""``check``: agrees with the plan of ``rung run``, refuses with reasons, names the smallest changes."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from rung import formats
from rung.core.errors import ContextTooLong, UnknownFormat, UsageError
from rung.core.text import size
from rung.core.types import StepClass
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.models.card import Tensor
from rung.models.networks.values import Component, Outline, Phase, Shape, plain, shape_of_decoder
from rung.models.outline import open_outline
from rung.planning.check import check
from rung.planning.check_result import Question
from rung.planning.network_spec import Subject
from rung.planning.request import Request
from rung.planning.solve import solve
from rung.planning.speed import READING_SPEED
from rung.planning.training import activation_bytes
from tests.planning.cards import cpu, gemma_2b, p2200

GB = 2**30
MEMORY = {"weights", "kv_cache", "activations", "workspace", "runtime", "gradients", "optimizer", "total"}


def outline(format="bf16", kind="folder", layers=18):
    card = gemma_2b(format, kind, layers)
    component = Component("model", "gemma", "decoder", card.tensors, shape_of_decoder(card.decoder), card.decoder)
    return plain(card.name, kind, card.path, component, card)


def only(model, device, **options):
    """The one choice of a question with one format."""
    (choice,) = check(model, [device], Question(**options)).choices
    return choice


@pytest.mark.parametrize("device", [cpu(), cpu(3.0), cpu(2.2), p2200(), catalog.device("v100")], ids=lambda d: d.id)
@pytest.mark.parametrize(("format", "kind"), [("bf16", "folder"), ("q8_0", "gguf")])
def test_check_and_run_agree(device, format, kind):
    """The same format, memory, speed and error, whatever is best; and a plan exists exactly where a choice is ok."""
    model = outline(format, kind)
    answer = check(model, [device], Question(context=2048))
    stored = kind == "gguf"
    own = [c for c in answer.choices if c.format == "stored"] if stored else answer.choices
    if not any(c.verdict for c in own):
        assert not stored or answer.best != 0
        return
    best = answer.choices[answer.best]
    planned = solve(model.card, (device,), Request(context=2048))
    assert best.format == planned.format.removesuffix(":64")
    assert best.memory == planned.placements[0].memory
    assert best.speed.decode_tokens_per_second == pytest.approx(planned.decode_rate, abs=0.01)
    assert best.error_db == planned.error_db
    for candidate in planned.candidates:
        choice = next(c for c in answer.choices if c.format == candidate.format.removesuffix(":64"))
        if candidate.verdict:
            assert choice.verdict


def test_a_refusal_counts_the_bound_of_its_error():
    choice = check(outline(), [catalog.device("t4")], Question(training="full", formats=("f16",))).choices[0]
    assert size(choice.memory.most) != size(choice.memory.total)
    assert choice.verdict.reason == f"needs up to {size(choice.memory.most)}, Tesla T4 has {size(choice.free)}"


def test_gemma_on_a_p2200():
    """The founding case: bf16 emulated and too big, f16 too big, a quantized format is best and fits."""
    answer = check(outline(), [catalog.device("p2200")], Question(context=4096))
    by_format = {choice.format: choice for choice in answer.choices}
    assert not by_format["bf16"].fits
    assert "emulated" in by_format["bf16"].verdict.reason
    assert not by_format["f16"].fits
    best = answer.choices[answer.best]
    assert best.format not in ("bf16", "f16")
    assert best.memory.total < 5059 * 2**20
    old = check(outline(), [catalog.device("p2200", "torch 1.10+cu102")], Question(formats=("bf16",))).choices[0]
    assert not old.verdict
    assert "BFloat16" in old.verdict.reason
    assert old.verdict.step is not StepClass.OUT_OF_MEMORY


def test_the_json_has_the_promised_keys():
    data = json.loads(json.dumps(check(outline(), [cpu(), p2200()], Question()).to_json(), allow_nan=False))
    assert data.keys() >= {"choices", "best", "best_by_device", "relaxations"}
    for choice in data["choices"]:
        assert choice.keys() >= {
            "format", "device", "fits", "level", "verdict", "memory", "speed", "error_db", "command",
        }  # fmt: skip
        assert choice["memory"].keys() == MEMORY
        assert choice["memory"]["total"] == sum(choice["memory"][name] for name in MEMORY - {"total"})
        assert choice["level"] in ("yes", "slow", "no")
        assert choice["verdict"]["ok"] == (choice["level"] != "no")
        assert choice["verdict"]["ok"] or choice["verdict"]["reason"]
    assert data["best_by_device"].keys() == {"cpu", "cuda:0"}
    assert all(data["choices"][index]["device"] == device for device, index in data["best_by_device"].items())
    assert data["best"] in data["best_by_device"].values()


def test_fits_is_about_memory_alone():
    old = only(outline(), catalog.device("v100", "torch 1.10+cu102"), formats=("bf16",))
    assert old.fits == (old.memory.most <= old.free)
    small = only(outline(), cpu(1.5), formats=("q8_0",))
    assert (small.fits, small.level) == (False, "no")


def test_what_fits_fits_with_its_error_bound():
    options = {"formats": ("int8",), "cache_type": "f16"}
    need = only(outline(), cpu(), **options).memory
    assert only(outline(), cpu(), **options, memory=FrozenDict({"*": need.most})).fits
    assert not only(outline(), cpu(), **options, memory=FrozenDict({"*": need.most - 1})).fits


def test_where_only_a_cache_in_q8_0_fits_that_is_the_answer_and_says_so():
    roomy = only(outline(), cpu(), formats=("int8",))
    tight = only(outline(), cpu(), formats=("int8",), memory=FrozenDict({"*": roomy.memory.most - 1}))
    assert tight.fits
    assert tight.memory.kv_cache == roomy.memory.kv_cache * 17 // 32
    assert "cache f16 → q8_0: 16 bits do not fit, error 0.6 %" in tight.verdict.reason
    explicit = only(outline(), cpu(), formats=("int8",), cache_type="q8_0")
    assert explicit.memory == tight.memory
    assert "--cache-type q8_0" in explicit.command


def test_batch_and_context_are_in_the_cache():
    one = only(outline(), cpu(), formats=("q8_0",), context=1024)
    four = only(outline(), cpu(), formats=("q8_0",), context=1024, batch=4)
    assert four.memory.kv_cache == 4 * one.memory.kv_cache == 4 * 2 * 18 * 256 * 1024 * 2
    assert four.memory.weights == one.memory.weights


def test_what_is_stored_quantized_can_stay_so():
    """gpt-oss in mxfp4: as stored comes first, wins where it fits, and loses nothing; fp8 is no format of rung."""
    configs = Path(__file__).parents[1] / "models" / "configs"
    oss, deep = (open_outline(configs / f"{name}.json") for name in ("gpt-oss-20b", "deepseek-v3"))
    answer = check(oss, [catalog.device("4090")], Question())
    stored = answer.choices[0]
    assert (stored.format, stored.level, answer.best) == ("stored", "yes", 0)
    assert stored.memory.weights == pytest.approx(oss.weight_bytes, rel=0.01)
    assert math.isinf(stored.error_db)
    assert "stored" not in {choice.format for choice in check(deep, [catalog.device("4090")], Question()).choices}
    with pytest.raises(UnknownFormat, match="F8_E4M3, which rung does not decode"):
        check(deep, [cpu()], Question(formats=("stored",)))


def test_what_reads_no_text_has_no_context_and_no_speed_of_reading():
    answer = check(
        open_outline(Path(__file__).parents[1] / "models" / "configs" / "sd-1.5-unet.json"), [cpu()], Question()
    )
    assert answer.context == 0
    assert answer.choices[0].speed.prefill_tokens_per_second is None


def test_two_cards_hold_what_one_does_not():
    pair = (replace(p2200(), id="a"), replace(p2200(), id="b"))
    alone = check(outline(), [pair[0]], Question(formats=("bf16",))).choices[0]
    both = check(outline(), [pair], Question(formats=("bf16",))).choices[0]
    assert not alone.fits
    assert both.fits
    assert both.device == "a+b"
    assert both.free == 2 * alone.free
    assert both.memory.runtime == 2 * alone.memory.runtime


def test_one_card_that_holds_all_leaves_the_other_alone():
    pair = (replace(p2200(), id="a"), replace(p2200(), id="b"))
    alone = check(outline(), [pair[0]], Question(formats=("q4_k",))).choices[0]
    both = check(outline(), [pair], Question(formats=("q4_k",))).choices[0]
    assert both.memory == alone.memory
    assert both.free == 2 * alone.free, "the budget is that of both"


def test_a_budget_is_no_more_than_the_device_has():
    big = check(outline(), [p2200()], Question(formats=("f32",), memory=FrozenDict({"*": 64 * GB}))).choices[0]
    assert not big.verdict
    assert big.free == p2200().memory
    absent = check(outline(), [replace(p2200(), real=False)], Question(memory=FrozenDict({"*": 64 * GB}))).choices[0]
    assert absent.free == p2200().budget, "of a card that is not here what an idle one has free"


def test_slow_says_why():
    choice = only(outline(), replace(cpu(), bandwidth=3e9), formats=("bf16",))
    assert choice.level == "slow"
    assert choice.speed.decode_tokens_per_second < READING_SPEED
    assert "tokens/s" in choice.verdict.reason


@pytest.mark.parametrize(
    ("options", "cards", "words"),
    [
        ({"training": "full"}, ["a100 80gb"], ""),
        ({"training": "full"}, ["3090"], "adapters"),
        ({"training": "full", "optimizer": "adafactor", "batch": 64}, ["a6000"], "8 sequences at a time"),
        ({"training": "full", "formats": ("bf16",)}, ["nvidia a40"], "an optimizer with 8-bit state"),
        ({"training": "full", "formats": ("nf4",)}, ["a100 80gb"], "another format"),
        ({"training": "lora", "formats": ("f32",)}, ["3060 12gb"], "another format"),
        ({"training": "lora", "formats": ("f16",), "batch": 8}, ["p4000"], "another format, one sequence at a time"),
        ({"training": "lora"}, ["3090", "3090"], "one device by itself"),
    ],
)
def test_training_that_does_not_fit_names_one_that_does(options, cards, words):
    group = tuple(replace(catalog.device(card), id=f"{number}") for number, card in enumerate(cards))
    answer = check(outline(), [group], Question(**options))
    assert (answer.best is None) == bool(words)
    assert (answer.context, answer.sequence) == (0, 1024)
    assert [one.change for one in answer.relaxations[:1]] == ([words] if words else [])


@pytest.mark.parametrize(
    ("options", "card"),
    [
        ({"training": "lora", "batch": 4, "sequence": 4096}, "p4000"),
        ({"training": "lora", "batch": 1, "sequence": 8192}, "p2200"),
        ({"training": "full", "optimizer": "adafactor", "batch": 64}, "a6000"),
        ({"training": "lora", "formats": ("f16",), "batch": 8, "sequence": 2048}, "p4000"),
    ],
)
def test_a_smaller_batch_and_a_shorter_sequence_are_computed(options, card):
    """The offered size trains there, and one step more does not: it is the largest."""
    device = catalog.device(card)
    answer = check(outline(), [device], Question(**options))
    assert answer.best is None
    offered = [one for one in answer.relaxations if one.command and "--fits" not in one.command]
    assert any("sequence" in one.change for one in offered), answer.relaxations
    for one in offered:
        words = shlex.split(one.command)
        named = {words[at]: words[at + 1] for at in range(3, len(words) - 1) if words[at].startswith("--")}
        assert catalog.find(named["--device"]).name == device.name
        base = {name: value for name, value in options.items() if name not in ("formats", "optimizer")}
        base |= {"formats": (named["--format"],) if "--format" in named else ()}
        base |= {"optimizer": named.get("--optimizer"), "training": named["--training"]}
        now = base | {"batch": int(named.get("--batch", 1)), "sequence": int(named.get("--sequence", 1024))}
        assert check(outline(), [device], Question(**now)).best is not None, one
        if (more := now["batch"] + 1) <= options["batch"] and "at a time" in one.change:
            assert check(outline(), [device], Question(**(now | {"batch": more}))).best is None
        if now["sequence"] < options.get("sequence", 1024) and "sequences of" in one.change:
            longer = now | {"sequence": now["sequence"] + 64}
            assert check(outline(), [device], Question(**longer)).best is None


def test_where_nothing_fits_the_relaxations_help():
    model, small = outline(), cpu(1.4)
    answer = check(model, [small], Question(context=4096))
    assert answer.best is None
    assert dict(answer.best_by_device) == {"cpu": None}
    more = answer.relaxations[-1].change.split(" GB")[0].rpartition(" ")[2]
    assert check(model, [cpu(float(more))], Question(context=4096)).best is not None


def test_llama_cpp_mixtures_are_sized_by_their_weight_plans():
    """Q4_K_M of Gemma 2B: tied head in q6_k, half of the down projections finer, and so above q4_k."""
    coarse, mixed = (only(outline(), p2200(), formats=(name,)).memory.weights for name in ("q4_k", "q4_k_m"))
    assert coarse < mixed < 1.1 * coarse


def test_training():
    """Full: 16 bytes a weight with Adam; LoRA: adapters alone are trained; blocks cannot be trained themselves."""
    count = outline().parameters
    big = replace(p2200(), memory=80 * GB, free=80 * GB)
    full = only(outline(), big, formats=("bf16",), training="full", batch=1, sequence=512)
    assert full.memory.gradients == pytest.approx(2 * count, rel=0.01)
    assert full.memory.weights + full.memory.gradients + full.memory.optimizer == pytest.approx(16 * count, rel=0.01)
    assert full.command is None
    lora = only(outline(), big, formats=("nf4",), training="lora", rank=16, sequence=512)
    adapters = 18 * 16 * (2 * (2048 + 2048) + 2 * (2048 + 256) + 3 * (2048 + 16384))
    assert (lora.memory.gradients, lora.memory.optimizer) == (4 * adapters, 8 * adapters)
    blocks = only(outline(), big, formats=("nf4",), training="full")
    assert "blocks" in blocks.verdict.reason
    assert not blocks.verdict


def test_training_takes_checkpoints_where_it_does_not_fit_without():
    card, options = catalog.device("v100"), {"formats": ("f16",), "training": "lora", "sequence": 2048, "batch": 2}
    roomy = only(outline(), replace(card, free=80 * GB), **options)
    tight = only(outline(), replace(card, free=roomy.memory.total - GB), **options)
    assert "without checkpointing" in roomy.verdict.reason
    assert "with gradient checkpointing" in tight.verdict.reason
    assert tight.memory.activations < roomy.memory.activations


@pytest.mark.parametrize("free", [80, 10])
def test_training_says_what_both_ways_take(free):
    """Also where neither fits; what differs are the activations, which are those of ``activation_bytes``."""
    model, options = outline(), {"formats": ("f16",), "training": "lora", "sequence": 2048, "batch": 2}
    choice = only(model, replace(catalog.device("v100"), memory=80 * GB, free=free * GB), **options).to_json()
    steps, memory = choice["checkpointing"], choice["memory"]
    taken = steps["with" if steps["taken"] else "without"]
    assert steps["taken"] == (free == 10)
    assert (taken["activations"], taken["total"]) == (memory["activations"], memory["total"])
    subject = Subject.of_card(model.card)
    for way in ("with", "without"):
        assert steps[way]["activations"] == activation_bytes(subject, 2, 2048, way == "with")
        assert steps[way]["total"] - steps[way]["activations"] == memory["total"] - memory["activations"]
    assert "checkpointing" not in only(model, p2200(), formats=("f16",)).to_json()


def pipeline():
    def part(name, role, rows):
        weight = Tensor("layers.0.linear", "w", (rows, 4096), "f16", 0, 0, rows * 4096 * 2)
        return Component(name, name, role, (weight,), Shape(layers=1, hidden=4096, heads=32, head_dim=128))

    parts = (
        part("text_encoder", "encoder", 40960),
        part("transformer", "denoiser", 20480),
        part("vae", "autoencoder", 64),
    )
    phases = (Phase("encode", ("text_encoder",)), Phase("denoise", ("transformer",)), Phase("decode", ("vae",)))
    return Outline("pipe", "pipeline", "pipe", parts, phases)


def test_a_pipeline_needs_its_largest_phase():
    choice = only(pipeline(), p2200(), formats=("f16",))
    assert [phase.name for phase in choice.phases] == ["encode", "denoise", "decode"]
    assert choice.memory == max((phase.memory for phase in choice.phases), key=lambda memory: memory.most)
    assert choice.phases[0].memory.weights == 40960 * 4096 * 4
    assert "text_encoder in f32: it overflows in f16" in choice.verdict.reason
    assert [p.memory.weights for p in choice.phases[1:]] == [20480 * 4096 * 2, 64 * 4096 * 4]
    assert choice.speed.decode_tokens_per_second is None
    assert [p["name"] for p in choice.to_json()["phases"]] == ["encode", "denoise", "decode"]
    assert choice.command is None
    with pytest.raises(UsageError, match="pipeline"):
        check(pipeline(), [p2200()], Question(training="lora"))


def test_the_command_of_a_pipeline_that_makes_videos_of_a_text():
    """Not for what ``rung video`` does not take: mixtures, several at once."""
    video = replace(pipeline(), makes="video")
    assert only(video, p2200(), formats=("nf4",)).command == "rung video pipe PROMPT --format nf4 --device cuda:0"
    assert only(video, p2200(), formats=("q4_k_m",)).command is None
    assert only(video, p2200(), formats=("nf4",), batch=2).command is None


def test_what_is_computed_in_slices_is_said_and_counted():
    """Two inputs of the denoiser go through one by one where both do not fit; the text encoder stays as it is."""
    whole = pipeline()
    denoiser = replace(whole.components[1], shape=replace(whole.components[1].shape, alive=GB, inputs=2))
    outline = replace(whole, components=(whole.components[0], denoiser, whole.components[2]))
    roomy, tight = (
        only(outline, replace(p2200(), memory=12 * GB, free=free), formats=("f16",)) for free in (12 * GB, 4 * GB)
    )
    assert (roomy.verdict.ok, roomy.level, tight.verdict.ok) == (True, "slow", True)
    assert "at once" not in roomy.verdict.reason
    assert "transformer computes 1 of 2 at once" in tight.verdict.reason
    at_once = [choice.to_json()["phases"][1]["held"]["transformer"]["at_once"] for choice in (roomy, tight)]
    assert at_once == [2, 1]
    assert tight.phases[1].memory.activations == roomy.phases[1].memory.activations // 2 == 2 * GB
    assert tight.phases[0] == roomy.phases[0]
    assert tight.memory.most <= 4 * GB


def names_of_formats(value):
    """All words with parameters that are names of formats, anywhere in JSON."""
    for word in re.findall(r"[a-z0-9_]+(?::[a-z0-9]+)+", json.dumps(value)):
        with contextlib.suppress(UnknownFormat):
            yield word, formats.get(word)


@pytest.mark.parametrize("training", [None, pytest.param("lora", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*formats.FORMATS, "nf4:128", "u4:64:bf16", "stored", "q4_k_m"])
def test_no_format_is_named_with_default_parameters(name, training):
    """In choices, their phases, reasons and commands, and in what would help where nothing fits."""
    shown, cards = {}, [catalog.device("v100"), cpu()]
    first = Question(formats=(name,), training=training, batch=64 if training else 1)
    for model in (outline(), replace(pipeline(), makes="video"))[: 1 if training else 2]:
        for question in (first, replace(first, memory=FrozenDict({"*": GB}))):
            answer = check(model, cards, question)
            shown |= dict(names_of_formats(answer.to_json()))
    assert formats.short_name(name) in shown or ":" not in formats.short_name(name)
    for word, format in shown.items():
        kind, *options = word.split(":")
        for at in range(len(options)):
            assert formats.get(":".join([kind, *options[:at], *options[at + 1 :]])) != format, word


def test_how_phases_are_held_is_named_as_the_format_is():
    storage = only(pipeline(), p2200(), formats=("nf4:64",)).to_json()["phases"][1]["held"]["transformer"]
    assert storage["format"] == "nf4"


def test_a_prompt_is_inside_of_its_context():
    options = {"formats": ("q4_0",), "context": 128}
    assert only(outline(), p2200(), **options).speed.prompt_tokens == 128
    assert only(outline(), p2200(), **options, prompt_tokens=64).speed.prompt_tokens == 64
    with pytest.raises(ContextTooLong, match=r"prompt of 200 tokens is longer[\s\S]*--prompt-tokens 128"):
        only(outline(), p2200(), **options, prompt_tokens=200)


def test_experts_that_a_token_does_not_visit_cost_memory_and_no_time():
    def mixture(experts, visited):
        shape = Shape(1, 1024, 8, 8, 128, 4096, 1000, 4096, experts, visited, 4096)
        tensor = Tensor("layers.0.experts_down", "w", (experts, 1024, 4096), "f16", 0, 0, experts * 1024 * 4096 * 2)
        return plain("moe", "config", "moe", Component("model", "moe", "decoder", (tensor,), shape))

    dense, sparse = (only(mixture(64, n), p2200(), formats=("f16",), prompt_tokens=1) for n in (64, 2))
    assert dense.memory.weights == sparse.memory.weights
    assert sparse.speed.decode_tokens_per_second > 8 * dense.speed.decode_tokens_per_second


@pytest.mark.parametrize(
    "options",
    [{"batch": 0}, {"context": 0}, {"rank": -1}, {"sequence": 10**12}, {"training": "half"}, {"optimizer": "adam9"}],
)
def test_senseless_questions_are_refused(options):
    with pytest.raises(UsageError):
        check(outline(), [cpu()], Question(**options))


def test_other_bad_questions():
    with pytest.raises(ContextTooLong, match="9,000"):
        check(outline(), [cpu()], Question(context=9000))
    with pytest.raises(UnknownFormat, match="Did you mean"):
        check(outline(), [cpu()], Question(formats=("q4_k_mm",)))


def test_nothing_is_lost_where_the_format_is_the_stored_one():
    assert math.isinf(only(outline(), cpu(), formats=("bf16",)).error_db)
    assert check(outline(), [cpu()], Question(formats=("bf16",))).to_json()["choices"][0]["error_db"] is None


def test_what_is_decoded_first_needs_slabs():
    """bf16 on a CPU is read in place by few rows and decoded for many: two slabs of 32 MB; packed weights need none."""
    wide, packed = (only(outline(), cpu(), formats=(name,)).memory.workspace for name in ("bf16", "q8_0"))
    assert wide - packed == 64 * 2**20
