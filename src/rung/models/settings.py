"""Values of a configuration or of GGUF metadata, each checked when it is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rung.core.errors import BadFile

_MOST = 2**31 - 1


class Settings:
    """The keys of ``values``; ``where`` names their file, ``prefix`` stands before each key (``llama.``).

    Every method raises ``BadFile`` for a value that is not what it must be, and, where no default is given, for a
    key that is absent. ``null`` counts as absent.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as it is, or the default where the key is absent; a ``null`` stays None."""
        return self.values.get(self.prefix + key, default)

    def bad(self, key: str, value: Any, expected: str) -> BadFile:
        """The error for a value that is not what is wanted."""
        return BadFile(f"{self.where}: {self.prefix}{key} is {str(value)[:60]!r}, not {expected}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.raw(key)
        if value is None:
            value = default
        if value is None:
            raise BadFile(f"{self.where} has no {self.prefix}{key}")
        return value

    def integer(self, key: str, default: int | None = None, least: int = 1, most: int = _MOST) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.bad(key, value, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.bad(key, value, "a number above zero")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.bad(key, value, "a text")
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        """An object; empty where it is absent."""
        value = self.raw(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.bad(key, value, "an object")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """An array of strings; empty where it is absent."""
        value = self.raw(key)
        if value is None:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, str) for v in value):
            raise self.bad(key, value, "an array of texts")
        return tuple(value)

    def uniform(self, key: str, default: int | None = None) -> int:
        """A whole number, or an array of them that are all equal (GGUF states some values layer by layer)."""
        value = self.raw(key)
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
            if len(set(value)) > 1:
                raise self.bad(key, sorted(set(value)), "the same for all layers: rung does not build such models")
            return Settings({key: value[0]}, self.where).integer(key)
        return self.integer(key, default)


def token_ids(value: Any, vocabulary: int) -> tuple[int, ...]:
    """The ids in an integer or a list of them, those outside of the vocabulary (which nothing generates) left out."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(
        token for token in values if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocabulary
    )


#: Where a configuration says how its weights are quantized; the second name is an older one of compressed-tensors.
QUANTIZATION = ("quantization_config", "compression_config")


def quantization(config: Settings) -> Mapping[str, Any] | None:
    """The quantization config, under its name and the one that compressed-tensors had for it; None without one.

    Raises ``BadFile`` for one that is no object.
    """
    found = next((value for key in QUANTIZATION if (value := config.raw(key))), None)
    if found and not isinstance(found, Mapping):
        raise config.bad(QUANTIZATION[0], found, "an object")
    return found or None
