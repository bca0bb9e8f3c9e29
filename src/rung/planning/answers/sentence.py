"""The answer of ``rung check`` in one sentence, with the devices by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rung.core.text import count, rate, size
from rung.core.types import Device
from rung.planning.speed import READING_SPEED

if TYPE_CHECKING:
    from rung.planning.check_result import Alternative, Answer, Choice

#: So many devices are answered one by one.
_FEW = 3
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


def sentence(answer: Answer) -> str:
    """Return ``Gemma 2B on a Quadro P2200: yes, with q8_0 and 4,096 tokens of context, 6.6 tokens/s.``"""
    groups = answer.groups
    if not answer.choices or not groups:
        return f"{_model(answer)}: no device was asked about."
    if len(groups) == 1:
        return f"{_model(answer)} on {place(groups[0])}: {_on_one(answer, group_key(groups[0]))}."
    if len(groups) <= _FEW:
        told = (f"on {place(group)} {_on_one(answer, group_key(group))}" for group in groups)
        return f"{_model(answer)}: {'; '.join(told)}."
    return _on_many(answer)


def _model(answer: Answer) -> str:
    return answer.title or answer.model


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


def place(group: Sequence[Device]) -> str:
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


def _on_one(answer: Answer, key: str) -> str:
    """The answer for one group of devices, without the devices."""
    index = answer.best_by_device.get(key)
    if index is not None:
        return _yes(answer, answer.choices[index])
    there = [each for each in answer.alternatives if each.instead_of == key]
    own = [each for each in there if not each.on_cpu]
    shared = [each for each in there if each.on_cpu]
    if not there:
        return _no(answer, key)
    asked = "yes" if there[0].as_asked else f"not {_as_asked(answer, there[0])}; it runs"
    if own:
        told = f"{asked}, with {_with(own[0])}" if asked == "yes" else f"{asked} with {_with(own[0])}"
        context = own[0].context
        told += f"; or {share_words(shared[0].on_cpu)} on the CPU with {_with(shared[0], context)}" if shared else ""
        return told
    return f"not on the card alone; {share_words(shared[0].on_cpu)} on the CPU with {_with(shared[0])}"


def _as_asked(answer: Answer, other: Alternative) -> str:
    """What was asked for and is not kept, in words."""
    formats = list(dict.fromkeys(choice.format for choice in answer.choices))
    if other.choice.format in formats:
        return f"with {count(answer.context, 'token')} of context"
    return f"with {' or '.join(formats)}" if len(formats) <= 2 else "as asked"


def _yes(answer: Answer, best: Choice) -> str:
    if answer.sequence:
        return f"yes, training fits with {best.format}, {size(best.memory.total)} of {size(best.free)}"
    pace = best.speed.decode_tokens_per_second or best.speed.prefill_tokens_per_second or 0.0
    word = "yes" if best.level == "yes" or pace >= READING_SPEED else "slowly"
    context = f"{count(answer.context, 'token')} of context" if answer.context else ""
    if best.format == "stored":
        held = "as it is stored" + (f", with {context}" if context else "")
    else:
        held = f"with {best.format}" + (f" and {context}" if context else "")
    return f"{word}, {held}, {_speed(best)}"


def _with(other: Alternative, said: int = 0) -> str:
    """An alternative; its context where that was not said before."""
    held = "the stored formats" if other.choice.format == "stored" else other.choice.format
    context = f" and {count(other.context, 'token')} of context" if other.context != said else ""
    return f"{held}{context}, {_speed(other.choice)}"


def _speed(choice: Choice) -> str:
    speed = choice.speed
    if speed.decode_tokens_per_second is not None:
        return f"{rate(speed.decode_tokens_per_second)} tokens/s"
    if speed.reason:
        return f"but {speed.reason}"
    if speed.prefill_tokens_per_second is not None:
        return f"reading {rate(speed.prefill_tokens_per_second)} tokens/s"
    return f"{size(choice.memory.total)} of {size(choice.free)}"


def share_words(on_cpu: float) -> str:
    """Return a share of the layers in words: ``half``, ``two thirds``."""
    return next(words for most, words in _SHARES if on_cpu < most)


def _no(answer: Answer, key: str) -> str:
    there = [choice for choice in answer.choices if choice.device == key]
    tight = [choice for choice in there if not choice.fits]
    if not tight or len(tight) < len(there):
        reason = next(choice.verdict.reason for choice in there if choice.fits or not tight)
        return f"no, {reason.partition(': ')[0].partition('; ')[0]}"
    least = min(tight, key=lambda choice: choice.memory.most)
    return f"no, the least that was tried, {least.format}, needs {size(least.memory.most)} of {size(least.free)}"


def _on_many(answer: Answer) -> str:
    able = [answer.choices[index] for index in answer.best_by_device.values() if index is not None]
    told = f"{_model(answer)} runs on {len(able)} of {len(answer.best_by_device)} devices"
    if not able:
        return f"{told}."
    least = min(able, key=lambda choice: (choice.level == "slow", choice.free))
    return f"{told}; the smallest is {place(answer.group(least.device))}, with {least.format}, {_speed(least)}."
