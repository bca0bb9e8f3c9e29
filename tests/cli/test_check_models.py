"""``rung check`` without a model: what runs on a card, best first; and with the name of one."""

import itertools
import json

import pytest

from rung.hardware.catalog import device
from rung.models.catalog import Match, find, outline_of
from rung.planning.answers.recommend import recommend
from rung.planning.check import check
from rung.planning.check_result import Question
from rung.planning.speed import READING_SPEED

CARDS = ("p2200", "rtx 4090", "h100", "ryzen 9 7950x")


def test_the_best_comes_first_and_is_in_the_sentence(rung):
    said = rung("check", "--device", "p2200")
    first, heading, best, *_ = said.out.splitlines()
    assert said.code == 0
    assert "Quadro P2200" in first
    assert heading.split()[:3] == ["model", "released", "format"]
    name = best.split()[0]
    assert find(name).model.title in first
    assert f"→ rung check {name} --device quadro-p2200" in said.out


@pytest.mark.parametrize("card", CARDS)
def test_what_is_suggested_is_what_check_says_of_it(card):
    where = (device(card),)
    shelf = recommend(where, Question())
    assert len(shelf.suggestions) >= 3
    for one in shelf.suggestions:
        outline = outline_of(Match(one.model.name, one.model))
        (choice,) = check(outline, [where], Question(formats=(one.choice.format,))).choices
        assert (choice.memory, choice.speed, choice.fits) == (one.choice.memory, one.choice.speed, True)
        assert choice.memory.most <= shelf.free


@pytest.mark.parametrize("card", CARDS)
def test_the_order(card):
    """Models fast enough to read along come before slower ones; among those the larger class of size."""
    found = recommend((device(card),), Question()).suggestions
    speeds = [round(one.choice.speed.decode_tokens_per_second, 1) >= READING_SPEED for one in found]
    assert speeds == sorted(speeds, reverse=True)
    reads = [one.model.parameters for one in found if one.reads]
    assert all(later < 2.5 * earlier for earlier, later in itertools.pairwise(reads))
    assert reads[0] >= max(reads) / 2.5
    assert not any(one.model.purpose for one in found)


def test_formats_context_and_memory_count():
    where = (device("rtx 4090"),)
    eight = recommend(where, Question(formats=("q8_0",), context=2048)).suggestions
    assert {one.choice.format for one in eight} == {"q8_0"}
    assert {one.context for one in eight} == {2048}
    less = recommend(where, Question(memory={"*": 3 * 2**30})).suggestions
    assert less
    assert all(one.choice.memory.most <= 3 * 2**30 for one in less)


def test_nothing_runs_in_too_little_memory(rung):
    said = rung("check", "--device", "p2200", "--memory", "300MB")
    assert said.code == 1
    assert "None of the" in said.out


def test_json_is_one_object(rung):
    found = json.loads(rung("check", "--device", "p2200", "--device", "rtx 4090", "--json").out)
    assert found["answer"]
    assert [each["name"] for each in found["devices"]] == ["Quadro P2200", "GeForce RTX 4090"]
    for each in found["devices"]:
        for model in each["models"]:
            assert {"model", "title", "format", "memory", "speed", "level", "weights", "license"} <= set(model)


@pytest.mark.parametrize(
    "options", [["--fits"], ["--trace"], ["--details"], ["--training", "lora"], ["--html", "x.html"]]
)
def test_options_that_ask_about_a_model_are_refused(rung, options):
    said = rung("check", "--device", "p2200", *options) if options != ["--fits"] else rung("check", "--fits")
    assert said.code == 2
    assert f"{options[0]} asks about a model" in said.err


def test_a_name_is_answered_and_what_was_taken_is_said_on_stderr(rung):
    said = rung("check", "llama 3.1", "--device", "p2200", "--format", "q4_k_m")
    assert "Llama 3.1 8B" in said.out.splitlines()[0]
    assert "taken as Llama 3.1 8B" in said.err
    assert (
        json.loads(rung("check", "qwen3:4b-q4_K_M", "--device", "p2200", "--json").out)["choices"][0]["format"]
        == "q4_k_m"
    )


def test_a_tie_has_exit_code_2_and_the_names(rung):
    said = rung("check", "llama 8b", "--device", "p2200")
    assert said.code == 2
    assert "llama-3.1-8b, llama-3-8b" in said.err


def test_plans_take_names(rung):
    said = rung("plan", "qwen3:4b-q4_K_M", "--device", "3090")
    assert said.code == 0
    assert "q4_k_m" in said.out
    assert rung("plan", "nothing of that name", "--device", "3090").code == 2
