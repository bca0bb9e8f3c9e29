"""Which of the known models run on a device, best first: (devices, question) -> Shelf; pure.

The largest that answers at reading speed comes first, the newest of equal size before older ones; what is slower than
one reads stands behind. Memory and speed are those of ``planning.check``.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rung.core.types import Device
from rung.core.value import Value
from rung.models.catalog import KnownModel, Match, find, known_models, outline_of
from rung.planning.answers.values import devices_phrase
from rung.planning.check import check
from rung.planning.check_result import Choice, Question
from rung.planning.request import Request
from rung.planning.speed import at_reading_speed

#: Formats that are tried, most exact first.
FORMATS = ("bf16", "q8_0", "q6_k", "q4_k_m", "q3_k_m")
#: Billions of weights at which a class of sizes ends.
_CLASSES = (0.6, 1.4, 2.4, 5.0, 10.0, 18.0, 40.0, 90.0, 250.0, 10_000.0)
#: How many of the two largest classes are shown, how many of a class are tried, how many models stand there in all,
#: and how many slower ones behind them.
_SHOWN, _TRIED, _ALL, _SLOWER = 2, 4, 8, 2
#: Months after which a model is no longer suggested.
_MONTHS = 24
#: Bits of a weight in the smallest format that is tried, without which nothing fits.
_LEAST_BITS = 3.3


@dataclass(frozen=True)
class Suggestion(Value):
    """A model with the format in which it would run, and the tokens of context that were counted."""

    model: KnownModel
    choice: Choice
    context: int

    @property
    def reads(self) -> bool:
        """Return whether it answers as fast as one reads."""
        return _reads(self.choice)

    def to_json(self) -> dict[str, Any]:
        """The suggestion as scripts read it."""
        model = self.model
        named = {"model": model.name, "title": model.title, "parameters": model.parameters, "released": model.released}
        return named | {
            "license": model.license,
            "weights": model.weights,
            "gguf": model.gguf,
            "context": self.context,
            "reading_speed": self.reads,
            **self.choice.to_json(),
        }


@dataclass(frozen=True)
class Shelf(Value):
    """Hold what runs on one device, or on several as one budget, best first; ``known`` counts the models looked at."""

    group: tuple[Device, ...]
    free: int
    suggestions: tuple[Suggestion, ...]
    known: int

    @property
    def ok(self) -> bool:
        """Return whether anything runs."""
        return bool(self.suggestions)

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        where = devices_phrase(self.group)
        if not self.suggestions:
            return f"None of the {self.known} known models runs on {where}."
        best = self.suggestions[0]
        speed = best.choice.speed.decode_tokens_per_second
        how = "as it is stored" if best.choice.format == "stored" else f"with {best.choice.format}"
        words = f"{how}, {speed:.1f} tokens/s" if speed is not None else f"{how}, but {best.choice.speed.reason}"
        what = "is the largest that answers at reading speed" if best.reads else "runs, slower than one reads"
        return f"Of {self.known} known models {best.model.title} {what} on {where}: {words}."

    def to_json(self) -> dict[str, Any]:
        """The shelf as scripts read it."""
        return {
            "answer": self.sentence,
            "device": "+".join(device.id for device in self.group),
            "name": " + ".join(device.name for device in self.group),
            "free": self.free,
            "known": self.known,
            "models": [suggestion.to_json() for suggestion in self.suggestions],
        }


def recommend(group: tuple[Device, ...], question: Question) -> Shelf:
    """Return models that run on these devices, for the question's formats, context and memory."""
    request = Request(memory=question.memory)
    request.check_names(group)
    free = sum(request.budget(device) for device in group)
    reads: list[Suggestion] = []
    slower: list[Suggestion] = []
    classes = 0
    for models in reversed(_classes()):
        near = [model for model in models if model.parameters * _LEAST_BITS / 8 < free]
        found = _of_class(near, group, question, _SHOWN if classes < 2 else 1)
        reads += [suggestion for suggestion in found if suggestion.reads]
        slower += [suggestion for suggestion in found if not suggestion.reads]
        classes += any(suggestion.reads for suggestion in found)
        if len(reads) >= _ALL:
            break
    return Shelf(group, free, (*reads[:_ALL], *slower[:_SLOWER]), len(known_models()))


def _classes() -> list[list[KnownModel]]:
    """Models for every purpose by size, smallest class first; in a class the newest first, of a year the most used."""
    months = {model: _months(model.released) for model in known_models()}
    oldest = max(months.values()) - _MONTHS
    general = [model for model in known_models() if not model.purpose and months[model] >= oldest]
    ordered = sorted(general, key=lambda model: (model.released[:4], model.downloads), reverse=True)
    bounds = [0.0, *_CLASSES]
    return [
        [model for model in ordered if least <= model.parameters / 1e9 < most]
        for least, most in itertools.pairwise(bounds)
    ]


def _months(released: str) -> int:
    year, month = released.split("-")
    return 12 * int(year) + int(month)


def _of_class(
    models: Iterable[KnownModel], group: tuple[Device, ...], question: Question, most: int
) -> list[Suggestion]:
    """The first models of a class that run, one of a family."""
    found: list[Suggestion] = []
    tried: set[str] = set()
    for model in models:
        if len(found) == most or len(tried) == _TRIED:
            break
        if model.family in tried:
            continue
        tried.add(model.family)
        if suggestion := _suggestion(model, group, question):
            found.append(suggestion)
    return found


def _suggestion(model: KnownModel, group: tuple[Device, ...], question: Question) -> Suggestion | None:
    """The most exact format that answers at reading speed, else the fastest one that fits; None where none does."""
    outline = outline_of(Match(model.name, model))
    quantized = any(tensor.source for tensor in outline.components[0].tensors)
    formats = question.formats or (("stored",) if quantized else FORMATS)
    context = question.context and min(question.context, outline.components[0].shape.context)
    answer = check(
        outline, [group], replace(question, formats=formats, context=context), alternatives=False, relaxations=False
    )
    able = [choice for choice in answer.choices if choice.verdict]
    if not able:
        return None
    reads = (choice for choice in able if _reads(choice))
    best = next(reads, None) or _fastest(able)
    return Suggestion(model, best, answer.context)


def _reads(choice: Choice) -> bool:
    """Return whether a choice answers as fast as one reads, as ``check`` judges it."""
    return at_reading_speed(choice.speed.decode_tokens_per_second)


def _fastest(able: Sequence[Choice]) -> Choice:
    return max(able, key=lambda choice: choice.speed.decode_tokens_per_second or 0.0)


#: Sizes in which dense models come, as their names say them.
SIZES = ("0.3b", "0.5b", "1b", "1.5b", "3b", "4b", "7b", "8b", "14b", "24b", "32b", "70b", "123b", "405b")
FORMAT, CONTEXT = "q4_k", 2048


def largest(device: Device, format: str = FORMAT, context: int = CONTEXT) -> str:
    """Return the largest of ``SIZES`` whose weights and cache fit into what is free; an empty text where none does."""
    question = Question(formats=(format,), context=context)

    def fails(name: str) -> bool:
        match = find(name)
        if match is None:
            return True
        answer = check(outline_of(match), [(device,)], question, alternatives=False, relaxations=False)
        return not any(choice.verdict for choice in answer.choices)

    end = bisect_left(SIZES, True, key=fails)
    return SIZES[end - 1] if end else ""
