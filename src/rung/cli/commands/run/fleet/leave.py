"""``rung fleet leave``: take this machine out of its fleet."""

from __future__ import annotations

import os
import signal
import time

from rung.core.errors import UsageError


def leave() -> None:
    """Take this machine out of its fleet when the answers that it computes have ended."""
    from rung.fleet.keys.folder import Folder

    folder = Folder.of_settings()
    member = folder.require_member()
    if member.is_head:
        raise UsageError("This machine is the head: without it there is no fleet.", (), ["rung fleet down"])
    os.kill(member.process, signal.SIGTERM)
    while folder.member() is not None:
        time.sleep(0.1)
