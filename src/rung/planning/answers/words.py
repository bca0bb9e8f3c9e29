"""Devices, and shares of a model, as a sentence names them."""

from __future__ import annotations

from collections.abc import Sequence

from rung.core.types import Device

#: First letters of names in capitals that are spoken with a vowel: an RTX 3090, an H100, an MI60.
_SPOKEN = "AEFHILMNORSX"
#: Shares of the layers on the CPU, in words.
_SHARES = (
    (0.15, "partly"),
    (0.3, "a quarter"),
    (0.42, "a third"),
    (0.58, "half"),
    (0.8, "two thirds"),
    (1.1, "mostly"),
)


def group_key(group: Sequence[Device]) -> str:
    """Return the key of a group in an answer."""
    return "+".join(device.id for device in group)


def group_name(group: Sequence[Device]) -> str:
    """Return ``Quadro P2200``, ``2 x GeForce RTX 3090``, ``Quadro P2200 + this CPU``."""
    names: dict[str, int] = {}
    for device in group:
        name = "this CPU" if device.kind == "cpu" and device.real and len(group) > 1 else device.name
        names[name] = names.get(name, 0) + 1
    return " + ".join(name if number == 1 else f"{number} x {name}" for name, number in names.items())


def devices_phrase(group: Sequence[Device]) -> str:
    """Return the devices in a sentence: ``a Quadro P2200``, ``this machine's CPU (AMD EPYC)``."""
    if len(group) > 1:
        return group_name(group)
    device = group[0]
    if not device.real:
        return f"{article(device.name)} {device.name}"
    return f"this machine's CPU ({device.name})" if device.kind == "cpu" else f"this machine's {device.name}"


def article(name: str) -> str:
    """Return ``a`` or ``an``, as the name is spoken.

    >>> [article(name) for name in ("Quadro P2200", "RTX A6000", "Apple M4", "Xeon 6980P", "Tesla T4", "H200")]
    ['a', 'an', 'an', 'a', 'a', 'an']
    """
    first = name.split()[0] if name.split() else ""
    capitals = first.upper() == first
    return "an" if first[:1] in (_SPOKEN if capitals else "AEIO") else "a"


def share_words(on_cpu: float) -> str:
    """Return a share of the layers in words: ``half``, ``two thirds``."""
    return next(words for most, words in _SHARES if on_cpu < most)
