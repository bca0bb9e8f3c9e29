"""Have a process of its own pull and delete models: the server itself fetches nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any, Literal

from rung.server.errors import ApiError

#: Processes at once.
_MOST = 2
#: Nothing of the folder that this process runs in stands for a module of the child.
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rung.server.store.child import main; main()"


class StoreClient:
    """The store of models, as clients may change it: not at all unless ``is_allowed``. ``offline``: nothing is
    fetched."""

    def __init__(self, is_allowed: bool = False, offline: bool = False) -> None:
        self._is_allowed, self._offline, self._running = is_allowed, offline, 0

    def check(self) -> None:
        """Raise ``ApiError`` (403) where clients may not change the store."""
        if not self._is_allowed:
            raise ApiError(
                403,
                "This server neither pulls nor deletes models; rung serve --allow-pull does.",
                code="pull_not_allowed",
            )

    async def change(self, action: Literal["pull", "delete"], model: str) -> AsyncGenerator[dict[str, Any]]:
        """Yield ``label``, ``done`` and ``total`` while a model is fetched, until it is there, or is deleted. Where the
        iterator is closed before, the process ends; a pull that is repeated goes on. Raises ``ApiError``."""
        self.check()
        if self._running >= _MOST:
            raise ApiError(503, f"{self._running} models are being pulled.", code="pulls_full", retry_after=5)
        self._running += 1
        try:
            async for message in self._run({"action": action, "model": model, "offline": self._offline}):
                yield message
        finally:
            self._running -= 1

    async def _run(self, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _CHILD, json.dumps(sys.path)),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
            while line := await process.stdout.readline():
                message = json.loads(line)
                if "status" not in message:
                    yield message
                elif message["status"] == 200:
                    return
                else:
                    raise ApiError(message["status"], message["cause"], param="model", code=message["code"])
            raise ApiError(500, "The process that changes the store has ended.", code="server_failed")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
