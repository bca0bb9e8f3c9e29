"""Small helpers for messages: sizes, lists and close matches."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable

GB = 2**30
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


def parse_size(text: str) -> int:
    """Bytes of ``4.6GB``, ``500 MB``, ``2g`` or a plain number of bytes.

    Raises ``ValueError`` with a sentence when the text is no size or not above zero.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not found:
        raise ValueError(f"{text!r} is not a size: write it like 4.6GB or 500MB")
    count = int(float(found[1]) * _UNITS[found[2]])
    if count <= 0:
        raise ValueError(f"{text!r} is not above zero")
    return count


def close(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that look most like ``name``, best first."""
    return difflib.get_close_matches(name.lower(), list(known), n=most, cutoff=0.5)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean q4_k?`` or an empty string."""
    found = close(name, known)
    return f" Did you mean {' or '.join(found)}?" if found else ""


def count(number: int, noun: str) -> str:
    """``1 token``, ``2 tokens``, ``1,204 tokens``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern with ``*`` and ``?`` means a dotted name, or whole parts of it.

    >>> matches("layers.0.q_proj", "layers.0"), matches("layers.0.q_proj", "*_proj"), matches("layers.10", "layers.1")
    (True, True, False)
    """
    return fnmatch.fnmatchcase(f".{name}.", f"*.{pattern}.*")
