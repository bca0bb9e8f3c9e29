"""``rung check --trace``: the modules of a model, built without weights, and one forward pass of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import torch

from rung.core.errors import CannotTrace, RungError, UnknownArchitecture, UsageError
from rung.core.text import quoted
from rung.core.value import FrozenDict
from rung.hub.networks.modules import component_of, fed, module_of
from rung.models.networks.component import describe
from rung.models.networks.values import Component, Outline
from rung.planning.check_result import Pass, Question
from rung.planning.network_spec import Subject
from rung.run.trace import trace

#: Tokens of a text, where nobody asks for fewer: what rung reads at once.
TOKENS = 512


class Modules:
    """The modules of the configurations that were met while an outline was opened."""

    def __init__(self) -> None:
        self._met: dict[str, torch.nn.Module] = {}

    def describe(self, values: Mapping[str, Any], where: str) -> Component:
        """The component as rung describes it, else as its module is. Raises what building the module raises."""
        self._met[where] = module_of(values, where)
        try:
            return describe(values, where)
        except UnknownArchitecture:
            return component_of(self._met[where])

    def passes(self, outline: Outline, question: Question) -> tuple[Pass, ...]:
        """One pass of each component. Raises ``UsageError`` for what has no configuration, ``CannotTrace``."""
        if not self._met:
            raise UsageError(
                f"{outline.name} has no configuration of transformers or diffusers to build a module from.",
                ways_out=[f"rung check {quoted(outline.path)}   # without --trace"],
            )
        if len(outline.components) == 1:
            *_, module = self._met.values()
            return (_pass(outline.components[0], outline.kind, module, question),)
        named = {PurePosixPath(where).parent.name: module for where, module in self._met.items()}
        return tuple(_pass(one, outline.kind, named[one.name], question) for one in outline.components)


def _pass(component: Component, kind: str, module: torch.nn.Module, question: Question) -> Pass:
    name, tokens = component.name, min(question.context or TOKENS, TOKENS)
    batch = question.batch * component.shape.inputs
    if Subject.of_component(component, kind, "").halves:
        module = module.to(torch.float16)
    whole, arguments = fed(module, tokens, batch)
    try:
        found = trace(whole, **arguments)
    except RungError:
        raise
    except Exception as error:  # a module may raise anything when it is fed with the wrong things
        raise CannotTrace(
            f"{type(module).__name__} does not take what rung feeds it with.",
            [f"{name}: {', '.join(f'{k} {_shape(v)}' for k, v in arguments.items())}", _words(error)],
            ["rung.trace(module, ...) from Python, with inputs of your own"],
        ) from error
    operations = tuple(FrozenDict(one.to_json()) for one in found.operations)
    return Pass(name, batch, tokens, found.calls, found.flops, found.bytes, found.peak_activations, operations)


def _shape(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, torch.Tensor) else str(value)[:40]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
