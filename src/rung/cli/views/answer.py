"""An answer as it comes: its pieces on stdout, the progress of reading the prompt and a closing line on stderr."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rung.cli.views.wrap import WordWrapper
from rung.core.text import printable

if TYPE_CHECKING:
    from rung.core.types import StepDown
    from rung.engine.generation import Generation
    from rung.engine.model import Model

#: Why an answer ended before the model ended it.
_ENDS = {"length": "stopped at --max-tokens", "context": "the context is full", "stopped": "stopped"}
_ERASE_LINE = "\r\x1b[K"
#: Shorter prompts are read before anybody can read how far it is.
_LONG_PROMPT = 200


class ReadingLine:
    """One line on stderr, ``reading 1,024 of 2,830``, while a prompt is read; it goes when the answer begins.

    Shown on a terminal only, and only for prompts that take a while. A context manager.
    """

    def __init__(self, silent: bool) -> None:
        self._on = not silent and sys.stderr.isatty()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def update(self, done: int, total: int) -> None:
        """Show how many tokens of how many are read."""
        if self._on and done < total and total > _LONG_PROMPT:
            self._shown = True
            print(f"{_ERASE_LINE}reading {done:,} of {total:,}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)
            self._shown = False


def show(answer: Generation, silent: bool) -> dict[str, Any]:
    """Print the pieces as they come, unless silent; return the result. An answer that is cut short ends its line.

    A terminal gets whole words on a line, and control characters written out: a model may have learned to move its
    cursor, or to fill its clipboard. A pipe gets the text as it is.
    """
    last = ""
    wrapper = WordWrapper(_print, _terminal_columns) if sys.stdout.isatty() else None
    with ReadingLine(silent) as reading:
        answer.on_read = reading.update
        try:
            for piece in answer:
                reading.clear()
                if silent:
                    continue
                if wrapper is not None:
                    wrapper.push(printable(piece))
                    sys.stdout.flush()
                else:
                    print(piece, end="", flush=True)
                last = piece or last
        finally:
            if last and not silent:
                if wrapper is not None:
                    wrapper.finish()
                print(end="" if last.endswith("\n") else "\n", flush=True)
    return answer.result


def _print(text: str) -> None:
    print(text, end="")


def _terminal_columns() -> int:
    return shutil.get_terminal_size().columns


def summary(result: dict[str, Any]) -> str:
    """``58 tokens · 24.1 tokens/s · first after 0.6 s``."""
    tokens = len(result["tokens"])
    rate = result["decode_tokens_per_second"]
    parts = [f"{tokens} {'token' if tokens == 1 else 'tokens'}"]
    if rate:
        parts.append(f"{rate:.1f} tokens/s")
    parts.append(f"first after {result['first_token_seconds']:.1f} s")
    if result["simulated"]:
        parts.append("simulated: the times are not the card's")
    return " · ".join([*parts, *filter(None, [early_end(result)])])


def early_end(result: dict[str, Any]) -> str:
    """Say why an answer ended before the model ended it; empty where it did not."""
    return _ENDS.get(result["stop_reason"], "")


def is_simulated(loaded: Model) -> bool:
    """Return whether a device of the plan is simulated, so that times say nothing of it."""
    used = {placement.device for placement in loaded.plan.placements}
    return any(not device.real for device in loaded.devices if device.id in used)


def step_line(step: StepDown) -> str:
    """Return one step down as one line."""
    return f"{step.op} on {step.device}: {step.rung} → {step.to}, {step.step}: {step.reason}"
