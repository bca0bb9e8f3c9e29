"""The embedded demonstration model: what it is made of, its file, and what it answers."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from os import environ
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # training/ is no part of the package

from training.demo import answers, evaluate, frames, texts  # noqa: E402
from training.demo.cards import Card, known_names, load_cards  # noqa: E402
from training.demo.claims import Tables  # noqa: E402
from training.demo.generate import COMMON, EVALUATION_FRAMES, KINDS, Dialogue, conversations, expand, normal_form  # noqa: E402
from training.demo.unknown_cards import real_names, squeeze  # noqa: E402

from rung.hardware import catalog  # noqa: E402
from rung.models import open_card  # noqa: E402

DEMO = ROOT / "src" / "rung" / "models" / "demo"
CAUGHT = {"capture_output": True, "text": True}


@pytest.fixture(scope="module")
def cards() -> tuple[Card, ...]:
    return load_cards()


@pytest.fixture(scope="module")
def turns() -> list[Dialogue]:
    """Return the turns of fifteen hundred conversations of the training text."""
    return [turn for talk in conversations(1500, seed=3) for turn in talk]


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
        "The Apple M1 has up to 8 GB of memory, shared with the CPU.",
        "The Tesla P100 PCIe has 16 GB of memory.",
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


SIZES = r"of an? ([\d.]+)B model take ([\d.]+) GB in f16, ([\d.]+) GB in int8 and ([\d.]+) GB in nf4\."


def test_every_answer_is_a_checked_claim_a_right_sum_or_a_sentence_written_by_hand(cards, tables, turns):
    by_name = {card.name: card for card in cards}
    written = {answer for table in (texts.CONCEPTS, texts.ERRORS, texts.TALK, texts.CHAT) for _, answer in table}
    written |= {texts.UNKNOWN_CARD, texts.WHICH_CARD, texts.UNKNOWN_WORD, texts.ONE_CARD, texts.NO_LISTS}
    kinds = set()
    for turn in turns:
        kinds.add(turn.kind)
        if "The catalogue does not say" in turn.answer:
            assert answers.SENTENCES[turn.kind](by_name[turn.subject]) == []
        elif turn.kind in answers.SENTENCES:
            assert tables.judge(turn.answer) == (turn.kind, turn.subject, True)
        elif turn.kind in ("fit", "fit_card", "size"):
            billions, *stated = map(float, re.search(SIZES, turn.answer).groups())
            exact = [billions * 1e9 * bits / 8 / 2**30 for bits in (16, 8, 4 + 32 / 64)]
            assert stated == pytest.approx(exact, abs=0.051, rel=0.004)
            if turn.kind == "fit_card":
                assert f" {by_name[turn.subject].memory[0]} GB. " in turn.answer
        else:
            assert turn.answer in written
    assert kinds == {*KINDS, "nameless"}


def test_held_back_wordings_are_never_drawn(cards, turns):
    names = {squeeze(alias): alias.lower() for card in cards for alias in card.aliases}
    longest = sorted(names.values(), key=len, reverse=True)
    card = re.compile("|".join(re.escape(name) for name in longest))
    for turn in turns:
        assert normal_form(card.sub("{n}", turn.question.lower(), count=1)) not in EVALUATION_FRAMES


def test_the_same_seed_gives_the_same_text():
    assert list(conversations(50, seed=5)) == list(conversations(50, seed=5))
    assert list(conversations(50, seed=5)) != list(conversations(50, seed=6))


def test_the_text_does_not_depend_on_the_hash_seed():
    code = "from training.demo.generate import conversations; print(*conversations(100, 5), sep='\\n')"
    said = [
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ | {"PYTHONHASHSEED": seed}, **CAUGHT).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert said[0].count("\n") == 100


def test_the_cards_do_not_depend_on_the_order_of_the_catalogue(cards):
    assert load_cards(reversed(catalog.products())) == cards


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    code = "import sys, pathlib; from training.demo.train import train; train(pathlib.Path(sys.argv[1]), 3, 200)"
    states = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(tmp_path / seed)]
        done = subprocess.run(command, cwd=ROOT, env=environ | {"PYTHONHASHSEED": seed}, check=False, **CAUGHT)
        assert done.returncode == 0, done.stderr
        states.append(torch.load(tmp_path / seed / "last.pt", weights_only=True))
    first, second = states
    assert first["step"] == 3
    assert {key: value for key, value in first.items() if key != "model"} == {
        key: value for key, value in second.items() if key != "model"
    }
    assert first["model"].keys() == second["model"].keys()
    assert all(torch.equal(weight, second["model"][name]) for name, weight in first["model"].items())
    files = [(tmp_path / seed / "demo.gguf").read_bytes() for seed in ("1", "2")]
    assert files[0] == files[1]


def test_unknown_cards_are_unknown_and_known_ones_are_not_refused(cards, turns):
    known = known_names(cards)
    trained, others = real_names(known)
    assert len(others) > 30
    assert not set(trained) & set(others)
    for turn in turns:
        assert (turn.answer == texts.UNKNOWN_CARD) == (turn.kind == "unknown")
        if turn.kind == "unknown":
            assert squeeze(turn.subject) not in known


def test_every_frame_expands(cards):
    import random

    rng = random.Random(0)
    groups = [*frames.FACTS.values(), frames.ALL, frames.FIT, frames.FIT_CARD, frames.SIZE, frames.CONCEPT, frames.LIST]
    groups += [names for names, _ in texts.CHAT]
    for frame in (frame for group in groups for frame in group):
        for _ in range(5):
            assert not set("(|)") & set(expand(frame, rng))


def test_the_questions_of_the_evaluation_are_about_common_cards_only(cards):
    changed = [replace(card, memory=(9,)) if card.name == "GTX 1080" else card for card in cards]
    learnt = {card.mark for card in changed}  # as if the catalogue had changed one row after the training
    common = {card.name for card in evaluate.common_cards(learnt)}
    questions = evaluate.fact_questions(learnt)
    assert len(questions) == 200
    assert {question.card for question in questions} <= common < {card.name for card in cards} - {"GTX 1080"}
    assert {question.kind for question in questions} == set(frames.EVALUATION)


def test_the_file_knows_most_of_the_common_cards_as_they_are(learnt):
    common = [card for card in load_cards() if COMMON.match(card.name)]
    assert len(evaluate.common_cards(learnt)) > 0.7 * len(common)  # else it should be trained again


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


@pytest.fixture(scope="module")
def learnt() -> tuple[str, ...]:
    return open_card(DEMO / "demo.gguf").metadata["rung.cards"]


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


@pytest.mark.parametrize(("greeting", "fitting"), (frames.PLAIN_GREETINGS | frames.EVALUATION_GREETINGS).items())
def test_a_greeting_gets_a_fitting_answer(model, greeting, fitting):
    assert ask(model, greeting)["text"].startswith(fitting)


def test_a_sample_of_held_back_questions(model, learnt):
    found = evaluate.score(lambda questions: [ask(model, question)["text"] for question in questions], learnt, part=5)
    assert found["facts"] >= 0.9  # of 40; all 200 are asked in the slow test
    assert found["unknown"] >= 0.5


@pytest.mark.slow
def test_all_held_back_questions(model, learnt):
    found = evaluate.score(lambda questions: [ask(model, question)["text"] for question in questions], learnt)
    assert found["facts"] >= 0.95
    assert found["unknown"] >= 0.5


def test_it_keeps_to_one_answer_in_a_conversation(model, tables):
    turns = [{"role": "user", "content": "How much memory is on a GTX 1080 Ti?"}]
    turns.append({"role": "assistant", "content": "".join(model.chat(turns))})
    turns.append({"role": "user", "content": "Which compute capability does the Tesla T4 have?"})
    assert tables.judge("".join(model.chat(turns))) == ("capability", "Tesla T4", True)
