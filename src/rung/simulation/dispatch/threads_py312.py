"""CPython 3.12 and later: how something is done in threads that run already, by ``sys.monitoring``.

The code that such a thread is in is watched, instruction by instruction, until all have come by. Tracers and profilers
are other tools, which see what they saw.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.11 has none
#: Numbers of tools that Python has given no name: debuggers, coverage and profilers have others.
_TOOLS = (3, 4)


@contextlib.contextmanager
def reached(do: Callable[[], None]) -> Iterator[None]:
    """In the block ``do`` is called once in each other thread that runs already, before its next instruction.

    In none where both tools are in use.
    """
    waiting = set(sys._current_frames()) - {threading.get_ident()}
    tool = next((tool for tool in _TOOLS if monitoring.get_tool(tool) is None), None)
    if not waiting or tool is None:
        yield
        return

    def came_by(code: CodeType, offset: int) -> Any:
        if (thread := threading.get_ident()) in waiting:
            waiting.discard(thread)
            do()
        return None if waiting else monitoring.DISABLE

    watched: dict[int, CodeType] = {}  # by id: code that is equal is watched apart
    monitoring.use_tool_id(tool, "rung")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, came_by)
    try:
        while new := {key: code for key, code in _codes(waiting).items() if key not in watched}:
            for code in new.values():
                monitoring.set_local_events(tool, code, monitoring.events.INSTRUCTION)
            watched |= new
        yield
    finally:
        for code in watched.values():
            monitoring.set_local_events(tool, code, 0)
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, None)
        monitoring.free_tool_id(tool)


def _codes(threads: set[int]) -> dict[int, CodeType]:
    """The code that each of the threads is in at this moment, by id."""
    frames = sys._current_frames()
    return {id(frame.f_code): frame.f_code for thread, frame in frames.items() if thread in threads}
