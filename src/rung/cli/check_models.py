"""``rung check`` without a model: which of the known models run on a device, best first, and how that is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rung.cli.views.output import columns, folded, print_json
from rung.core.errors import UsageError
from rung.core.text import printable, quoted, rate, size
from rung.formats.table import grade
from rung.hardware.select import Group
from rung.planning.answers.recommend import Shelf, Suggestion, recommend
from rung.planning.check_result import Question
from rung.planning.speed import READING_SPEED


def text(shelf: Shelf) -> str:
    """Return the sentence, a table with a line a model, and what to type for the first of them."""
    lines = folded("", shelf.sentence)
    if not shelf.suggestions:
        return printable("\n".join([*lines, f"{size(shelf.free)} are free there: rung check 0.5b --fits"]))
    lines += _table(shelf)
    best = shelf.suggestions[0]
    lines += [f"→ {command}" for command in _commands(shelf, best)]
    return printable("\n".join(lines))


def _table(shelf: Shelf) -> list[str]:
    headings = ("model", "released", "format", "quality", "memory", "tokens/s", "at most", "")
    rows = [_row(suggestion) for suggestion in shelf.suggestions]
    return columns(headings, rows)


def _row(suggestion: Suggestion) -> tuple[str, ...]:
    choice, speed = suggestion.choice, suggestion.choice.speed
    decode, most = speed.decode_tokens_per_second, speed.bound_tokens_per_second
    slower = "" if suggestion.reads else speed.reason or f"below reading speed, {READING_SPEED:g} tokens/s"
    emulated = choice.verdict.reason.partition(":")[0] if suggestion.reads else ""
    return (
        suggestion.model.name,
        suggestion.model.released,
        choice.format,
        grade(choice.error_db),
        size(choice.memory.total),
        "-" if decode is None else rate(decode),
        "" if most is None else rate(most),
        slower or emulated,
    )


def _commands(shelf: Shelf, best: Suggestion) -> list[str]:
    """Return the commands that show the first model in every format and run it; with llama.cpp too, where that is much
    faster."""
    names = "+".join(one.id if one.real else one.id.partition(":")[0] for one in shelf.group)
    where = [] if shelf.group[0].real and len(shelf.group) == 1 else [f"--device {quoted(names)}"]
    found = [" ".join(["rung check", best.model.name, *where])]
    label = best.choice.format.upper()
    if best.model.gguf and best.model.runs_gguf and best.choice.format in ("q8_0", "q6_k", "q4_k_m", "q3_k_m"):
        found.append(f"rung run {best.model.gguf}:{label}")
    elif best.choice.command:
        found.append(best.choice.command)
    speed = best.choice.speed
    faster = speed.bound_tokens_per_second and (speed.decode_tokens_per_second or 0) * 3 < speed.bound_tokens_per_second
    if faster and speed.llama_cpp is not None and speed.llama_cpp.command:
        found.append(f"{speed.llama_cpp.command}   # multiplies the weights as they are stored: faster on this device")
    return found


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
