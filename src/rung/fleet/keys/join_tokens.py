"""Join tokens: each lets one machine in, once, for a while. The head keeps hashes of them, in memory only."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable

from rung.core.errors import UsageError

#: Seconds that a token holds, and bytes of its secret.
LIFETIME, _BYTES = 3600.0, 18


class JoinTokens:
    """The tokens that were given out and not used. ``fingerprint`` is of the certificate that the head shows."""

    def __init__(self, fingerprint: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._fingerprint, self._clock = fingerprint, clock
        self._expires: dict[bytes, float] = {}

    def new(self, seconds: float = LIFETIME) -> str:
        """Return a token."""
        secret = secrets.token_urlsafe(_BYTES)
        self._expires[_hash(secret)] = self._clock() + seconds
        return f"{secret}.{self._fingerprint}"

    def use(self, token: str) -> bool:
        """Return whether a token lets a machine in; it does so no second time."""
        expires = self._expires.pop(_hash(token.partition(".")[0]), None)
        return expires is not None and self._clock() < expires


def fingerprint_of(token: str) -> str:
    """Return the fingerprint in a token. Raises ``UsageError`` for what is none."""
    secret, point, found = token.strip().partition(".")
    if not (secret and point and found):
        raise UsageError(
            "--token is no join token.", (), ["rung fleet token   # on the head: prints one"], code="fleet-token"
        )
    return found


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
