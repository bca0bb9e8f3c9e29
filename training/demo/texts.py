"""Sentences written by hand (texts.toml): terms, error messages, small talk, and what to say to the rest."""

from __future__ import annotations

import tomllib
from pathlib import Path

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

UNKNOWN_CARD: str = _DATA["fixed"]["unknown_card"]
WHICH_CARD: str = _DATA["fixed"]["which_card"]
UNKNOWN_WORD: str = _DATA["fixed"]["unknown_word"]
ONE_CARD: str = _DATA["fixed"]["one_card"]
NO_LISTS: str = _DATA["fixed"]["no_lists"]
OTHER_WORDS: list[str] = _DATA["words"]["other"]


def _entries(kind: str) -> list[tuple[list[str], str]]:
    return [(entry["names"], entry["says"]) for entry in _DATA[kind]]


# what users write, and the answer
CONCEPTS, ERRORS, TALK, CHAT = (_entries(kind) for kind in ("concept", "error", "talk", "chat"))
