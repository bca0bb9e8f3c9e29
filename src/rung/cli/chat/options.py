"""How tokens are chosen in a chat: the options of ``rung run``, which ``/set`` shows and changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from rung.cli.options import GenerationOptions, SamplingOptions, parse_biases
from rung.core.errors import UsageError
from rung.core.text import did_you_mean
from rung.engine.sampling import Sampling


def _texts(text: str) -> tuple[str, ...]:
    r"""One stop text; ``\n`` and ``\t`` in it are a line end and a tab."""
    return (text.replace("\\n", "\n").replace("\\t", "\t"),)


#: By name: what reads a value, what a value is in words, and one to try.
_OPTIONS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "temperature": (float, "a number, 0 (always the likeliest token) or above", "0.7"),
    "top_k": (int, "a whole number, 0 (all tokens) or above", "40"),
    "top_p": (float, "a number from 0 to 1", "0.9"),
    "min_p": (float, "a number from 0 to 1", "0.05"),
    "typical_p": (float, "a number from 0 to 1; 1 is off", "0.95"),
    "repeat_penalty": (float, "a number above 0; 1 is no penalty", "1.1"),
    "presence_penalty": (float, "a number from -2 to 2", "0.5"),
    "frequency_penalty": (float, "a number from -2 to 2", "0.5"),
    "logit_bias": (lambda text: parse_biases(text.split()), "token ids with numbers from -100 to 100", "13=-5 14=2"),
    "seed": (int, "a whole number, 0 or above", "7"),
    "max_tokens": (int, "a whole number, 1 or above", "200"),
    "stop": (_texts, "a text", "END"),
}
_DEFAULT = "default"
_SAMPLING = tuple(field.name for field in fields(SamplingOptions))


def set_option(options: GenerationOptions, text: str) -> tuple[GenerationOptions, str]:
    """Return the options with one changed as ``NAME VALUE`` says, ``default`` for the model's own, and its name.

    Raises ``UsageError`` for an unknown name and for a value that makes no sense.
    """
    word, _, value = text.strip().partition(" ")
    name, value = word.replace("-", "_").lower(), value.strip()
    if name not in _OPTIONS:
        raise UsageError(
            f"There is no option {word}.{did_you_mean(name, _OPTIONS)}",
            [f"they are {' '.join(_OPTIONS)}"],
            ["/set   # shows them with their values", "/set temperature 0.7"],
            code="name-unknown",
        )
    if not value:
        now = _shown(getattr(options, name))
        raise UsageError(f"/set {name} needs a value; it is {now} now.", (), _ways(name), code="input-empty")
    if value == _DEFAULT:
        return _changed(options, name, getattr(GenerationOptions(), name)), name
    changed = _changed(options, name, _parse(name, value))
    if name in (*_SAMPLING, "logit_bias"):
        try:
            Sampling.of({}, **sampling_options(changed), logit_bias=changed.logit_bias)
        except UsageError as error:
            raise _no_value(name, value) from error
    return changed, name


def _changed(options: GenerationOptions, name: str, value: Any) -> GenerationOptions:
    return replace(options, **{name: value})


def check_options(options: Mapping[str, Any]) -> GenerationOptions:
    """Return the options of a file, checked as those that are typed. Raises ``UsageError``."""
    checked = GenerationOptions()
    for name, value in options.items():
        values = value if name == "stop" and isinstance(value, list) else [value]
        if isinstance(value, Mapping):
            values = [" ".join(f"{key}={number}" for key, number in value.items())]
        for each in values:
            checked, _ = set_option(checked, f"{name} {each}")
        if name == "stop":
            checked = replace(checked, stop=tuple(map(str, values)))
    return checked


def _ways(name: str) -> list[str]:
    return [f"/set {name} {_OPTIONS[name][2]}", f"/set {name} {_DEFAULT}   # the model's own"]


def _no_value(name: str, value: str) -> UsageError:
    return UsageError(
        f"{name} cannot be {value!r}.", [f"it must be {_OPTIONS[name][1]}"], _ways(name), code="value-out-of-range"
    )


def _parse(name: str, value: str) -> Any:
    try:
        parsed = _OPTIONS[name][0](value)
    except ValueError:
        raise _no_value(name, value) from None
    if name == "max_tokens" and parsed < 1:
        raise _no_value(name, value)
    return parsed


def option_lines(options: GenerationOptions, defaults: Mapping[str, Any]) -> list[str]:
    """Return a line for each option: its value, or what applies where none is set."""
    applied = Sampling.of(defaults, **sampling_options(options))
    lines = []
    for name in _OPTIONS:
        value = getattr(options, name)
        if value not in (None, (), {}):
            lines.append(f"{name:<17} {_shown(value)}")
        elif name not in _SAMPLING:
            lines.append(f"{name:<17} none")
        else:
            own = getattr(applied, name)
            lines.append(f"{name:<17} {'a new one for each answer' if own is None else f'{own:g}'} ({_DEFAULT})")
    return lines


def sampling_options(options: GenerationOptions) -> dict[str, Any]:
    """Return those of the options that ``Sampling`` takes."""
    return {name: value for name, value in asdict(options).items() if name in _SAMPLING}


def _shown(value: Any) -> str:
    if value in (None, (), {}):
        return _DEFAULT
    if isinstance(value, Mapping):
        return " ".join(f"{key}={number:g}" for key, number in value.items())
    return " ".join(map(ascii, value)) if isinstance(value, (tuple, list)) else f"{value}"
