"""The text of ``rung check`` says what its JSON says: memory by part, how sure speeds are, both ways of training."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rung.cli.views import output
from rung.cli.views.check import as_text
from rung.core.text import rate, size
from rung.hardware.select import select_groups
from rung.models.lookup import find_outline
from rung.planning.check import check
from rung.planning.check_result import Question

CONFIGS = Path(__file__).parents[1] / "models" / "configs"
#: What is never folded, so that it can be copied.
COMMAND = re.compile(r"rung (?:run|check)|llama-server")
CARDS = ("--device", "p2200", "--device", "v100")
NAMES = {"kv_cache": "KV cache"}


@pytest.fixture
def gemma(tmp_path, monkeypatch):
    """A folder with nothing but the configuration of Gemma 2B."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemma-2b").mkdir()
    (tmp_path / "gemma-2b" / "config.json").write_bytes((CONFIGS / "gemma-2b.json").read_bytes())
    return "gemma-2b"


@pytest.fixture
def pipeline(tmp_path):
    """Stable Diffusion 1.5 as configurations alone."""
    parts = ("text_encoder", "unet", "vae")
    for part in parts:
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_bytes((CONFIGS / f"sd-1.5-{part.replace('_', '-')}.json").read_bytes())
    index = {"_class_name": "StableDiffusionPipeline"} | {part: ["diffusers", "X"] for part in parts}
    (tmp_path / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return str(tmp_path)


def described(memory):
    """The parts as the text names them, of the JSON."""
    return [f"{NAMES.get(name, name)} {size(nbytes)}" for name, nbytes in memory.items() if nbytes and name != "total"]


def choices_of(rung, *arguments):
    return json.loads(rung(*arguments, "--json").out)["choices"]


def test_what_the_memory_of_the_best_is_made_of_is_below_its_command(rung, gemma):
    command = ("check", gemma, "--device", "p2200", "--device", "2xv100")
    said, answer = rung(*command).out.splitlines(), json.loads(rung(*command, "--json").out)
    for device, index in answer["best_by_device"].items():
        best, (first, *more) = answer["choices"][index], answer["devices"][device]
        name = f"{len(more) + 1} x {first['name']}" if more else first["name"]
        below = said[next(at for at, line in enumerate(said) if line.startswith(f"→ {name}")) + 1]
        assert below == "  " + " · ".join([*described(best["memory"]), f"speed ± {best['speed']['uncertainty']:.0%}"])


def test_of_the_whole_catalog_it_is_that_of_the_smallest_card(rung, gemma):
    said = rung("check", gemma, "--fits", "--format", "nf4").out.splitlines()
    assert "the smallest" in said[-2]
    name = re.search(r"the smallest at reading speed: (.*?), nf4", said[-2])[1]
    (choice,) = choices_of(rung, "check", gemma, "--device", name, "--format", "nf4")
    assert said[-1] == "  " + " · ".join([*described(choice["memory"]), "speed ± 50%"])


@pytest.mark.parametrize("training", [(), ("--training", "full", "--format", "f32"), ("--training", "lora")])
def test_details_say_all_of_every_choice_refused_ones_too(rung, gemma, training):
    command = ("check", gemma, *CARDS, *training)
    answer = json.loads(rung(*command, "--json").out)
    choices, names = answer["choices"], {key: cards[0]["name"] for key, cards in answer["devices"].items()}
    _, _, *paragraphs = re.split(r"\n(?=\S)", rung(*command, "--details").out)
    assert len(choices) == sum("\n  memory " in paragraph for paragraph in paragraphs)
    for choice, paragraph in zip(choices, paragraphs, strict=False):
        head, *lines = paragraph.splitlines()
        assert head == f"{choice['format']} on {names[choice['device']]}: {choice['level']}"
        found = {name: rest.strip() for name, _, rest in (line.strip().partition(" ") for line in lines)}
        assert found.get("why", "") == choice["verdict"]["reason"]
        amount, *parts = found["memory"].split(" · ")
        assert parts == described(choice["memory"])
        assert re.fullmatch(
            rf"{size(choice['memory']['total'])}, up to .* more, of {size(choice['free'])} free", amount
        )
        assert found.get("command") == choice["command"]
        noise = "" if choice["error_db"] is None else f" · noise {choice['error_db']:.0f} dB below the weights"
        assert found["quality"] == choice["quality"] + noise
        pace = found.get("speed", "").split(" · ")
        if training:
            ways = [choice["checkpointing"][way] for way in ("with", "without")]
            amounts = [(size(way["activations"]), size(way["total"])) for way in ways]
            assert re.findall(r"([\d.]+ [GM]B) with.*?\(([\d.]+ [GM]B) in all\)", found["activations"]) == amounts
            assert pace == [""]
        else:
            assert float(pace[0].split()[0]) == pytest.approx(choice["speed"]["decode_tokens_per_second"], rel=0.01)
            assert pace[-1] == f"± {choice['speed']['uncertainty']:.0%}"


def test_details_of_a_pipeline_are_those_of_its_phases(rung, pipeline):
    command = ("check", pipeline, "--device", "p2200", "--format", "nf4")
    (choice,) = choices_of(rung, *command)
    lines = rung(*command, "--details").out.splitlines()
    assert [phase["name"] for phase in choice["phases"]] == ["encode", "denoise", "decode"]
    for phase in choice["phases"]:
        line = next(line for line in lines if line.startswith(f"  {phase['name']} "))
        assert " · ".join(described(phase["memory"])) in line
        assert all(f"{name} in {storage['format']}" in line for name, storage in phase["held"].items())
    peak = max(choice["phases"], key=lambda phase: phase["memory"]["total"])
    assert f"\n  peak in {peak['name']} · weights" in rung(*command).out


@pytest.mark.parametrize("arguments", [(), ("--training", "lora"), ("--details",), ("--details", "--training", "full")])
@pytest.mark.parametrize("width", [80, 160])
def test_nothing_but_commands_is_wider_than_the_terminal(rung, gemma, monkeypatch, width, arguments):
    """Folded text says what piped text says in a line per fact; a name and its size are never parted."""
    arguments = ("check", gemma, *CARDS, *arguments)
    piped = rung(*arguments).out
    monkeypatch.setattr(output, "line_width", lambda: width)
    folded = rung(*arguments).out
    assert max(len(line) for line in piped.splitlines()) > width
    assert all(len(line) <= width for line in folded.splitlines() if not COMMAND.search(line))
    assert folded.split() == piped.split()
    named = re.compile(r"(?:weights|cache|activations|workspace|runtime|gradients|optimizer) [\d.]+ [GM]B")
    assert named.findall(folded) == named.findall(piped)


def test_what_is_piped_or_fits_is_not_folded(monkeypatch):
    assert output.folded("ab  ", "word " * 100) == ["ab  " + "word " * 99 + "word"]
    monkeypatch.setattr(output, "line_width", lambda: 40)
    assert output.folded("ab  ", "") == ["ab"]
    assert output.folded("ab  ", "x" * 36) == ["ab  " + "x" * 36]
    assert output.folded("ab  ", "some " * 9) == ["ab  " + "some " * 6 + "some", "    some some"]
    assert output.folded("y" * 30, "some words") == ["y" * 30 + "some words"]
    assert output.folded("y" * 30, "some more words") == ["y" * 30, "    some more words"]


@pytest.mark.parametrize(
    ("training", "words"),
    [((), "± 50%"), (("--training", "lora"), "GB with gradient checkpointing")],
)
def test_the_page_says_the_same(rung, gemma, tmp_path, training, words):
    page, command = tmp_path / "page.html", ("check", gemma, *CARDS, "--format", "f16", *training)
    rung(*command, "--html", str(page))
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r"<d[td]>(.*?)</d[td]>", text)
    pieces = [html.unescape(piece) for facts in shown for piece in facts.split("<br>")]
    said = rung(*command, "--details").out.partition("→")[0]
    assert words in text
    for line in (line.strip() for line in said.splitlines() if line.startswith("  ")):
        name, _, rest = line.partition(" ")
        assert name == "command" or {name, *rest.strip().split(" · ")} <= set(pieces)


def test_where_the_bandwidth_is_not_known_the_table_has_the_speed_of_the_sentence():
    """Not that of reading a prompt, which is many times higher."""
    (device,) = select_groups(("cpu",))[0]
    answer = check(find_outline("gemma-2b"), [replace(device, bandwidth=None)], Question(formats=("q4_0",)))
    choice = answer.choices[0]
    assert choice.speed.bound_tokens_per_second is None
    row = next(line for line in as_text.text(answer).splitlines() if line.startswith("q4_0"))
    assert f" {rate(choice.speed.decode_tokens_per_second)} " in row
    assert f" {rate(choice.speed.prefill_tokens_per_second)} " not in row
