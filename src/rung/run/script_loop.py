"""Answer requests with a function of a script, within limits of time and memory; ``ScriptProcess`` starts this file.

The script has a function ``answer(request) -> dict``. What takes longer than a request's ``seconds`` ends this process
by a timer, and what takes too much memory is an error. Nothing of rung is imported, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import signal
import sys

_MOST_MEMORY = 768 * 2**20


def _set_timer(seconds: float) -> None:
    """Let the system end this process after ``seconds``, or not any more (0).

    Where it has no such timer, whoever waits for the answer ends the process.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def main() -> None:
    """Answer requests until the other side closes."""
    sys.path[:], script = json.loads(sys.argv[1])
    answer = runpy.run_path(script)["answer"]
    with contextlib.suppress(ImportError):  # where Python cannot limit memory, time alone is limited
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        _set_timer(request["seconds"])
        try:
            found = answer(request)
        except MemoryError:
            found = {"error": "it needs more memory than it may have"}
        finally:
            _set_timer(0)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
