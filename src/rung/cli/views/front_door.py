"""Screen of ``rung`` alone: four questions, each with a command."""

from __future__ import annotations

from rung.cli.views.output import columns, folded

_QUESTIONS = (
    ("Will it run?", 'rung check "llama 3.1 8b"', "add --device p2200 for a card you do not have"),
    ("Run it.", "rung run", "a real model answers, then chats"),
    ("Why did it fail?", "python train.py 2>&1 | rung explain", 'or paste the error: rung explain "..."'),
    ("Make it smaller.", "rung quantize MODEL small.gguf --format q4_k_m", "says what each tensor loses"),
)


def show() -> None:
    """Print the four questions."""
    print("rung: any model, on the device you have\n")
    lines = columns(("", "", ""), _QUESTIONS)
    print("\n".join(lines if lines[0] else lines[1:]))  # a table begins with its headings, which are empty here
    print()
    print("\n".join(folded("", "rung --help lists all commands, rung COMMAND --help the options of one.")))
