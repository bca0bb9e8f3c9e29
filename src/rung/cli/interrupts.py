"""Ctrl-C: a command ends within two seconds whatever it is doing, and a chat goes on.

Imported where ``main`` begins, so it imports nothing large.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

#: Seconds that a command has from Ctrl-C on to tidy up: to finish a step, to note what is done.
LIMIT = 1.0
#: Seconds until Ctrl-C is tried again where it came in the middle of an import.
_AGAIN = 0.05
_IMPORTING = "<frozen importlib._bootstrap>"

_goes_on = _wrote_stopped = _leaving = _owns_process = False


def listen(watch: bool) -> None:
    """Handle Ctrl-C, unless somebody else does or it is ignored, as behind a shell's ``&``.

    ``watch`` ends the process after ``LIMIT`` seconds where ``KeyboardInterrupt`` does not get through: Python raises
    it between two of its own steps, and a step may be minutes of a library.
    """
    global _goes_on, _wrote_stopped, _leaving, _owns_process
    _goes_on, _wrote_stopped, _leaving, _owns_process = False, False, False, watch
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    signal.signal(signal.SIGINT, _interrupt)
    if watch and os.name == "posix":
        import threading  # not for exec, whose start is a program's

        signals, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        threading.Thread(target=_watch, args=(signals,), daemon=True, name="rung-ctrl-c").start()


def keep_running() -> None:
    """From now on Ctrl-C is heard and does not end the process: a chat, or what must be undone first."""
    global _goes_on
    _goes_on = True


def stop() -> NoReturn:
    """Say that Ctrl-C ends the process, and ``leave``."""
    global _leaving
    _leaving = True
    _say_stopped()
    leave()


def leave(code: int = 130) -> NoReturn:
    """Tidy up and exit.

    A process of its own does not wait for threads that import or compile, nor takes Numba and torch apart, as Python
    does at its end.
    """
    global _leaving
    _leaving = True
    if _owns_process:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _say_stopped() -> None:
    global _wrote_stopped
    if not _wrote_stopped:
        _wrote_stopped = True
        print("stopped", file=sys.stderr, flush=True)


def _watch(signals: int) -> None:
    while True:
        if signal.SIGINT in os.read(signals, 64) and not _goes_on:
            time.sleep(LIMIT)
            if not _goes_on:
                _end()


def _end() -> None:
    """End the process here and now."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # a progress bar may have hidden the cursor
    _say_stopped()
    os._exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``; not in the middle of an import: torch's modules are called by C++ then, which aborts
    where an exception comes out of them, with a page of its own.

    Where the process is leaving, end it at once: nothing is left that would catch the exception.
    """
    if _leaving and _owns_process:
        _end()
    at = frame
    while at is not None and at.f_code.co_filename != _IMPORTING:
        at = at.f_back
    if at is None:
        raise KeyboardInterrupt
    if not _goes_on:
        _end()
    import threading

    # a second Ctrl-C comes here too while it starts, and raises nothing: no lock of its is left taken
    threading.Timer(_AGAIN, os.kill, (os.getpid(), signal.SIGINT)).start()
