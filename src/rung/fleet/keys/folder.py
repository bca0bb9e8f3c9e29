"""The folder of this machine's part in a fleet: certificates, the token of Ray, and where the head is."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rung.core.errors import UsageError
from rung.core.files import write_whole
from rung.core.settings import FLEET

AUTHORITY, AUTHORITY_KEY = "authority.pem", "authority.key"
CERTIFICATE, KEY, TOKEN = "node.pem", "node.key", "token"
_MEMBER = "member.json"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """The part of this machine in a fleet: its name, address and process, and the head's control and Ray addresses."""

    name: str
    address: str
    process: int
    control: str
    ray: str
    is_head: bool = False


@dataclass(frozen=True)
class Folder:
    """Files that only their owner reads."""

    path: Path

    @classmethod
    def of_settings(cls) -> Folder:
        """Return the folder of this machine."""
        path: Path = FLEET.read()
        return cls(path)

    def write(self, name: str, data: bytes) -> Path:
        """Write a file whole, for its owner alone; return its path."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        path = self.path / name
        write_whole(path, data)
        path.chmod(0o600)
        return path

    def has(self, *names: str) -> bool:
        """Return whether all of these files are there."""
        return all((self.path / name).is_file() for name in names)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file. Raises ``UsageError`` where this machine is in no fleet."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            raise _no_fleet() from None

    @property
    def token(self) -> str:
        """Return the token of Ray. Raises ``UsageError`` where this machine is in no fleet."""
        return self.read(TOKEN).decode().strip()

    def member(self) -> Member | None:
        """Return the part of this machine in a fleet, None where it is in none or its process has ended."""
        try:
            found = msgspec.json.decode((self.path / _MEMBER).read_bytes(), type=Member)
            os.kill(found.process, 0)
        except (FileNotFoundError, ProcessLookupError, msgspec.MsgspecError):
            return None
        except PermissionError:  # of another user, and there
            pass
        return found

    def require_member(self) -> Member:
        """Return the part of this machine in a fleet. Raises ``UsageError`` where it is in none."""
        found = self.member()
        if found is None:
            raise _no_fleet()
        return found

    def require_none(self) -> None:
        """Raise ``UsageError`` where a process of this machine is in a fleet."""
        if (found := self.member()) is not None:
            role = "the head" if found.is_head else "a node"
            raise UsageError(
                f"This machine is {role} of a fleet already: process {found.process}.",
                [f"the head is {found.control}"],
                ["rung fleet status", "rung fleet down" if found.is_head else "rung fleet leave"],
                code="fleet-exists",
            )

    def enter(self, member: Member) -> None:
        """Note what this machine is in a fleet."""
        self.write(_MEMBER, msgspec.json.encode(member))

    def clear(self) -> None:
        """Take all of it away."""
        shutil.rmtree(self.path, ignore_errors=True)


def _no_fleet() -> UsageError:
    return UsageError(
        "This machine is in no fleet.",
        (),
        ["rung fleet up MODEL   # begins one", "rung fleet join ADDRESS --token TOKEN"],
        code="fleet-none",
    )


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
