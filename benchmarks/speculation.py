"""Measure the gain of guessing tokens: tokens a second with and without, in turns, of equal texts.

    python benchmarks/speculation.py [SMOLLM2.gguf] [--planted MODEL.gguf] [--draft FORMAT] [--turns 5]

Edits that copy most of a text are asked of the first model, and a text is drawn that hardly repeats itself.
``--draft`` reads the model in another format, as q8_0, and lets the model as it is stored guess for it, with no guesses
from the text. ``--planted`` is any model: its own answer is planted as guesses of which so many (``--acceptance``) are
right.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from typing import Any

import rung
from rung.engine.sampling import Sampler, Sampling
from rung.engine.scheduling.sequence import TokenSequence
from rung.engine.scheduling.speculation import Guesser

TEXT = (
    "The old mill stands at the bend of the river, where the water runs slow and brown under the willows. Every spring"
    " the miller's daughter paints the door green, and every winter the frost takes the paint away again. She says the"
    " river remembers the names of those who crossed it, and that it will keep them until the last stone has fallen."
    " Nobody in the village believes her, but they bring their grain to the mill all the same, for there is no other."
)
EDITS = (
    "Copy this text and change green to blue:\n\n",
    "Write this text again, word by word:\n\n",
    "Repeat this text exactly, but with a title:\n\n",
)


class Planted(Guesser):
    """Guesses the true answer, with so many guesses right."""

    def __init__(self, answer: list[int], prompt: int, acceptance: float) -> None:
        super().__init__()
        self._answer, self._prompt, self._acceptance = answer, prompt, acceptance
        self._random = random.Random(1)

    def guess(self, ids: Any, most: int) -> list[int]:
        """Return the tokens that follow, some of them wrong."""
        at = len(ids) - self._prompt
        found = self._answer[at : at + most]
        return [token if self._random.random() < self._acceptance else (token + 1) % 100 for token in found]


class DraftOnly(Guesser):
    """Guesses nothing from the text."""

    def guess(self, ids: Any, most: int) -> list[int]:
        """Return nothing."""
        return []


def measure(
    model: Any, ids: list[int], most: int, guesser: Guesser | None, temperature: float = 0.0
) -> tuple[float, list[int]]:
    """Return tokens a second after the first one, and the tokens."""
    ends = frozenset() if temperature else frozenset(model.card.end_tokens)
    sampler = Sampler(Sampling(temperature=temperature, seed=1))
    sequence = TokenSequence(ids, sampler, ends=ends, context=model.plan.context, most=most)
    scheduler = model.scheduler
    scheduler.add(sequence)
    sequence.guesser = guesser
    tokens: list[int] = []
    started = 0.0
    while not (sequence.ended and not sequence.ahead):
        scheduler.advance(sequence)
        while (token := sequence.take()) is not None:
            tokens.append(token)
            started = started or time.perf_counter()
    took = time.perf_counter() - started
    scheduler.cancel(sequence)
    return (len(tokens) - 1) / took, tokens


def compare(name: str, model: Any, ids: list[int], most: int, turns: int, make: Any, temperature: float = 0.0) -> None:
    """Print the ratio of both, in turns."""
    plain, guessed, tokens = [], [], []
    for _ in range(turns + 1):
        rate, expected = measure(model, ids, most, None, temperature)
        plain.append(rate)
        guesser = make()
        rate, tokens = measure(model, ids, most, guesser, temperature)
        guessed.append(rate)
        assert tokens == expected, "guesses changed the text"
    ratio = statistics.median(a / b for a, b in zip(guessed[1:], plain[1:], strict=True))
    rates = f"{statistics.median(plain[1:]):.1f} -> {statistics.median(guessed[1:]):.1f} tokens/s, ratio {ratio:.2f}"
    right = f"{guesser.accepted} of {guesser.guessed} guesses right"
    print(f"{name}: {len(tokens)} tokens, {rates}; {right}", flush=True)


def main() -> None:
    """Measure edits, random text and planted guesses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="without it planted guesses alone are measured")
    parser.add_argument("--planted")
    parser.add_argument("--acceptance", type=float, default=0.7)
    parser.add_argument("--draft", metavar="FORMAT")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} at the start, {options.turns} turns")
    chance = random.Random(2)
    if options.model and not options.draft:
        model: Any = rung.load(options.model, context=1024)
        for edit in EDITS:
            text = model.tokenizer.encode(f"<|im_start|>user\n{edit}{TEXT}<|im_end|>\n<|im_start|>assistant\n")
            compare(edit.strip(), model, text, 160, options.turns, Guesser)
        text = model.tokenizer.encode("Once upon a time", bos=True)
        compare("drawn at temperature 1.5", model, text, 160, options.turns, Guesser, 1.5)
    if options.draft:
        model = rung.load(options.model, context=1024, format=options.draft, draft=options.model)
        for question in ("Tell a long story about a mill.", "Why is the sky blue?"):
            text = model.tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
            compare(f"draft for {options.draft}: {question}", model, text, 160, options.turns, DraftOnly)
    if options.planted:
        model = rung.load(options.planted, context=512)
        ids = [5 + chance.randrange(200) for _ in range(32)]
        answer = measure(model, ids, 96, None)[1]
        compare(
            f"planted, {options.acceptance} right", model, ids, 96, options.turns,
            lambda: Planted(answer, len(ids), options.acceptance),
        )  # fmt: skip


if __name__ == "__main__":
    main()
