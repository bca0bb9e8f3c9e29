"""Make the job of ``rung quantize`` within a budget: ``--size``, ``--max-kl``, or a named format with ``--text``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rung.conversion.job import Job
from rung.conversion.names import aliases
from rung.conversion.quantize import quantizing
from rung.core.errors import UsageError
from rung.core.files import read_text
from rung.core.text import matches
from rung.core.types import Format
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.models.card import ModelCard
from rung.models.files.gguf_write import pair
from rung.quantization import text as texts
from rung.quantization.budget import Choice, Option, Progress, Rounder, choose, corrected, matrices, options_of
from rung.quantization.statistics import FEWEST, LENGTH, gather

#: Characters of the default text for a token, at least.
_CHARACTERS = 6
#: Of so many windows one corrects expectations, and one judges the result: those in the middle, so that each kind of
#: text is met in all three parts.
_PARTS = 5


@dataclass(frozen=True)
class Budget:
    """Hold a budget: bytes of the file, or KL in nats a token, or neither with a named format."""

    size: int | None = None
    max_kl: float | None = None
    format: str | None = None


class Calibration:
    """A model with the windows of a text: those that statistics come from, those that correct what is expected, and
    those that judge the result."""

    def __init__(self, card: ModelCard, text: Path | None, threads: int, progress: Progress) -> None:
        import torch

        torch.set_num_threads(threads)
        self.card, self.progress, self.name = card, progress, "default" if text is None else text.name
        words = texts.default_text(_CHARACTERS * texts.TOKENS) if text is None else read_text(text, texts.OTHER_TEXT)
        tokenizer = Tokenizer.from_card(card)
        length = min(LENGTH, max(len(tokenizer.encode(words[:16384], special=False, bos=False)) // _PARTS, 2))
        windows = texts.windows(tokenizer, words, length, texts.TOKENS)
        part = torch.arange(len(windows)) % _PARTS
        self.corrected_by, self.held_out = windows[part == _PARTS - 2], windows[part == _PARTS - 1]
        self.chosen_by = windows[part < _PARTS - 2]
        if self.chosen_by.numel() < FEWEST:
            raise UsageError(
                f"The text has {windows.numel()} tokens, too few to judge a model by.",
                [f"at least {2 * FEWEST} are needed, and some thousands are better"],
                texts.OTHER_TEXT,
                code="input-empty",
            )
        self.rounder = Rounder(gather(card, self.chosen_by, progress), threads)

    @functools.cached_property
    def options(self) -> Mapping[str, tuple[Option, ...]]:
        """Return the options of each matrix, by role."""
        options = options_of(self.card, self.rounder, self.progress)
        return corrected(self.card, self.rounder, options, self.corrected_by, self.progress)


def budgeted(found: Calibration, budget: Budget, keep: dict[str, Format]) -> tuple[Job, Choice | None]:
    """Return the job that stores a model in a GGUF file within a budget, and what was chosen; None for a named format.

    Raises ``UsageError`` for a budget that no mixture meets, and as ``quantizing`` does.
    """
    if budget.format is not None:
        job = quantizing(found.card, "gguf", budget.format, keep)
        return replace(job, rounder=found.rounder), None
    options = dict(found.options)
    kept = {step.tensor.role: step.format for step in quantizing(found.card, "gguf", "q8_0", keep).steps if keep}
    for tensor in matrices(found.card):
        own = kept.get(tensor.role)
        if own is not None and any(matches(name, pattern) for name in aliases(found.card, tensor) for pattern in keep):
            same = [each for each in options[tensor.role] if each.format == own]
            options[tensor.role] = tuple(same) or (Option(own, own.bytes(tensor.shape), 0.0),)
    room = budget.size
    while True:
        choice = choose(options, room, budget.max_kl)
        job = _job(found, choice)
        excess = 0 if budget.size is None else job.layout()[0][0].length - budget.size
        if excess <= 0 or room is None:
            break
        room -= excess
    reached = set(found.rounder.statistics.roles)
    missed = [tensor.name for tensor in matrices(found.card) if tensor.role not in reached]
    note = (f"the text does not reach {', '.join(missed[:4])}: kept in 8 bits",) if missed else ()
    return replace(job, rounder=found.rounder, notes=job.notes + note), choice


def _job(found: Calibration, choice: Choice) -> Job:
    """Return the job that stores each tensor as chosen; the file says that it is of the most frequent format."""
    by_role = {tensor.role: tensor for tensor in matrices(found.card)}
    sizes: dict[str, int] = {}
    for role, fmt in choice.formats.items():
        sizes[fmt.name] = sizes.get(fmt.name, 0) + fmt.bytes(by_role[role].shape)
    job = quantizing(found.card, "gguf", max(sizes, key=lambda name: sizes[name]), choice.formats)
    steps = tuple(replace(step, reason="budget") if step.reason.startswith("--keep") else step for step in job.steps)
    said = {"rung.quantization.expected_kl": choice.divergence, "rung.quantization.text": found.name}
    return replace(job, steps=steps, pairs=(*job.pairs, *(pair(key, value) for key, value in said.items())))
