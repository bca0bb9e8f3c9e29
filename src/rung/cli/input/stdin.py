"""Text on standard input, as the prompt or beside it: files, pipes that speak or stay silent, terminals, nothing."""

from __future__ import annotations

import os
import queue
import select
import stat
import sys
import threading
from collections.abc import Callable

from rung.cli.input.text import decode, kind_of, text_of
from rung.core.errors import UsageError
from rung.core.text import size

#: Seconds that a pipe may stay silent beside a prompt: many programs start others with a pipe that nobody writes to.
PATIENCE = 2.0
#: More text than the context of any model holds; a program that never ends must not fill the memory.
MOST_BYTES = 64 * 2**20
_BLOCK = 1 << 16


def is_terminal() -> bool:
    """Return whether somebody types on standard input."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_all(command: str) -> str:
    """Return everything on standard input; empty for a terminal and where it is closed.

    ``command`` is what was typed, for the ways out. Raises ``UsageError`` for what is no text.
    """
    return _read(None, command) or ""


def join_prompt(prompt: str, command: str, on_note: Callable[[str], None]) -> str:
    """Return a prompt with the text on standard input below it, a blank line between.

    A pipe that stays silent for ``PATIENCE`` seconds is left alone, which ``on_note`` is told. Raises ``UsageError``
    for what is no text; ``command`` is what was typed.
    """
    text = _read(PATIENCE, command)
    if text is None:
        on_note(f"standard input stayed silent for {PATIENCE:.0f} s and is left alone (close it with  < /dev/null)")
        return prompt
    if not prompt.strip():
        return text
    return f"{prompt}\n\n{text}" if text.strip() else prompt


def _read(patience: float | None, command: str) -> str | None:
    """Return the text on standard input, or None where nothing comes for ``patience`` seconds (None: wait for it)."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    try:
        number = sys.stdin.fileno()
    except (OSError, ValueError):  # a stream of another program, or of a test
        return _decode(sys.stdin.buffer.read(MOST_BYTES + 1), command)
    if patience is not None and not _speaks(number, patience):
        return None
    try:
        return _decode(_read_rest(number), command)
    except OSError as error:  # a terminal that has gone, a disk that fails
        raise UsageError(
            f"Standard input cannot be read: {error.strerror}.", (), [f"{command} < FILE"], code="file-unreadable"
        ) from error


def _decode(data: bytes, command: str) -> str:
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"Standard input holds more than {size(MOST_BYTES)}, which no context holds.",
            (),
            [f"head -c 100000 FILE | {command}"],
        )
    if (kind := kind_of(data)) is not None:
        getting = text_of(kind)
        ways = [f"{getting} | {command}" if getting else f"{command} < FILE.txt"]
        raise UsageError(
            f"Standard input is {kind}.",
            ["a language model reads text"],
            [*ways, f"{command} < /dev/null   # without standard input"],
            code="input-not-text",
        )
    return decode(data)


def _read_rest(number: int) -> bytes:
    """Read to the end, past Python's buffer, whose lock a waiting thread would hold; at most a byte too many."""
    data = bytearray(_early.pop(number, b""))
    while len(data) <= MOST_BYTES:
        block = os.read(number, _BLOCK)
        if not block:
            break
        data += block
    return bytes(data)


#: Bytes that a thread has read while it waited for the first, by file descriptor.
_early: dict[int, bytes] = {}


def _speaks(number: int, seconds: float) -> bool:
    """Return whether something to read, or the end, comes within so many seconds. A file always has one of both."""
    if stat.S_ISREG(os.fstat(number).st_mode):
        return True
    try:
        return bool(select.select([number], [], [], seconds)[0])
    except (OSError, ValueError):  # Windows selects among sockets only
        return _speaks_to_a_thread(number, seconds)


def _speaks_to_a_thread(number: int, seconds: float) -> bool:
    """Do the same by a thread that reads the first bytes. Where none come it waits on, and ends with the process."""
    first: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        try:
            first.put(os.read(number, _BLOCK))
        except OSError:
            first.put(b"")

    threading.Thread(target=read, daemon=True, name="rung-stdin").start()
    try:
        _early[number] = first.get(timeout=seconds)
    except queue.Empty:
        return False
    return True
