"""``rung check`` without a model: which of the known models run on a device, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rung.cli.views.check.several import text
from rung.cli.views.output import print_json
from rung.core.errors import UsageError
from rung.hardware.select import Group
from rung.planning.answers.recommend import recommend
from rung.planning.check_result import Question


def refuse_options(options: Mapping[str, object]) -> None:
    """Raise ``UsageError`` for an option that asks about one model."""
    for option, value in options.items():
        if value:
            raise UsageError(
                f"{option} asks about a model, and none is named.",
                ["without a model rung check says which models run on a device"],
                [f"rung check llama-3.1-8b {option}", "rung check --device p2200"],
            )


def answer(groups: Sequence[Group], question: Question, json: bool) -> int:
    """Print what runs on each group of devices; return the exit code: 0 where something does, else 1."""
    shelves = [recommend(group, question) for group in groups]
    if json:
        print_json({"answer": " ".join(shelf.sentence for shelf in shelves), "devices": [s.to_json() for s in shelves]})
    else:
        print("\n\n".join(map(text, shelves)))
    return 0 if any(shelf.ok for shelf in shelves) else 1
