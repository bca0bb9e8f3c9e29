"""The embedded demonstration model: what it is made of, its file, and what it answers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # training/ is no part of the package

from training.demo import answers, evaluate, frames, texts  # noqa: E402
from training.demo.cards import Card, known_names, load_cards  # noqa: E402
from training.demo.claims import Tables  # noqa: E402
from training.demo.generate import HELD, Generator, conversations, expand, normal_form  # noqa: E402
from training.demo.unknown_cards import real_names, squeeze  # noqa: E402

from rung.models import open_card  # noqa: E402

DEMO = ROOT / "src" / "rung" / "models" / "demo"


@pytest.fixture(scope="module")
def cards() -> tuple[Card, ...]:
    return load_cards()


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables()


def test_every_sentence_of_a_fact_agrees_with_the_catalogue(cards, tables):
    checked = 0
    for card in cards:
        for kind, sentences in answers.SENTENCES.items():
            for sentence in sentences(card):
                assert tables.judge(sentence) == (kind, card.name, True)
                checked += 1
    assert checked > 3000


@pytest.mark.parametrize(
    "sentence",
    [
        "The GTX 1080 has compute capability 6.0.",
        "The GTX 1080 has 11 GB of memory.",
        "The GTX 1080 is a Turing GPU from NVIDIA.",
        "The GTX 1080 is a Pascal GPU, so yes: it multiplies bf16 natively.",
        "The GTX 1080 is a Pascal GPU, so no: bf16 is only emulated there. Use f16.",
        "The GTX 1080 is a Pascal GPU, so yes: its f16 arithmetic is at least as fast as f32.",
        "The GTX 1080 is a Pascal GPU, so yes: it multiplies int8 with tensor cores.",
        "The GTX 1080 is a Pascal GPU, so yes: its matrix units take fp8.",
        "The memory bandwidth of the GTX 1080 is 484 GB/s.",
        "The GTX 1080 is a Pascal GPU, so yes: current drivers and CUDA 13 support it.",
        "The GTX 1080 is made by AMD.",
        "The GTX 1181 has 8 GB of memory.",
        "The GTX 1080 is a Pascal GPU from NVIDIA with compute capability 6.1, and has 8 GB of memory. "
        "There f16 is fast.",
    ],
)
def test_a_false_sentence_is_seen(tables, sentence):
    claim = tables.judge(sentence)
    assert claim is not None
    assert claim[2] is False


def test_what_the_catalogue_does_not_state_becomes_no_sentence():
    bare = Card(name="X", aliases=("X",), vendor="amd", generation="RDNA9", version="gfx9999", memory=(8,))
    for kind in ("f16", "int8", "matrix", "fp8", "bandwidth", "dtype"):
        assert answers.SENTENCES[kind](bare) == []
    assert "fast" not in answers.everything(bare)[0]


def test_sums_are_right():
    assert answers.size_gb(7, "f16") == pytest.approx(13.04, abs=0.01)  # 14e9 bytes
    assert answers.sizes(8) == "The weights of an 8B model take 14.9 GB in f16, 7.5 GB in int8 and 4.2 GB in nf4."
    assert answers.best_format(7, 16) == "f16"
    assert answers.best_format(7, 8) == "int8"
    assert answers.best_format(7, 6) == "nf4"
    assert answers.best_format(70, 8) is None


def test_held_back_wordings_are_never_drawn(cards):
    names = {squeeze(alias): alias.lower() for card in cards for alias in card.aliases}
    longest = sorted(names.values(), key=len, reverse=True)
    card = re.compile("|".join(re.escape(name) for name in longest))
    for turns in conversations(1500, seed=3):
        for turn in turns:
            assert normal_form(card.sub("{n}", turn.question.lower(), count=1)) not in HELD


def test_the_same_seed_gives_the_same_text():
    assert list(conversations(50, seed=5)) == list(conversations(50, seed=5))
    assert list(conversations(50, seed=5)) != list(conversations(50, seed=6))


def test_unknown_cards_are_unknown_and_known_ones_are_not_refused(cards):
    known = known_names(cards)
    trained, held = real_names(known)
    assert len(held) > 30
    assert not set(trained) & set(held)
    generator = Generator(seed=1)
    for turns in (generator.conversation() for _ in range(2000)):
        for turn in turns:
            assert (turn.answer == texts.UNKNOWN_CARD) == (turn.kind == "unknown")
            if turn.kind == "unknown":
                assert squeeze(turn.subject) not in known


def test_every_frame_expands(cards):
    import random

    rng = random.Random(0)
    groups = [*frames.FACTS.values(), frames.ALL, frames.FIT, frames.FIT_CARD, frames.SIZE, frames.CONCEPT, frames.LIST]
    for frame in (frame for group in groups for frame in group):
        for _ in range(5):
            assert not set("(|)") & set(expand(frame, rng))


def test_the_questions_of_the_evaluation_are_about_common_cards_only(cards):
    common = {card.name for card in evaluate.common_cards(cards)}
    asked = evaluate.fact_questions()
    assert len(asked) == 200
    assert {question.card for question in asked} <= common
    assert {question.kind for question in asked} == set(frames.HELD)


def test_the_file_is_small_and_says_what_it_is():
    card = open_card(DEMO / "demo.gguf")
    assert (DEMO / "demo.gguf").stat().st_size <= 10_000_000
    assert card.decoder.model_type == "gemma3_text"
    assert [layer.window for layer in card.decoder.layers] == [128] * 5 + [None]
    assert card.metadata["rung.example"] == evaluate.EXAMPLE
    assert card.defaults["temperature"] == 0
    assert "demonstration" in card.metadata["general.description"]
    said = (DEMO / "card.md").read_text(encoding="utf-8")
    assert "demonstration" in said
    assert "`rung devices` and the catalogue" in said.replace("\n", " ")


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("torch")
    pytest.importorskip("numba")
    import rung

    return rung.load("demo")


def ask(model, question: str) -> dict:
    answer = model.chat([{"role": "user", "content": question}])
    text = "".join(answer)
    assert text == answer.result["text"]
    return answer.result


def test_the_example_is_answered_with_a_whole_sentence(model, tables):
    result = ask(model, model.example)
    assert 8 <= len(result["tokens"]) <= 32
    assert result["stop_reason"] == "end"
    assert tables.judge(result["text"]) == ("bf16", "GTX 1080", True)


def test_case_does_not_matter(model):
    assert ask(model, evaluate.EXAMPLE.upper())["text"] == ask(model, evaluate.EXAMPLE.lower())["text"]


def test_a_greeting_gets_a_greeting(model):
    assert ask(model, "hello")["text"].startswith("Hello!")


def test_a_sample_of_held_back_questions(model):
    found = evaluate.score(lambda questions: [ask(model, question)["text"] for question in questions], part=5)
    assert found["facts"] >= 0.9  # of 40; all 200 are asked in the slow test
    assert found["unknown"] >= 0.5


@pytest.mark.slow
def test_all_held_back_questions(model):
    found = evaluate.score(lambda questions: [ask(model, question)["text"] for question in questions])
    assert found["facts"] >= 0.95
    assert found["unknown"] >= 0.5


def test_it_keeps_to_one_answer_in_a_conversation(model, tables):
    turns = [{"role": "user", "content": "How much memory is on a GTX 1080 Ti?"}]
    turns.append({"role": "assistant", "content": "".join(model.chat(turns))})
    turns.append({"role": "user", "content": "Which compute capability does the Tesla T4 have?"})
    assert tables.judge("".join(model.chat(turns))) == ("capability", "Tesla T4", True)
