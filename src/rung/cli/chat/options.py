"""How tokens are chosen in a chat: the options of ``rung run``, which ``/set`` shows and changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rung.core.errors import UsageError
from rung.core.text import did_you_mean
from rung.engine.sampling import Sampling


def _whole(text: str) -> int:
    return int(text)


def _texts(text: str) -> tuple[str, ...]:
    r"""One stop text; ``\n`` and ``\t`` in it are a line end and a tab."""
    return (text.replace("\\n", "\n").replace("\\t", "\t"),)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_k": _whole,
    "top_p": float,
    "min_p": float,
    "repeat_penalty": float,
    "seed": _whole,
    "max_tokens": _whole,
    "stop": _texts,
}
_OTHERS = ("max_tokens", "stop")
_DEFAULT = "default"


def set_option(options: dict[str, Any], text: str) -> str:
    """Change one of ``options`` as ``NAME VALUE`` says, ``default`` for the model's own; return the name.

    Raises ``UsageError`` for an unknown name and for a value that makes no sense, and changes nothing then.
    """
    word, _, value = text.strip().partition(" ")
    name, value = word.replace("-", "_").lower(), value.strip()
    if name not in _PARSERS:
        raise UsageError(
            f"There is no option {word}.{did_you_mean(name, _PARSERS)}",
            [f"they are {' '.join(_PARSERS)}"],
            code="name-unknown",
        )
    if not value:
        raise UsageError(f"To what? {name} is {_shown(options.get(name))} now.", (), [f"/set {name} VALUE"])
    changed = {**options, name: None if value == _DEFAULT else _parse(name, value)}
    if name not in _OTHERS:
        Sampling.of({}, **sampling_options(changed))  # raises for what makes no sense
    options[name] = changed[name]
    return name


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a file, checked as those that are typed. Raises ``UsageError``."""
    checked: dict[str, Any] = {}
    for name, value in options.items():
        values = value if name == "stop" and isinstance(value, list) else [value]
        for each in values:
            set_option(checked, f"{name} {each}")
        if name == "stop":
            checked[name] = tuple(map(str, values))
    return checked


def _parse(name: str, value: str) -> Any:
    try:
        parsed = _PARSERS[name](value)
    except ValueError:
        raise UsageError(f"{value!r} is no value of {name}.", (), [f"/set {name} {_DEFAULT}"]) from None
    if name == "max_tokens" and parsed < 1:
        raise UsageError(
            "max_tokens must be 1 at least.", (), [f"/set max_tokens {_DEFAULT}"], code="value-out-of-range"
        )
    return parsed


def option_lines(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return a line for each option: its value, or what applies where none is set."""
    applied = Sampling.of(defaults, **sampling_options(options))
    lines = []
    for name in _PARSERS:
        value = options.get(name)
        if value not in (None, ()):
            lines.append(f"{name:<15} {_shown(value)}")
        elif name in _OTHERS:
            lines.append(f"{name:<15} none")
        else:
            own = getattr(applied, name)
            lines.append(f"{name:<15} {'a new one for each answer' if own is None else f'{own:g}'} ({_DEFAULT})")
    return lines


def sampling_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that ``Sampling`` takes."""
    return {name: value for name, value in options.items() if name not in _OTHERS}


def _shown(value: Any) -> str:
    if value is None or value == ():
        return _DEFAULT
    return " ".join(map(ascii, value)) if isinstance(value, (tuple, list)) else f"{value}"
