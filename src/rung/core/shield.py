"""Calls that an interrupt must not cut in two: imports of large packages, and compiling."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def shielded(call: Callable[[], T]) -> T:
    """Call, and let nothing cut the call short: Ctrl-C raises here at once, while the call goes on to its end.

    Python raises ``KeyboardInterrupt`` in the main thread, and packages that it hits while they are imported or while
    they compile stay broken for the process; so from there the call is made in a thread of its own. The caller must
    hold no lock that the call takes.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="rung-shielded").start()
    return done.result()


def import_whole(name: str) -> Any:
    """Import a module that takes long; Ctrl-C does not stop half-way through it. Return it."""
    found = sys.modules.get(name)
    if found is not None and not getattr(found.__spec__, "_initializing", False):
        return found
    return shielded(lambda: importlib.import_module(name))
