"""A model hub on this machine: the few endpoints that ``huggingface_hub`` asks for models."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "c0ffee" * 6 + "beef"


class Hub:
    """The few endpoints of the hub that ``huggingface_hub`` asks for models."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
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
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        path = unquote(request.path.split("?")[0]).strip("/")
        self.requests.append((request.command, path, request.headers.get("Range")))
        self.token = request.headers.get("Authorization")
        api = path.startswith("api/models/")
        parts = path.removeprefix("api/models/").split("/")
        repository = "/".join(parts[:2])
        if repository in self.status or repository not in self.repositories:
            status, code = self.status.get(repository, (404, "RepoNotFound"))
            return self.send(request, status, b"{}", {"X-Error-Code": code, "X-Error-Message": code}, body)
        files = self.repositories[repository]
        if "revision" in parts[2:3] and parts[3] not in ("main", "v1", COMMIT):
            return self.send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
        if api:
            siblings = [{"rfilename": name, "size": self.sizes.get(name, len(data))} for name, data in files.items()]
            found = {"id": repository, "sha": COMMIT, "siblings": siblings}
            return self.send(request, 200, json.dumps(found).encode(), {}, body)
        name = "/".join(parts[4:])
        if name not in files:
            return self.send(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, body)
        return self.send_file(request, files[name], body)

    def send_file(self, request: BaseHTTPRequestHandler, data: bytes, body: bool) -> None:
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        headers = {"X-Repo-Commit": COMMIT, "ETag": etag, "Accept-Ranges": "bytes"}
        start = 0
        asked = request.headers.get("Range")
        if asked and body:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        rest, limit = data[start:], None
        if body and self.break_after is not None:
            limit, self.break_after = self.break_after, None
        self.send(request, 206 if start else 200, rest, headers, body, limit)

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
            request.wfile.write(data[:limit])
        if limit is not None:
            request.wfile.flush()
            request.connection.shutdown(2)
