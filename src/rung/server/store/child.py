"""The process that changes the store of models for a server, which itself never opens a connection.

Its standard input has one request, ``{"action": "pull" | "delete", "model", "offline"}``. It writes lines of JSON:
``{"label", "done", "total"}`` in bytes while a file comes, at last ``{"status"}``, the HTTP status, with ``cause``
where that is not 200. The process ends with its standard output.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rung.core.errors import ModelInUse, ModelNotFound, RungError, UsageError
from rung.models.locate import repository_of
from rung.models.store.pull import pull, remove
from rung.models.store.starters import find, starters

#: Seconds between two lines of progress.
_SECONDS = 0.1


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _pull(name: str, offline: bool) -> None:
    """Fetch a starter or a model of the hub; any other name is no model. Raises ``RungError``."""
    if find(name) is None and repository_of(name) is None:
        raise ModelNotFound(f"{name!r} is no model that can be pulled.", [f"starters: {', '.join(starters())}"])
    last = 0.0

    def progress(label: str, done: int, total: int) -> None:
        nonlocal last
        if done >= total or time.monotonic() - last >= _SECONDS:
            last = time.monotonic()
            _say({"label": label, "done": done, "total": total})

    pull(name, offline=offline, progress=progress)


def _status(error: RungError) -> int:
    if isinstance(error, ModelNotFound):
        return 404
    if isinstance(error, ModelInUse):
        return 409
    return 400 if isinstance(error, UsageError) else 502


def main() -> None:
    """Do what the request says."""
    request = json.loads(sys.stdin.read())
    try:
        if request["action"] == "pull":
            _pull(request["model"], request["offline"])
        else:
            remove(request["model"])
    except RungError as error:
        _say({"status": _status(error), "cause": error.cause, "code": error.code})
    else:
        _say({"status": 200})
