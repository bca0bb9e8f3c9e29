"""The largest dense model that a device holds in a format, by its size alone; pure."""

from __future__ import annotations

from bisect import bisect_left

from rung.core.types import Device
from rung.models.catalog import find, outline_of
from rung.planning.check import check
from rung.planning.check_result import Question

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
        answer = check(outline_of(match), [(device,)], question, alternatives=False)
        return not any(choice.verdict for choice in answer.choices)

    end = bisect_left(SIZES, True, key=fails)
    return SIZES[end - 1] if end else ""
