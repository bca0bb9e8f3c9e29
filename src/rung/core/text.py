"""Small helpers for messages: sizes, times, lists and close matches."""

from __future__ import annotations

import difflib
import fnmatch
import re
import shlex
from collections.abc import Iterable

GB = 2**30
#: What colors a terminal, moves in it or turns the direction of text, but for the end of a line and tabs.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def size(count: float) -> str:
    """Bytes as people read them; a GB is 2^30 bytes.

    >>> size(5 * 2**30), size(900), size(12 * 2**20)
    ('5.0 GB', '900 bytes', '12 MB')
    """
    if count >= 0.1 * GB:
        return f"{count / GB:.1f} GB"
    if count >= 2**20:
        return f"{count / 2**20:.0f} MB"
    if count >= 2**10:
        return f"{count / 2**10:.0f} kB"
    return f"{count:.0f} bytes"


def duration(seconds: float) -> str:
    """A time as people read it.

    >>> duration(45), duration(720), duration(12_240)
    ('45 s', '12 min', '3.4 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def rate(each_second: float) -> str:
    """A speed as people read it.

    >>> rate(6.58), rate(1204.4)
    ('6.6', '1,204')
    """
    return f"{each_second:.1f}" if each_second < 100 else f"{each_second:,.0f}"


def tenths(count: int) -> float:
    """Bytes as GB, rounded up to a tenth."""
    return (count * 10 // 2**30 + 1) / 10


def parse_size(text: str) -> int:
    """Bytes of ``4.6GB``, ``500 MB``, ``2g`` or a plain number of bytes.

    Raises ``ValueError`` with a sentence when the text is no size or not above zero.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not found:
        raise ValueError(f"{text!r} is not a size")
    count = int(float(found[1]) * _UNITS[found[2]])
    if count <= 0:
        raise ValueError(f"{text!r} is not above zero")
    return count


def close(name: str, known: Iterable[str], most: int = 3, cutoff: float = 0.5) -> list[str]:
    """The known names that look most like ``name``, best first; ``cutoff`` is how much must be alike."""
    return difflib.get_close_matches(name.lower(), list(known), n=most, cutoff=cutoff)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean q4_k?`` or an empty string."""
    found = close(name, known)
    return f" Did you mean {' or '.join(found)}?" if found else ""


def count(number: int, noun: str) -> str:
    """``1 token``, ``2 tokens``, ``1,204 tokens``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern with ``*`` and ``?`` means a dotted name, or whole parts of it.

    >>> matches("layers.0.q_proj", "layers.0"), matches("layers.0.q_proj", "*_proj"), matches("layers.10", "layers.1")
    (True, True, False)
    """
    return fnmatch.fnmatchcase(f".{name}.", f"*.{pattern}.*")


def quoted(value: object) -> str:
    """A path as a shell takes it.

    >>> quoted("model.gguf"), quoted("my model.gguf")
    ('model.gguf', "'my model.gguf'")
    """
    return shlex.quote(str(value))


def printable(text: str) -> str:
    r"""A text whose control characters are written out: names in files are anybody's, and a terminal obeys them.

    >>> print(printable("weight" + chr(27) + "[31m"))
    weight\x1b[31m
    """
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)
