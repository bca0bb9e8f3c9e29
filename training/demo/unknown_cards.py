"""Names of cards that the catalogue does not hold: real ones, and invented ones near to known names."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Collection
from pathlib import Path

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
REAL = [name.strip() for line in _DATA["real"].strip().splitlines() for name in line.split("|")]
PATTERNS, SYLLABLES = _DATA["patterns"], _DATA["syllables"]
MAKERS = frozenset(
    ("nvidia", "geforce", "amd", "radeon", "intel", "tesla", "quadro", "instinct", "apple", "graphics", "card")
)


def _invented(rng: random.Random) -> str:
    word = "".join(rng.choices(SYLLABLES, k=rng.choice((2, 2, 3)))).capitalize()
    return rng.choice(PATTERNS).format(
        two=rng.randint(11, 99),
        nn=rng.randint(10, 99),
        nnn=rng.choice((rng.randint(100, 999), rng.randrange(100, 1000, 10))),
        nnnn=rng.choice((rng.randint(1000, 9999), rng.randrange(1000, 10000, 10))),
        tail=rng.choice((40, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95)),
        n=rng.randint(1, 9),
        hundred=rng.choice((100, 200, 300, 400, 500, 600, 700, 800, 900, "000", 250, 350, 750, 850, 950)),
        m=rng.randint(5, 12),
        letter=rng.choice("ABCDEFGHKLMNPRSTVWXZ"),
        word=word,
    )


def real_names(known: Collection[str]) -> tuple[list[str], list[str]]:
    """Real cards outside the catalogue, as (training, held back); ``known`` are squeezed names of the catalogue.

    A name's place in the list decides, so that a catalogue that grows moves no name from one part to the other.
    """
    parts: tuple[list[str], list[str]] = ([], [])
    for index, name in enumerate(REAL):
        if not _is_known(name, known):
            parts[index % 5 == 3].append(name)
    return parts


def invented_name(rng: random.Random, known: Collection[str]) -> str:
    """An invented card that is not in the catalogue under any of its names."""
    while True:
        name = _invented(rng)
        if not _is_known(name, known):
            return name


def near_name(rng: random.Random, name: str, known: Collection[str]) -> str:
    """``name`` with one letter or digit of its number changed or added, so that it is no card of the catalogue."""
    name = re.sub(r" \d+GB\b", "", name)
    places = [at for at, letter in enumerate(name) if letter.isalnum() and re.search(r"\d", name[: at + 1])]
    while True:
        at = rng.choice(places or [len(name) - 1])
        letter = rng.choice("0123456789" if name[at].isdigit() else "ABCDEFGHKLMNPRSTVWXZ")
        near = name[:at] + rng.choice(("", name[at])) + letter + name[at + 1 :]
        if not _is_known(near, known):
            return near


def squeeze(name: str) -> str:
    """A name without case, spaces, hyphens and makers: two names that squeeze to the same are one."""
    name = name.lower().replace("-", " ")
    words = [word for word in name.split() if word not in MAKERS]
    return "".join(words)


def _is_known(name: str, known: Collection[str]) -> bool:
    return squeeze(name) in known
