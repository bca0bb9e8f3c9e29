"""Decide who may do what, at this one place: by the matched endpoint, Host, Origin and key."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from rung.core.errors import UsageError
from rung.server.errors import ApiError

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
#: Bytes of a key that is made.
_KEY_BYTES = 24


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_key() -> str:
    """Return a key that nobody guesses."""
    return f"sk-{secrets.token_urlsafe(_KEY_BYTES)}"


def own_hosts(host: str) -> frozenset[str]:
    """Return the names under which a server that listens on ``host`` may be addressed.

    On every address of the machine (0.0.0.0, ::) these are all its addresses and its own name.
    """
    names = set(_LOCAL_NAMES) | {host.lower()}
    if host in ("0.0.0.0", "::", ""):
        import psutil

        for several in psutil.net_if_addrs().values():
            families = (socket.AF_INET, socket.AF_INET6)
            names |= {each.address.partition("%")[0].lower() for each in several if each.family in families}
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def host_name(header: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


@dataclass(frozen=True)
class Gate:
    """Decide about requests. ``keys`` empty: nobody needs one. ``origins``: pages of other servers that may call, ``*``
    for all, ``localhost`` for those of this machine at any port."""

    keys: tuple[str, ...] = ()
    hosts: frozenset[str] = _LOCAL_NAMES
    origins: frozenset[str] = frozenset()

    def check(self, headers: Headers, *, needs_key: bool) -> str:
        """Return the owner of a request: a name of its key, empty where there are no keys. Raises ``ApiError``."""
        self.check_source(headers)
        if not self.keys:
            return ""
        owner = self._owner(headers)
        if owner is None and needs_key:
            raise ApiError(401, "A key is missing or wrong: Authorization: Bearer KEY.", code="invalid_api_key")
        return owner or ""

    def check_source(self, headers: Headers) -> None:
        """Raise ``ApiError`` (403) for a Host that is not this server's and a page of another one.

        A page that a browser was lured to has its own Origin; where its name was pointed at this machine, Host tells.
        """
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self.hosts:
            raise ApiError(
                403, f"Host {', '.join(hosts)!r} is not this server; --allow-host adds a name.", code="host_not_allowed"
            )
        origin = headers.get("origin")
        if origin is not None and not self.allows(origin, hosts[0]):
            raise ApiError(
                403, f"Pages of {origin!r} may not call this server; --origin adds one.", code="origin_not_allowed"
            )
        is_link = headers.get("sec-fetch-dest") == "document"  # followed by a person: no page reads what comes
        if origin is None and headers.get("sec-fetch-site") == "cross-site" and not is_link:
            raise ApiError(403, "Pages of other servers may not call this one.", code="origin_not_allowed")

    def allows(self, origin: str, host: str) -> bool:
        """Return whether pages of an origin may call: this server's own, and those that were named."""
        return self._names(origin) or _address(origin)[0] == host.lower()

    def _names(self, origin: str) -> bool:
        """Return whether an origin was named; ``localhost`` names the pages of all servers of this machine."""
        is_local = "localhost" in self.origins and _address(origin)[1] in _LOCAL_NAMES
        return is_local or "*" in self.origins or origin in self.origins

    def cors(self, headers: Headers) -> dict[str, str]:
        """Return the headers that let a page of a named origin read an answer."""
        origin = headers.get("origin")
        if origin is None or not self._names(origin):
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
            "access-control-allow-headers": "authorization, content-type, x-api-key, anthropic-version",
            "vary": "origin",
        }

    def _owner(self, headers: Headers) -> str | None:
        """Return the name of the key that a request has, or None. Each key is compared, in constant time."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        presented = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        found = None
        for key in self.keys:
            if hmac.compare_digest(_digest(presented), _digest(key)):
                found = key
        return None if found is None else _digest(found).hex()[:16]


def _address(origin: str) -> tuple[str, str]:
    """Return host with port, and the host alone, of an origin; empty where it is none."""
    try:
        found = urlsplit(origin)
        return found.netloc.lower(), found.hostname or ""
    except ValueError:  # as for a bracket that stays open
        return "", ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def all_keys(host: str, keys: Iterable[str], no_key: bool) -> tuple[tuple[str, ...], str | None]:
    """Return the keys of a server, and the one that was made for it, if one was: another address than loopback has
    one unless ``no_key``. Raises ``UsageError`` for a key that is empty, as of a variable that is not set."""
    chosen = tuple(keys)
    if not all(key.strip() for key in chosen):
        raise UsageError("--key is empty, so anybody could call.", (), ["leave it out: one is made", "--key WORD"])
    if chosen or no_key or is_loopback(host):
        return chosen, None
    new = new_key()
    return (new,), new
