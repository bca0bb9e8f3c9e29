"""Pages: the files of a folder, each under its own path, with headers that keep a browser to them.

No path of a request is ever joined to a folder: each file has an endpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.responses import Response

from rung.server.service import Call, Endpoint

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: What the page may do: load from this server, and turn no text into HTML or code. Nobody may frame it.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # asked for again each time, and answered with 304
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page: its bytes, the type that a browser takes it for, and a name of these bytes."""

    content: bytes
    media_type: str
    etag: str

    async def respond(self, call: Call) -> Response:
        """Return the file, or 304 where the browser has these bytes."""
        headers = {**_HEADERS, "etag": self.etag}
        known = call.request.headers.get("if-none-match", "")
        if self.etag in [each.strip().removeprefix("W/") for each in known.split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def _files(folder: Traversable, path: str = "") -> Iterator[tuple[str, PageFile]]:
    """Yield path and content of each file below a folder that a browser is given; licenses are not."""
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        elif kind := _TYPES.get(entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            yield path + entry.name, PageFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def endpoints(folder: Traversable, page: str, rest: str) -> Iterator[Endpoint]:
    """Yield what serves the files of a folder: ``index.html`` at the path ``page``, the others below ``rest``."""
    for path, file in _files(folder):
        where = page if path == "index.html" else f"{rest}/{path}"
        yield Endpoint("GET", where, file.respond, needs_key=False)


#: The page, for everybody: it has no secrets, and asks for the key that its requests need.
ENDPOINTS = tuple(endpoints(resources.files("rung.server") / "page", "/", "/page"))
