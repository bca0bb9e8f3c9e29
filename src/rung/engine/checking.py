"""``rung check`` as a function: names of models and devices in, an answer out; never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rung.core.settings import OFFLINE
from rung.core.types import Device
from rung.engine.groups import asked_about, occupied
from rung.engine.locating import DEMO, demo_path
from rung.models.outline import Describe, open_outline
from rung.models.outlines.component import describe
from rung.models.outlines.values import Outline
from rung.planning.answer import Answer, Pass, Question
from rung.planning.check import check
from rung.planning.devices import Group
from rung.planning.request import parse_memory


def check_model(
    model: str,
    devices: Sequence[str | Device] = (),
    *,
    software: str | None = None,
    memory: str | int | Mapping[str, str | int] | None = None,
    fits: bool = False,
    offline: bool = False,
    revision: str | None = None,
    trace: bool = False,
    **asked: Any,
) -> Answer:
    """The answer for one model on devices by name (default: this machine; ``fits``: the whole catalogue).

    Of a model on the hub a few headers are fetched; ``asked`` are the fields of ``Question``. ``trace`` builds its
    modules without weights, which imports torch and the library that they come from. Raises what opening the
    model, naming devices and checking raise, with ``trace`` also what ``rung.engine.tracing`` raises.
    """
    question = Question(memory=parse_memory(memory), **asked)
    groups = asked_about(devices, software, fits)
    return answer_for(model, groups, question, trace=trace, offline=offline, revision=revision)


def answer_for(
    model: str, groups: Sequence[Group], question: Question, *, trace: bool, offline: bool, revision: str | None
) -> Answer:
    """The same for devices and a question that are known to make sense."""
    passes: tuple[Pass, ...] = ()
    if trace:
        from rung.engine.tracing import Modules

        modules = Modules()
        outline = outline_of(model, offline=offline, revision=revision, describing=modules.describe)
        passes = modules.passes(outline, question)
    else:
        outline = outline_of(model, offline=offline, revision=revision)
    return occupied(check(outline, groups, question, passes), groups)


def outline_of(
    name: str, *, offline: bool = False, revision: str | None = None, describing: Describe = describe
) -> Outline:
    """The outline of ``demo``, a file, a folder, a configuration or a hub name; only headers are read."""
    if name == DEMO and not Path(name).exists():
        return open_outline(demo_path())
    return open_outline(name, offline=bool(offline or OFFLINE.read()), revision=revision, describing=describing)
