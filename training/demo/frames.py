"""Question frames: those to train on (frames.toml), and those held back for the evaluation (held_frames.toml)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_ARTICLE = "(the|a|my|an|this|our||) "


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


def _with_articles(frames: list[str]) -> list[str]:
    return [frame.replace("{N}", _ARTICLE + "{n}").replace("{O}", _ARTICLE + "{o}") for frame in frames]


_DATA, _EVALUATION = _load("frames.toml"), _load("held_frames.toml")

ALL, FIT_CARD, FIT, SIZE, CONCEPT, ERROR, COMPARE, LIST = (
    _with_articles(_DATA[name]) for name in ("all", "fit_card", "fit", "size", "concept", "error", "compare", "list")
)
LEADS, TAILS, CHAT_LEADS, CHAT_TAILS, PRONOUNS, NAMELESS = (
    list(_DATA[name]) for name in ("leads", "tails", "chat_leads", "chat_tails", "pronouns", "nameless")
)

EVALUATION: dict[str, list[str]] = _EVALUATION["frames"]
EVALUATION_GREETINGS: dict[str, str] = _EVALUATION["greetings"]  # and how a fitting answer begins
PLAIN_GREETINGS: dict[str, str] = _EVALUATION["plain_greetings"]
UNKNOWN_KINDS: list[str] = _EVALUATION["unknown_kinds"]


def _of_facts() -> dict[str, list[str]]:
    extra = {kind: _with_articles(frames) for kind, frames in _DATA["extra"].items()}
    return {
        kind: [
            frame.replace("{t}", f"({'|'.join(topic['words'])})") for frame in _with_articles(_DATA[topic["frames"]])
        ]
        + extra.get(kind, []) * 3
        for kind, topic in _DATA["topics"].items()
    }


# kind of fact: its frames, the words for it filled in
FACTS = _of_facts()
