"""A package index on this machine: the simple pages in JSON or HTML, and wheels by range, which may break off."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any


def wheel_of(name: str, version: str, files: dict[str, bytes]) -> bytes:
    """Return a wheel that holds these files."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, data in {**files, **about}.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in [*files, *about, f"{info}/RECORD"]))
    return packed.getvalue()


class Index:
    """Wheels by file name; ``requests`` are the paths and ranges asked for."""

    def __init__(self) -> None:
        self.wheels: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.html = False
        self.ranges = True
        self.password = ""
        self.break_after: int | None = None  # bytes after which the next wheel breaks off, or stops if ``hang``
        self.hang = False
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, name: str, version: str, files: dict[str, bytes]) -> bytes:
        """Publish a wheel; return its bytes."""
        data = wheel_of(name, version, files)
        self.wheels[f"{name.replace('-', '_')}-{version}-py3-none-any.whl"] = data
        return data

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append((request.path, request.headers.get("Range")))
        if self.password and self.password not in (request.headers.get("Authorization") or ""):
            return self.send(request, 401, b"", {"WWW-Authenticate": "Basic"})
        parts = request.path.strip("/").split("/")
        if parts[0] == "files" and parts[1] in self.wheels:
            return self.send_wheel(request, self.wheels[parts[1]])
        found = [
            name for name in self.wheels if parts[0] == "simple" and name.split("-")[0].replace("_", "-") == parts[1]
        ]
        if not found:
            return self.send(request, 404, b"", {})
        if self.html:
            links = "".join(f'<a href="../../files/{name}">{name}</a>' for name in found)
            return self.send(request, 200, links.encode(), {"Content-Type": "text/html"})
        files = [{"filename": name, "url": f"../../files/{name}", "hashes": {}} for name in found]
        page = {"meta": {"api-version": "1.0"}, "name": parts[1], "files": files}
        kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
        return self.send(request, 200, json.dumps(page).encode(), kind)

    def send_wheel(self, request: BaseHTTPRequestHandler, data: bytes) -> None:
        start, status, headers = 0, 200, {"Content-Type": "application/octet-stream"}
        byte_range = request.headers.get("Range")
        if byte_range and self.ranges:
            start = int(byte_range.removeprefix("bytes=").split("-")[0])
            if start >= len(data):
                return self.send(request, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status, headers["Content-Range"] = 206, f"bytes {start}-{len(data) - 1}/{len(data)}"
        limit, self.break_after = self.break_after, None
        return self.send(request, status, data[start:], headers, limit)

    def send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        headers: dict[str, str],
        limit: int | None = None,
    ) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(key, value)
        request.end_headers()
        with contextlib.suppress(ConnectionError):
            request.wfile.write(data[:limit])
            request.wfile.flush()
            while limit is not None and self.hang:
                time.sleep(0.05)
            if limit is not None:
                request.connection.shutdown(2)
