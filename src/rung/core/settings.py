"""Every setting in one place: its environment variable, default, scope and meaning.

``docs/environment.md`` lists this table; a test keeps the page true.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.errors import UsageError

#: More than any processor has; a system refuses to start many more.
MOST_THREADS = 1024


@dataclass(frozen=True)
class Setting:
    """One setting. ``scope`` says when it is read: ``start`` (once) or ``call`` (each time)."""

    variable: str
    default: str
    scope: str
    meaning: str
    parse: Callable[[str], Any] = str

    def read(self) -> Any:
        """The value from the environment, else the default; raises ``UsageError`` for one that makes no sense."""
        text = os.environ.get(self.variable, "") or self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise UsageError(
                f"The environment variable {self.variable} is {text!r}, which makes no sense: {error}",
                [self.meaning],
                [f"unset {self.variable}"],
                code="setting-invalid",
            ) from error


def _threads(text: str) -> int | None:
    if not text:
        return None
    if not text.isdigit() or not 1 <= int(text) <= MOST_THREADS:
        raise ValueError(f"it must be a number of threads, 1 to {MOST_THREADS}")
    return int(text)


def _folder(text: str) -> Path:
    if text:
        return Path(text).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "rung"


def _models(text: str) -> Path:
    if text:
        return Path(text).expanduser()
    base = os.environ.get("XDG_DATA_HOME", "") or os.environ.get("LOCALAPPDATA", "")
    return (Path(base) if base else Path.home() / ".local" / "share") / "rung" / "models"


def _fleet(text: str) -> Path:
    return Path(text).expanduser() if text else _models("").parent / "fleet"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in text.replace(",", " ").split())


def _flag(text: str) -> bool:
    if text.lower() in ("", "0", "no", "false", "off"):
        return False
    if text.lower() in ("1", "yes", "true", "on"):
        return True
    raise ValueError("it must be 1 or 0")


THREADS = Setting(
    "RUNG_THREADS", "", "call", "Threads to compute with; default: the cores that cgroup and affinity allow.", _threads
)
CACHE = Setting(
    "RUNG_CACHE", "", "call", "Folder of probe results and compiled kernels; default: ~/.cache/rung.", _folder
)
CPU_LEVEL = Setting(
    "RUNG_CPU_LEVEL", "", "start", "Highest level of CPU instructions that kernels use: avx2, ssse3, neon, generic, ..."
)
MODELS = Setting("RUNG_MODELS", "", "call", "Folder of pulled models; default: ~/.local/share/rung/models.", _models)
FLEET = Setting(
    "RUNG_FLEET",
    "",
    "call",
    "Folder of this machine's part in a fleet, with its keys; default: ~/.local/share/rung/fleet.",
    _fleet,
)
ACCEPT_TERMS = Setting(
    "RUNG_ACCEPT_TERMS", "", "call", "Names of terms that you have read and accept, for rung pull: gemma.", _words
)
OFFLINE = Setting(
    "RUNG_OFFLINE",
    "0",
    "call",
    "1: ask neither the model hub nor the package index, use what is here (HF_HUB_OFFLINE closes the hub alone).",
    _flag,
)
HISTORY = Setting("RUNG_HISTORY", "1", "call", "0: what is typed in a chat is not kept for the next one.", _flag)
DEBUG = Setting("RUNG_DEBUG", "0", "call", "1: show the traceback of an error (as --debug does).", _flag)

SETTINGS = (THREADS, CACHE, CPU_LEVEL, MODELS, FLEET, ACCEPT_TERMS, OFFLINE, HISTORY, DEBUG)
