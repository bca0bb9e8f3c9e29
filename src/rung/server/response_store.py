"""Keep responses of ``/v1/responses`` for those that go on from them: in memory, the newest ones."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

#: Responses, and bytes of all together, at most.
MOST_RESPONSES, MOST_BYTES = 1024, 64 * 2**20


@dataclass(frozen=True)
class _Stored:
    owner: str
    data: bytes


class ResponseStore:
    """Responses by id. Each is for the owner of its request only; the one that was used least recently goes first."""

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._stored: OrderedDict[str, _Stored] = OrderedDict()

    def put(self, owner: str, response: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Keep a response, with the messages of its conversation as chat templates read them."""
        stored = _Stored(owner, msgspec.msgpack.encode([response, messages]))
        if len(stored.data) > self._most_bytes:
            return
        self._stored[response["id"]] = stored
        self._bytes += len(stored.data)
        while len(self._stored) > self._most or self._bytes > self._most_bytes:
            _, dropped = self._stored.popitem(last=False)
            self._bytes -= len(dropped.data)

    def get(self, owner: str, id: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """Return a response and its messages, or None where there is none of that owner."""
        stored = self._stored.get(id)
        if stored is None or stored.owner != owner:
            return None
        self._stored.move_to_end(id)
        response, messages = msgspec.msgpack.decode(stored.data)
        return response, messages

    def delete(self, owner: str, id: str) -> bool:
        """Forget a response; return whether there was one of that owner."""
        if self.get(owner, id) is None:
            return False
        self._bytes -= len(self._stored.pop(id).data)
        return True
