"""Writes questions and answers from the catalogue, the concepts and the error messages.

usage, in the repository's root: python -m training.demo.generate 20      (prints 20 of them)
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from training.demo import answers, frames, texts
from training.demo.cards import Card, known_names, load_cards
from training.demo.unknown_cards import invented_name, near_name, real_names, squeeze

KINDS = {
    "capability": 12, "memory": 10, "generation": 7, "bf16": 10, "f16": 7, "int8": 7, "matrix": 4, "fp8": 4,
    "bandwidth": 6, "driver": 6, "dtype": 5, "vendor": 2, "all": 5, "fit_card": 4, "fit": 4, "size": 3, "concept": 9,
    "error": 4, "talk": 6, "chat": 9, "unknown": 14, "compare": 3, "list": 2, "word": 2,
}  # fmt: skip

# what people have: these are asked for twice as often
COMMON = re.compile(
    r"(GTX|RTX) \d{3,4}|.*\b(P40|P100|V100|T4|A100|H100|P2200|A10|L4|L40S|A6000|RX (580|[5679]\d{3})"
    r"|MI(50|100|210|250X?|300X)|M[1-4]|Arc [AB]\d{3})\b"
)


class Dialogue(NamedTuple):
    """One question with its answer; ``subject`` is the card or term."""

    kind: str
    question: str
    answer: str
    subject: str


def expand(frame: str, rng: random.Random) -> str:
    """Choose one of every ``(a|b)``, the innermost first."""
    while "(" in frame:
        frame = re.sub(r"\(([^()]*)\)", lambda match: rng.choice(match[1].split("|")), frame, count=1)
    return re.sub(r"\s+", " ", frame).strip()


def normal_form(frame: str) -> str:
    """A question without case, punctuation and articles, to tell whether a wording is a held-back one."""
    words = re.sub(r"[^a-z0-9{} ]", "", frame.lower().replace("'s", " is")).split()
    return " ".join(word for word in words if word not in {"a", "an", "the", "my", "this", "our", "please"})


EVALUATION_FRAMES = frozenset(
    normal_form(frame) for kept in (*frames.EVALUATION.values(), frames.EVALUATION_GREETINGS) for frame in kept
)


def typed(name: str, rng: random.Random) -> str:
    """A product name as users type it."""
    if rng.random() < 0.2:
        name = re.sub(r"(?<=[A-Za-z]) (?=\d)|(?<=\d) (?=[A-Za-z])", "", name)
    return name.replace(" ", "-") if rng.random() < 0.04 else name


def _typed_card(card: Card, rng: random.Random) -> str:
    alias = typed(rng.choice(card.aliases), rng)
    if rng.random() < 0.12 and not alias.upper().startswith(card.maker.upper()):
        return f"{card.maker} {alias}"
    return alias


def _typo(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    if not text[at].isalpha() or "{" in text:
        return text
    return text[:at] + (text[at + 1 :] if rng.random() < 0.5 else text[at] + text[at:])


def _dress(core: str, rng: random.Random, slots: dict[str, str], leads: list[str], tails: list[str]) -> str:
    """Add beginnings, endings and typing errors, fill in the slots, and lower the case as the chat template does."""
    if rng.random() < 0.08:
        words = core.split(" ")
        at = rng.randrange(len(words))
        core = " ".join([*words[:at], _typo(words[at], rng) if words[at] else "", *words[at + 1 :]])
    text = rng.choice(leads) + core + rng.choice(tails)
    cased = rng.random() < 0.08  # a runner without the chat template leaves the case as it is
    text = text[:1].upper() + text[1:] if cased else text
    for slot, value in slots.items():
        text = text.replace("{" + slot + "}", value)
    return text if cased else text.lower()


class Generator:
    """Draws dialogues; everything comes from the catalogue and the random numbers of ``seed``."""

    def __init__(self, seed: int, cards: tuple[Card, ...] | None = None) -> None:
        self.rng = random.Random(seed)
        self.cards = cards or load_cards()
        self.by_name = {card.name: card for card in self.cards}
        self.known = known_names(self.cards)
        self.weights = [2 if COMMON.match(card.name) else 1 for card in self.cards]
        self.unknown = real_names(self.known)[0]
        self.frames = frames.FACTS | {"all": frames.ALL}

    def draw(self) -> Dialogue:
        """One dialogue of a random kind."""
        kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind in self.frames:
            return self._fact(kind)
        return getattr(self, f"_{kind}")()

    def conversation(self) -> list[Dialogue]:
        """One or more turns; after a card has been named, "it" may stand for it."""
        turns: list[Dialogue] = []
        card: Card | None = None
        for _ in range(self.rng.choices((1, 2, 3, 5, 8), (55, 20, 12, 8, 5))[0]):
            if card is not None and self.rng.random() < 0.3:
                kind = self.rng.choice([kind for kind in answers.FACTS if kind != "vendor"])
                turns.append(self._fact(kind, card, self.rng.choice(frames.PRONOUNS)))
            elif not turns and self.rng.random() < 0.015:
                question = self._ask(self.frames[self.rng.choice(answers.FACTS)], n=self.rng.choice(frames.NAMELESS))
                turns.append(Dialogue("nameless", question, texts.WHICH_CARD, ""))
            else:
                turns.append(self.draw())
            last = turns[-1]
            card = self.by_name[last.subject] if last.kind in answers.FACTS or last.kind == "all" else None
        return turns

    def _card(self) -> Card:
        return self.rng.choices(self.cards, self.weights)[0]

    def _ask(
        self, options: list[str], leads: list[str] = frames.LEADS, tails: list[str] = frames.TAILS, **slots: str
    ) -> str:
        while True:
            core = expand(self.rng.choice(options), self.rng)
            if normal_form(core) in EVALUATION_FRAMES:
                continue
            question = _dress(core, self.rng, slots, leads, tails)
            if normal_form(question) not in EVALUATION_FRAMES:
                return question

    def _fact(self, kind: str, card: Card | None = None, name: str | None = None) -> Dialogue:
        card = card or self._card()
        sentences = answers.SENTENCES[kind](card) or [answers.not_stated(card)]
        question = self._ask(self.frames[kind], n=name or _typed_card(card, self.rng))
        return Dialogue(kind, question, answers.choose(sentences, self.rng), card.name)

    def _unknown(self) -> Dialogue:
        rng = self.rng
        name = rng.choices(
            (rng.choice(self.unknown), invented_name(rng, self.known), near_name(rng, self._card().name, self.known)),
            (4, 5, 2),
        )[0]
        short = re.sub(r"^(GeForce|Radeon|NVIDIA|Quadro|Tesla) ", "", name)
        if rng.random() < 0.5 and squeeze(short) not in self.known:
            name = short
        options = self.frames[rng.choice(list(self.frames))] if rng.random() < 0.9 else frames.FIT_CARD
        parameters = self._parameters(rng.choice(answers.PARAMETERS))
        return Dialogue("unknown", self._ask(options, n=typed(name, rng), p=parameters), texts.UNKNOWN_CARD, name)

    def _parameters(self, billions: float) -> str:
        return self.rng.choice(
            (f"{billions:g}B", f"{billions:g}B", f"{billions:g} B", f"{billions:g} billion parameter")
        )

    def _fit_card(self) -> Dialogue:
        parameters = self.rng.choice(answers.PARAMETERS)
        while True:
            card = self._card()
            sentences = answers.fit_card(card, parameters)
            if sentences:
                break
        question = self._ask(frames.FIT_CARD, n=_typed_card(card, self.rng), p=self._parameters(parameters))
        return Dialogue("fit_card", question, sentences[0], card.name)

    def _fit(self) -> Dialogue:
        parameters, memory = self.rng.choice(answers.PARAMETERS), self.rng.choice(answers.MEMORIES)
        question = self._ask(frames.FIT, p=self._parameters(parameters), m=str(memory))
        return Dialogue("fit", question, answers.fit(parameters, memory), "")

    def _size(self) -> Dialogue:
        parameters = self.rng.choice(answers.PARAMETERS)
        return Dialogue("size", self._ask(frames.SIZE, p=self._parameters(parameters)), answers.sizes(parameters), "")

    def _concept(self) -> Dialogue:
        names, answer = self.rng.choice(texts.CONCEPTS)
        name = self.rng.choice(names)
        return Dialogue("concept", self._ask(frames.CONCEPT, n=name), answer, name)

    def _error(self) -> Dialogue:
        names, answer = self.rng.choice(texts.ERRORS)
        name = self.rng.choice(names)
        card = _typed_card(self._card(), self.rng)
        return Dialogue("error", self._ask(frames.ERROR, n=name, c=card), answer, name)

    def _talk(self) -> Dialogue:
        questions, answer = self.rng.choice(texts.TALK)
        return Dialogue("talk", self._ask(questions), answer, "")

    def _chat(self) -> Dialogue:
        names, answer = self.rng.choices(texts.CHAT, [3] + [1] * (len(texts.CHAT) - 1))[0]  # greetings come first
        return Dialogue("chat", self._ask(names, leads=frames.CHAT_LEADS, tails=frames.CHAT_TAILS), answer, "")

    def _compare(self) -> Dialogue:
        one, other = (_typed_card(self._card(), self.rng) for _ in range(2))
        return Dialogue("compare", self._ask(frames.COMPARE, n=one, o=other), texts.ONE_CARD, "")

    def _list(self) -> Dialogue:
        return Dialogue("list", self._ask(frames.LIST), texts.NO_LISTS, "")

    def _word(self) -> Dialogue:
        word = self.rng.choice(texts.OTHER_WORDS)
        return Dialogue("word", self._ask(frames.CONCEPT, n=word), texts.UNKNOWN_WORD, word)


def conversations(count: int, seed: int) -> Iterator[list[Dialogue]]:
    """``count`` conversations; the same seed and catalogue give the same ones."""
    generator = Generator(seed)
    for _ in range(count):
        yield generator.conversation()


if __name__ == "__main__":
    for turns in conversations(int(sys.argv[1]) if len(sys.argv) > 1 else 20, seed=1):
        for turn in turns:
            print(*turn, sep="\n    ")
        print()
