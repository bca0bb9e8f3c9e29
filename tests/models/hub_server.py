"""A model hub on this machine: the few endpoints that ``huggingface_hub`` asks for models."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "c0ffee" * 6 + "beef"


class Sparse:
    """A file as long as it says it is: ``head``, and zeros from there on."""

    def __init__(self, head: bytes, length: int) -> None:
        self.head, self.length = head, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self.length)
        return self.head[start:stop].ljust(min(stop - start, 2**27), b"\0")


class Hub:
    """The few endpoints of the hub that ``huggingface_hub`` asks for models."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes | Sparse]] = {}
        self.lie = ""  # whole, shifted, longer, short, drip, drip_list, drip_headers, bomb, round, page, lengths
        self.sent = 0  # bytes of bodies
        self.sizes: dict[str, int] = {}  # what the listing claims, where it is not the length
        self.status: dict[str, tuple[int, str]] = {}  # repository: status and error code
        self.break_after: int | None = None  # bytes after which the next download breaks off
        self.requests: list[tuple[str, str, str | None]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                owner.answer(self, body=False)

            def do_GET(self) -> None:
                owner.answer(self, body=True)

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        path = request.path.split("?")[0].strip("/")
        self.requests.append((request.command, path, request.headers.get("Range")))
        self.token = request.headers.get("Authorization")
        api = path.startswith("api/models/")
        parts = [unquote(part) for part in path.removeprefix("api/models/").split("/")]
        repository = "/".join(parts[:2])
        if repository in self.status or repository not in self.repositories:
            status, code = self.status.get(repository, (404, "RepoNotFound"))
            return self.send(request, status, b"{}", {"X-Error-Code": code, "X-Error-Message": code}, body)
        files = self.repositories[repository]
        if "revision" in parts[2:3] and parts[3] not in ("main", "v1", "refs/pr/1", COMMIT):
            return self.send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
        if api:
            siblings = [{"rfilename": name, "size": self.sizes.get(name, len(data))} for name, data in files.items()]
            found = {"id": repository, "sha": COMMIT, "siblings": siblings}
            if self.lie == "drip_headers":
                return self.headers_without_end(request)
            if self.lie == "round":
                time.sleep(0.2)
                return self.send(request, 302, b"", {"Location": request.path}, body)
            if self.lie == "page":
                return self.send(request, 200, b"<html>Please log in to this network</html>", {}, body)
            if self.lie == "lengths":
                return self.send(request, 200, b'{"siblings": [{"rfilename": "config.json"}]}', {}, body)
            if self.lie in ("drip_list", "bomb"):
                return self.endless(request, b" " * (2**20 if self.lie == "bomb" else 1))
            return self.send(request, 200, json.dumps(found).encode(), {}, body)
        name = "/".join(parts[4:])
        if name not in files:
            return self.send(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, body)
        return self.send_file(request, files[name], body)

    def send_file(self, request: BaseHTTPRequestHandler, data: bytes | Sparse, body: bool) -> None:
        etag = f'"{hashlib.sha256(data if isinstance(data, bytes) else data.head).hexdigest()}"'
        headers = {"X-Repo-Commit": COMMIT, "ETag": etag, "Accept-Ranges": "bytes"}
        start, stop, status = 0, len(data), 200
        byte_range = request.headers.get("Range")
        if byte_range and body and self.lie != "whole":
            first, _, last = byte_range.removeprefix("bytes=").partition("-")
            start, stop, status = int(first), min(int(last) + 1 if last else stop, stop), 206
            start, stop = (start + 8, stop + 8) if self.lie == "shifted" else (start, stop)
            length = len(data) + (self.lie == "longer")
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{length}"
        if self.lie == "drip" and byte_range and body:
            return self.endless(request, b"\0", headers, status)
        if self.lie == "short" and status == 206:
            stop = start + (stop - start) // 2
        rest, limit = data[start:stop], None
        if body and self.break_after is not None:
            limit, self.break_after = self.break_after, None
        self.sent += len(rest) if body else 0
        return self.send(request, status, rest, headers, body, limit)

    @staticmethod
    def headers_without_end(request: BaseHTTPRequestHandler) -> None:
        """One header, a letter at a time."""
        with contextlib.suppress(OSError):
            request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            for _ in range(300):
                request.wfile.write(b"x")
                time.sleep(0.02)

    @staticmethod
    def endless(
        request: BaseHTTPRequestHandler, piece: bytes, headers: dict[str, str] | None = None, status: int = 200
    ) -> None:
        """An answer without an end, until the other side has had enough."""
        request.send_response(status)
        for key, value in (headers or {}).items():
            request.send_header(key, value)
        request.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                request.wfile.write(piece)
                request.wfile.flush()
                time.sleep(0.02 if len(piece) == 1 else 0)

    @staticmethod
    def send(
        request: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        headers: dict[str, str],
        body: bool,
        limit: int | None = None,
    ) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(key, value)
        request.end_headers()
        if body:
            with contextlib.suppress(ConnectionError):  # the other side has what it wanted
                request.wfile.write(data[:limit])
        if limit is not None:
            request.wfile.flush()
            request.connection.shutdown(2)
