"""The answer of ``rung check`` in one sentence, with the devices by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rung.core.text import count, rate, size
from rung.core.types import Device
from rung.planning.answers.values import Alternative, Choice, devices_phrase, group_key, share_words

#: So many devices are answered one by one.
_FEW = 3


class Answer(Protocol):
    """List the parts of ``check_result.Answer`` that the sentence is made of."""

    @property
    def model(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def choices(self) -> tuple[Choice, ...]: ...

    @property
    def alternatives(self) -> tuple[Alternative, ...]: ...

    @property
    def groups(self) -> tuple[tuple[Device, ...], ...]: ...

    @property
    def best_by_device(self) -> Mapping[str, int | None]: ...

    @property
    def context(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    def group(self, key: str) -> tuple[Device, ...]: ...


def sentence(answer: Answer) -> str:
    """Return ``Gemma 2B on a Quadro P2200: yes, with q8_0 and 4,096 tokens of context, 6.6 tokens/s.``"""
    groups = answer.groups
    if not answer.choices or not groups:
        return f"{_model(answer)}: no device was asked about."
    if len(groups) == 1:
        return f"{_model(answer)} on {devices_phrase(groups[0])}: {_on_one(answer, group_key(groups[0]))}."
    if len(groups) <= _FEW:
        phrases = (f"on {devices_phrase(group)} {_on_one(answer, group_key(group))}" for group in groups)
        return f"{_model(answer)}: {'; '.join(phrases)}."
    return _on_many(answer)


def _model(answer: Answer) -> str:
    return answer.title or answer.model


def _on_one(answer: Answer, key: str) -> str:
    """The answer for one group of devices, without the devices."""
    index = answer.best_by_device.get(key)
    if index is not None:
        return _runs(answer, answer.choices[index])
    others = [each for each in answer.alternatives if each.instead_of == key]
    if not others:
        return _no(answer, key)
    own = next((each for each in others if not each.on_cpu), None)
    shared = next((each for each in others if each.on_cpu), None)
    if own is None:
        return f"not on the card alone; {_split_with_cpu(others[0])}"
    slow = own.choice.level == "slow"
    runs = f"not {_changed(answer, own)}; it runs{' slowly' if slow else ''}"
    words = f"{_word(own.choice) + ',' if own.as_asked else runs} with {_with(own)}"
    if shared is None:
        return words
    return f"{words}; or {_split_with_cpu(shared, own.context, slow)}"


def _word(choice: Choice) -> str:
    """``yes``, or ``slowly`` for a choice at whose speed a person waits, as its level says."""
    return "slowly" if choice.level == "slow" else "yes"


def _split_with_cpu(other: Alternative, context: int = 0, known_slow: bool = False) -> str:
    """An alternative that needs the CPU: ``slowly, half on the CPU with q4_k, 2.1 tokens/s``."""
    word = "slowly, " if other.choice.level == "slow" and not known_slow else ""
    return f"{word}{share_words(other.on_cpu)} on the CPU with {_with(other, context)}"


def _changed(answer: Answer, other: Alternative) -> str:
    """Describe the part of the question that the alternative gives up."""
    formats = list(dict.fromkeys(choice.format for choice in answer.choices))
    if other.choice.format in formats:
        return f"with {count(answer.context, 'token')} of context"
    return f"with {' or '.join(formats)}" if len(formats) <= 2 else "as asked"


def _runs(answer: Answer, best: Choice) -> str:
    """Describe the best choice: ``yes, with q8_0 and 4,096 tokens of context, 6.6 tokens/s``."""
    word = _word(best)
    if answer.sequence:
        fits = f"training fits with {best.format}, {best.memory_words()}"
        return f"{fits}, and runs slowly" if best.level == "slow" else f"{word}, {fits}"
    context = f"{count(answer.context, 'token')} of context" if answer.context else ""
    if best.format == "stored":
        options = "as it is stored" + (f", with {context}" if context else "")
    else:
        options = f"with {best.format}" + (f" and {context}" if context else "")
    return f"{word}, {options}, {_speed(best)}"


def _with(other: Alternative, known_context: int = 0) -> str:
    """An alternative; its context where that was not said before."""
    formats = "the stored formats" if other.choice.format == "stored" else other.choice.format
    context = f" and {count(other.context, 'token')} of context" if other.context != known_context else ""
    return f"{formats}{context}, {_speed(other.choice)}"


def _speed(choice: Choice) -> str:
    speed = choice.speed
    if speed.decode_tokens_per_second is not None:
        return f"{rate(speed.decode_tokens_per_second)} tokens/s"
    if speed.reason:
        return f"but {speed.reason}"
    if speed.prefill_tokens_per_second is not None:
        return f"reading {rate(speed.prefill_tokens_per_second)} tokens/s"
    return choice.memory_words()


def _no(answer: Answer, key: str) -> str:
    there = [choice for choice in answer.choices if choice.device == key]
    tight = [choice for choice in there if not choice.fits]
    if not tight or len(tight) < len(there):
        reason = next(choice.verdict.reason for choice in there if choice.fits or not tight)
        return f"no, {reason.partition(': ')[0].partition('; ')[0]}"
    least = min(tight, key=lambda choice: choice.memory.most)
    return f"no, the least that was tried, {least.format}, needs {size(least.memory.most)} of {size(least.free)}"


def _on_many(answer: Answer) -> str:
    """How many devices run it and at which speed, the smallest of those at reading speed, and the smallest of all."""
    able = sorted_by_size(answer)
    words = f"{_model(answer)} runs on {len(able)} of {len(answer.best_by_device)} devices"
    if not able:
        return f"{words}."
    fast = [choice for choice in able if choice.level != "slow"]
    least, first = able[0], next(iter(fast), None)
    if first is None:
        return f"{words}, slowly on each; the smallest is {_smallest(answer, least)}."
    words += f", on {len(fast)} {full_speed(answer)}" if len(fast) < len(able) else ""
    words += f"; the smallest {full_speed(answer) + ' ' if least is not first else ''}is {_smallest(answer, first)}"
    return words + (f"; the smallest that runs it at all is {_smallest(answer, least)}." if least is not first else ".")


def full_speed(answer: Answer) -> str:
    """Describe a choice that is not slow: ``at reading speed`` for text, else ``at full speed``."""
    return "at reading speed" if answer.context else "at full speed"


def sorted_by_size(answer: Answer) -> list[Choice]:
    """Return the best choice of every device that runs it, the device with the least memory first."""
    able = [answer.choices[index] for index in answer.best_by_device.values() if index is not None]
    return sorted(able, key=lambda choice: (choice.free, choice.level == "slow"))


def _smallest(answer: Answer, choice: Choice) -> str:
    return f"{devices_phrase(answer.group(choice.device))}, with {choice.format}, {_speed(choice)}"
