"""Do what happens in a program under ``rung exec --device cpu`` when it has imported Triton's interpreter."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from rung.exec.launch import PROCESSOR
from rung.exec.report import Notes

_WORDS = "the program's Triton kernels ran in Triton's interpreter, which is very slow"


def install(settings: Mapping[str, str]) -> None:
    """Says so when a kernel is interpreted."""
    if settings.get("device") != PROCESSOR:
        return
    notes = Notes(settings["notes"])
    owner = sys.modules["triton.runtime.interpreter"].GridExecutor
    call = owner.__call__

    @functools.wraps(call)
    def counted(executor: Any, *args: Any, **kwargs: Any) -> Any:
        notes.word(_WORDS)
        return call(executor, *args, **kwargs)

    owner.__call__ = counted
