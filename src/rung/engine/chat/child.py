"""Renders chat templates in a process of its own; a script of ``rung.run.script_process``.

A template is a program that somebody else wrote. jinja2's sandbox keeps it from files and attributes, but not
from nested loops, from numbers and strings that fill the memory, or from the C stack: those end here, by a timer
and a memory limit of this process, and cost the caller an error. Nothing of rung is imported, so that it starts fast.

A request is ``{"source", "variables", "seconds", "characters"}``, an answer ``{"text"}`` or ``{"error"}``.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which reaching for a forbidden attribute is an error and not an empty text."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        raise SecurityError(f"it reaches for the attribute {attribute!r} of a {type(obj).__name__}")


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks what an assistant said, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Dict:
    """``dict(...)`` without the attributes of the class."""

    def __call__(self, *args: Any, **more: Any) -> dict[Any, Any]:
        return dict(*args, **more)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: object) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(4)
def _compile(source: str) -> tuple[jinja2.Template, bool]:
    """Return a template, and whether it reads ``functions`` and no ``tools``, as Fireworks' do."""
    # The same names and options as transformers gives templates.
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["dict"] = _Dict()
    unset = jinja2.meta.find_undeclared_variables(environment.parse(source)) if "functions" in source else set()
    return environment.from_string(source), "functions" in unset and "tools" not in unset


def _render(request: dict[str, Any]) -> str:
    pieces: list[str] = []
    left = int(request["characters"])
    template, reads_functions = _compile(request["source"])
    variables = request["variables"]
    if reads_functions:
        functions = json.dumps(variables.get("tools") or [], indent=4, ensure_ascii=False)
        variables = {"functions": functions, "datetime": datetime.now().strftime("%b %d %Y"), **variables}
    for piece in template.generate(**variables):
        left -= len(piece)
        if left < 0:
            raise ValueError(f"it writes more than {request['characters']:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Return the text, or the error. Raises ``MemoryError``."""
    try:
        return {"text": _render(request)}
    except MemoryError:
        raise
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except jinja2.exceptions.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"}
    except Exception as error:  # whatever a foreign program raises is its error, not ours
        return {"error": str(error) or type(error).__name__}
