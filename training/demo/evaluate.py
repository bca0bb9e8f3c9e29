"""Asks the model what it was never trained to be asked: 200 held-back wordings, unknown cards, greetings.

usage, in the repository's root: python -m training.demo.evaluate src/rung/models/demo/demo.gguf [--rung] [--show 20]

Without --rung the file is decoded with the ``gguf`` package and run by transformers: a path that shares nothing with
rung's own reader, tokenizer and kernels.  With --rung the answers come from ``rung.load``.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from training.demo import answers
from training.demo.cards import Card, known_names, load_cards
from training.demo.claims import Tables
from training.demo.frames import EVALUATION, EVALUATION_GREETINGS, PLAIN_GREETINGS, UNKNOWN_KINDS
from training.demo.generate import COMMON, typed
from training.demo.unknown_cards import invented_name, real_names

SEED = 2026
QUESTIONS, UNKNOWN_QUESTIONS = 200, 100
REFUSAL = "I don't know that card"
EXAMPLE = "Does a GTX 1080 multiply bfloat16?"

Answer = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class Question:
    """``card`` is "" where the catalogue has none."""

    kind: str
    text: str
    card: str


def common_cards(learnt: Collection[str]) -> list[Card]:
    """The cards that people have, of those that the catalogue still has as they were learnt."""
    return [card for card in load_cards() if COMMON.match(card.name) and card.mark in learnt]


def fact_questions(learnt: Collection[str]) -> list[Question]:
    """200 questions about common cards, the kinds in turn, in held-back wordings only."""
    rng, cards, found = random.Random(SEED), common_cards(learnt), []
    kinds = [kind for kind, frames in EVALUATION.items() for _ in frames]
    while len(found) < QUESTIONS:
        kind, card = kinds[len(found) % len(kinds)], rng.choice(cards)
        if answers.SENTENCES[kind](card):
            name = typed(rng.choice(card.aliases), rng)
            found.append(Question(kind, rng.choice(EVALUATION[kind]).replace("{n}", name), card.name))
    return found


def unknown_questions() -> list[Question]:
    """Questions about cards outside the catalogue: real ones that were held back, and invented ones."""
    rng, known, found = random.Random(SEED + 1), known_names(load_cards()), []
    real = real_names(known)[1]
    for number in range(UNKNOWN_QUESTIONS):
        kind = rng.choice(UNKNOWN_KINDS)
        name = rng.choice(real) if number % 2 else invented_name(rng, known)
        found.append(Question(kind, rng.choice(EVALUATION[kind]).replace("{n}", name), ""))
    return found


def with_transformers(path: Path) -> Answer:
    """Answers of the decoded file, computed by transformers in f32."""
    import torch
    from training.demo.read_gguf import load
    from training.demo.tokenizer import END, question

    model, tokenizer = load(path)
    end = tokenizer.token_to_id(END)

    @torch.no_grad()
    def answer(questions: list[str]) -> list[str]:
        found = []
        for start in range(0, len(questions), 150):
            rows = [tokenizer.encode(question(text.strip().lower())).ids for text in questions[start : start + 150]]
            width = max(map(len, rows))
            ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
            written = model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=120,
                do_sample=False,
                eos_token_id=end,
                pad_token_id=0,
            )[:, width:].tolist()
            found += [tokenizer.decode(row[: row.index(end)] if end in row else row) for row in written]
        return found

    return answer


def with_rung(path: Path) -> Answer:
    """Answers of rung itself."""
    import rung

    model = rung.load(str(path))

    def answer(questions: list[str]) -> list[str]:
        return ["".join(model.chat([{"role": "user", "content": text}])) for text in questions]

    return answer


def score(answer: Answer, learnt: Collection[str], show: int = 0, part: int = 1) -> dict[str, float]:
    """Shares of right answers: facts, unknown cards refused, greetings; and of false claims in all of them.

    ``learnt`` are the marks of the cards that the model was trained on; ``part`` asks only one question in so many.
    """
    tables, facts, unknown = Tables(), fact_questions(learnt)[::part], unknown_questions()[::part]
    texts = answer([question.text for question in facts + unknown])
    right: Counter[str] = Counter()
    false = 0
    for question, text in zip(facts + unknown, texts, strict=True):
        claim = tables.judge(text)
        good = text.startswith(REFUSAL) if not question.card else claim == (question.kind, question.card, True)
        right[question.kind if question.card else "unknown"] += good
        false += claim is not None and not claim[2]
        if not good and show > 0:
            show -= 1
            print(f"{question.kind}: {question.text}\n    {text}")
    counts = Counter(question.kind if question.card else "unknown" for question in facts + unknown)
    print("  ".join(f"{kind} {right[kind]}/{count}" for kind, count in counts.items()))
    fitting = EVALUATION_GREETINGS | PLAIN_GREETINGS
    greetings = dict(zip(fitting, answer(list(fitting)), strict=True))
    return {
        "facts": sum(count for kind, count in right.items() if kind != "unknown") / len(facts),
        "unknown": right["unknown"] / len(unknown),
        "greetings": sum(text.startswith(fitting[greeting]) for greeting, text in greetings.items()) / len(fitting),
        "false claims": false / len(texts),
    }


def main() -> None:
    """Print the score."""
    from training.demo.read_gguf import learnt_cards

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--rung", action="store_true", help="run the file in rung instead of transformers")
    parser.add_argument("--show", type=int, default=0, help="print that many wrong answers")
    options = parser.parse_args()
    answer = with_rung(options.path) if options.rung else with_transformers(options.path)
    learnt = learnt_cards(options.path)
    cards = load_cards()
    print(
        f"{sum(card.mark in learnt for card in cards)} of {len(cards)} cards are in the catalogue as they were learnt"
    )
    for name, share in score(answer, learnt, options.show).items():
        print(f"{name}: {share:.1%}")
    print(EXAMPLE, "->", answer([EXAMPLE])[0])


if __name__ == "__main__":
    main()
