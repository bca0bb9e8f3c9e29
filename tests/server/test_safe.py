"""Test who may call, and how much: one test for each advisory of another server that applies here."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import re
import socket
import threading
import time
import tomllib
from pathlib import Path

import pytest
import uvicorn
from packaging.requirements import Requirement
from starlette.datastructures import Headers

from rung.core.errors import UsageError
from rung.server import gate, http, page_files
from rung.server.api import ENDPOINTS
from rung.server.app import App
from rung.server.errors import ApiError
from rung.server.gate import Gate
from rung.server.http import MOST_BODY
from rung.server.model_pool import ModelPool
from rung.server.serve import http_config
from rung.server.service import Service
from tests.server.conftest import serving

#: A model that rung could read.
FILE = Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-q4_0.gguf"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@contextlib.contextmanager
def http_without_engines(checks: Gate):
    """The HTTP side alone, in a thread: its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(http_config(App(Service(ModelPool()), checks, (*ENDPOINTS, *page_files.ENDPOINTS)), 1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def send(port: int, data: bytes, seconds: float = 5.0) -> bytes:
    """Return the answer to bytes until the other side closes, or says nothing for a while."""
    with socket.create_connection(("127.0.0.1", port), seconds) as client:
        client.sendall(data)
        found = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while part := client.recv(2**16):
                found += part
        return found


def status(port: int, *headers: str, path: str = "/v1/models", method: str = "GET") -> int:
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *headers, "Connection: close", "", ""])
    return int(send(port, head.encode()).split(b" ", 2)[1])


@pytest.fixture(scope="module")
def locked():
    """The HTTP side with two keys and a page that may call."""
    allowed = frozenset({"https://chat.example"})
    with http_without_engines(Gate(("sk-one", "sk-two"), gate.own_hosts("127.0.0.1"), allowed)) as port:
        yield port


@pytest.fixture(scope="module")
def unlocked():
    """The HTTP side without a key."""
    with http_without_engines(Gate()) as port:
        yield port


def test_every_path_but_health_needs_the_key(locked):
    """Keys left out of one route were CVEs of several servers: all rows are asked."""
    open_rows = []
    for row in ENDPOINTS:
        path = re.sub(r"{.*?}", "x", row.path)
        if status(locked, "Host: localhost", path=path, method=row.method) != 401:
            open_rows.append(row.path)
    assert open_rows == ["/health", "/v1/health"]
    assert status(locked, "Host: localhost", path="/not/there") == 401
    assert status(locked, "Host: localhost", path="/v1/models/../../health") == 401
    assert status(locked, "Host: localhost", path="//health") == 401


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Authorization: Bearer sk-one", 200),
        ("Authorization: bearer  sk-two", 200),
        ("x-api-key: sk-two", 200),
        ("Authorization: Bearer sk-on", 401),
        ("Authorization: Bearer sk-one ", 200),
        ("Authorization: Bearer", 401),
        ("Authorization: Basic sk-one", 401),
        ("x-api-key: ", 401),
        ("x-api-key: \xe4", 401),
    ],
)
def test_a_key_is_taken_in_both_headers(locked, header, expected):
    assert status(locked, "Host: localhost", header) == expected


def test_without_a_key_set_any_key_is_ignored(unlocked):
    assert status(unlocked, "Host: localhost", "Authorization: Bearer whatever") == 200
    assert status(unlocked, "Host: localhost", "x-api-key: whatever") == 200


def test_all_keys_are_compared_in_constant_time(monkeypatch):
    """CVE-2025-59425: comparing byte by byte tells how many are right."""
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b))
    keys = Gate(("sk-one", "a much longer key than the others", "x"))
    headers = Headers({"host": "localhost", "authorization": "Bearer sk-one"})
    keys.check(headers, needs_key=True)
    assert compared == [(32, 32)] * 3


def test_owners_of_keys_are_apart_and_stay_the_same():
    keys = Gate(("sk-one", "sk-two"))
    owners = [
        keys.check(Headers({"host": "localhost", "x-api-key": key}), needs_key=True) for key in ("sk-one", "sk-two")
    ]
    assert len({*owners, ""}) == 3
    assert not any(key in owner for owner in owners for key in ("sk-one", "sk-two"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("Host: 127.0.0.1:8080", 200),
        ("Host: localhost", 200),
        ("Host: LOCALHOST:1", 200),
        ("Host: [::1]:8080", 200),
        ("Host: evil.example", 403),
        ("Host: localhost.evil.example", 403),
        ("Host: evil.example:127.0.0.1", 403),
        ("Host: localhost/health?", 403),
        ("Host: ", 403),
    ],
)
def test_another_host_is_refused(unlocked, host, expected):
    """A name that an attacker points at this machine (DNS rebinding) still has its own Host; and a Host with a path in
    it (CVE-2026-48710) opens no other one."""
    assert status(unlocked, host) == expected
    assert status(unlocked, host, path="/health") == expected


@pytest.mark.parametrize(
    "foreign", [["Host: evil.example"], ["Host: localhost", "Origin: https://evil.example"]], ids=["host", "origin"]
)
def test_no_path_answers_a_foreign_page(unlocked, foreign):
    """A change would be done though no page could read its answer: nothing is asked before the gate."""
    rows = [(row.method, re.sub(r"{.*?}", "x", row.path)) for row in (*ENDPOINTS, *page_files.ENDPOINTS)]
    found = {row: status(unlocked, *foreign, path=row[1], method=row[0]) for row in [*rows, ("OPTIONS", "/api/pull")]}
    assert ("POST", "/api/chat") in found
    assert ("GET", "/") in found
    assert {row: code for row, code in found.items() if code != 403} == {}


@pytest.mark.parametrize(("host", "codes"), [("localhost", {200, 404}), ("evil.example", {403})])
@pytest.mark.parametrize("path", ["/", "/v1/models", "/not/there"])
def test_nothing_becomes_a_websocket(unlocked, path, host, codes):
    upgrade = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {'A' * 22}==",
    )
    answer = send(unlocked, "\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host}", *upgrade, "", ""]).encode(), 0.5)
    assert int(answer.split(b" ", 2)[1]) in codes
    assert b"sec-websocket-accept" not in answer.lower()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[("POST", path) for path in ("/api/create", "/api/push", "/api/copy", "/models", "/models/load")],
        ("POST", "/api/blobs/sha256:" + "0" * 64),
        ("PUT", "/api/blobs/sha256:" + "0" * 64),
        ("POST", "/v1/files"),
        ("POST", "/v1/load_lora_adapter"),
        ("GET", "/cors-proxy"),
        ("GET", "/cors-proxy?url=http://127.0.0.1:1/"),
        ("POST", "/v1/audio/transcriptions"),
    ],
)
def test_nothing_is_uploaded_made_or_fetched_for_others(unlocked, method, path):
    """CVE-2026-7482 was a file of a client's that the server read out of bounds, and pushed."""
    assert status(unlocked, "Host: localhost", "Content-Length: 0", path=path, method=method) in (404, 405)


def test_no_host_or_two_are_refused(unlocked):
    assert status(unlocked) == 400
    assert status(unlocked, "Host: localhost", "Host: evil.example") in (400, 403)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (["Origin: http://localhost:8080"], 200),
        (["Origin: https://chat.example"], 200),
        (["Origin: http://localhost:9999"], 403),
        (["Origin: https://evil.example"], 403),
        (["Origin: null"], 403),
        (["Origin: https://chat.example.evil.example"], 403),
        (["Sec-Fetch-Site: cross-site"], 403),
        (["Sec-Fetch-Site: same-origin"], 200),
    ],
)
def test_pages_of_other_origins_are_refused(locked, headers, expected):
    key = "Authorization: Bearer sk-one"
    assert status(locked, "Host: localhost:8080", key, *headers) == expected


def test_a_page_that_may_call_can_ask_before_and_read_the_answer(locked):
    head = b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: %s\r\nConnection: close\r\n\r\n"
    allowed = send(locked, head % b"https://chat.example").lower()
    assert allowed.startswith(b"http/1.1 200")
    assert b"access-control-allow-origin: https://chat.example\r\n" in allowed
    assert b"authorization" in allowed
    assert b"access-control-allow-credentials" not in allowed
    refused = send(locked, head % b"https://evil.example").lower()
    assert refused.startswith(b"http/1.1 403")
    assert b"access-control" not in refused


def test_pages_of_this_machine_at_any_port_may_call_where_that_is_said():
    from starlette.datastructures import Headers

    near = Gate(origins=frozenset({"localhost"}))
    for origin in ("http://localhost", "http://localhost:3000", "http://127.0.0.1:3000", "http://[::1]:3000"):
        headers = Headers({"host": "localhost:8080", "origin": origin})
        near.check_source(headers)
        assert near.cors(headers)["access-control-allow-origin"] == origin
    for origin in ("http://localhost.evil.example", "http://evil.example", "null", "http://[", "localhost"):
        headers = Headers({"host": "localhost:8080", "origin": origin})
        with pytest.raises(ApiError):
            Gate().check_source(headers)
        assert Gate().cors(headers) == {}
        if origin != "localhost":  # the word itself: the same as in the option
            assert near.cors(headers) == {}


def test_hosts_of_a_server_on_all_addresses_are_this_machines():
    found = gate.own_hosts("0.0.0.0")
    assert {"localhost", "127.0.0.1", socket.gethostname().lower()} <= found
    assert "evil.example" not in found
    assert gate.all_keys("127.0.0.1", (), False) == ((), None)
    assert gate.all_keys("::1", (), False) == ((), None)
    assert gate.all_keys("0.0.0.0", (), True) == ((), None)
    assert gate.all_keys("0.0.0.0", ("mine",), False) == (("mine",), None)
    keys, key = gate.all_keys("192.168.1.5", (), False)
    assert keys == (key,)
    assert len(key) > 30
    assert gate.all_keys("example.org", (), False)[1] is not None


def test_a_body_above_the_limit_is_refused_before_it_is_read(unlocked):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    assert b" 413 " in send(unlocked, head % (MOST_BODY + 1))
    assert b" 400 " in send(unlocked, head % 10**30)


def test_chunks_without_end_are_refused(unlocked):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    with socket.create_connection(("127.0.0.1", unlocked), 10) as client:
        client.sendall(head)
        with contextlib.suppress(ConnectionError):
            for _ in range(9):
                client.sendall(chunk)
        assert b" 413 " in client.recv(2**16)


@pytest.mark.parametrize("length", ["Content-Length: 9", "Transfer-Encoding: chunked"])
def test_a_body_that_does_not_come_is_408_and_the_connection_ends(unlocked, monkeypatch, length):
    monkeypatch.setattr(http, "BODY_SECONDS", 0.3)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", unlocked), 10) as client:
        client.sendall(head.encode() + (b"{" if "Length" in length else b"1\r\n{\r\n"))
        found = b"".join(iter(lambda: client.recv(2**16), b""))  # until the server closes it
    assert found.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in found.lower()
    assert "did not come within 0.3 s" in json.loads(found.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_heads_have_a_limit_in_bytes_and_seconds(unlocked, monkeypatch):
    """CVE-2025-48956: a head of any size."""
    assert b" 400 " in send(unlocked, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 2**20 + b"\r\n\r\n")
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", unlocked), 10) as client:
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in b"GET /health HTTP/1.1\r\n" + b"X-A: b\r\n" * 1000:
                client.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - begun < 10


def test_what_is_no_http_harms_nobody(unlocked):
    for data in (
        b"\x16\x03\x01\x02\x00",
        b"\0" * 1000,
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\nX\n\n",
    ):
        send(unlocked, data + b"\r\n\r\n", 0.3)
    with socket.create_connection(("127.0.0.1", unlocked), 5) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)  # pipelined
        found = b""
        while found.count(b"HTTP/1.1 200") < 3:
            found += client.recv(2**16)
    assert status(unlocked, "Host: localhost", method="DELETE") == 405
    assert status(unlocked, "Host: localhost", method="HEAD", path="/v1/chat/completions") == 405
    for path in ("/openapi.json", "/v1/models"):  # as ollama's command asks whether somebody is there
        head = send(unlocked, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert (head.split(b" ", 2)[1], head[-4:], b"content-length" in head) == (b"200", b"\r\n\r\n", True)
    assert status(unlocked, "Host: localhost", path="/../../etc/passwd") == 404


def test_a_full_queue_is_503(server, endless):
    options = {"prompt": "the", "max_tokens": 400, "n": 16, "temperature": 1, "logit_bias": endless}
    body = json.dumps(options).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with contextlib.ExitStack() as clients:
        for _ in range(5):
            clients.enter_context(socket.create_connection(("127.0.0.1", server.port))).sendall(head + body)
        until = time.monotonic() + 10
        while server.metric("rung_requests_processing") + server.metric("rung_requests_deferred") < 80:
            assert time.monotonic() < until
        found, answer, headers = server.call("/v1/chat/completions", HELLO)
        assert (found, answer["error"]["code"]) == (503, "queue_full")
        assert 0 < float(headers["retry-after-ms"]) / 1000 <= int(headers["retry-after"])
    server.wait_idle()
    assert server.call("/v1/chat/completions", HELLO)[0] == 200


def test_another_address_makes_a_key_and_prints_it(tmp_path):
    with serving(tmp_path, "demo", "--host", "0.0.0.0") as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert server.call("/v1/models")[0] == 401
        assert server.call("/health")[0] == 200
        key = re.search(r"key: (\S+)", server.said())[1]
        assert server.call("/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
        assert server.call("/v1/models", headers={"Authorization": f"Bearer {key}", "Host": "evil.example"})[0] == 403


def test_names_origins_and_no_key_of_the_command_line(tmp_path):
    names = ("--allow-host", "Model.Example", "--allow-host", "other", "--origin", "https://chat.example")
    with serving(tmp_path, "demo", "--host", "0.0.0.0", "--no-key", *names) as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert "key:" not in server.said()
        for host, expected in (("model.example", 200), ("other:8080", 200), ("example", 403), ("evil.example", 403)):
            assert server.call("/v1/models", headers={"Host": host})[0] == expected, host
        for origin, expected in (("https://chat.example", 200), ("http://chat.example", 403), ("null", 403)):
            found, _, headers = server.call("/v1/completions", {"prompt": "a", "max_tokens": 1}, {"Origin": origin})
            assert (found, headers["access-control-allow-origin"]) == (expected, origin if expected == 200 else None)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/completions", {"prompt": "a"}, "no model"),
        ("/v1/messages", {**HELLO}, "no model"),
        ("/api/generate", {"prompt": "a"}, "no model"),
        ("/api/show", {}, "no model"),
        ("/api/embed", {"input": "a"}, "no model"),
    ],
)
def test_a_name_that_is_a_path_is_no_model(server, path, body, named):
    """CVE-2024-37032: a name became a path. A file that rung could read is asked for."""
    for name in (str(FILE), f"../../..{FILE}", FILE.as_uri(), f"./{FILE.name}"):
        found, answer, _ = server.call(path, {"model": name, **body})
        assert (found, named in json.dumps(answer)) == (404, True)
    assert server.call(f"/v1/models/{FILE}")[0] == 404


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        ("/v1/chat/completions", {**HELLO, "chat_template": "{{ 1 }}"}, "chat_template"),
        ("/v1/chat/completions", {**HELLO, "chat_template_kwargs": {"messages": ""}}, "chat_template_kwargs"),
        ("/completion", {"prompt": "a", "n_discard": -1}, "n_discard"),
        ("/completion", {"prompt": "a", "n_predict": -(2**40)}, "n_predict"),
        ("/v1/completions", {"prompt": "a", "n": 2**31}, "n"),
        ("/v1/completions", {"prompt": "a", "stop": ["x"] * 100_000}, "stop"),
        ("/api/chat", {"model": "demo", "messages": [{"role": "user", "images": ["AA=="]}]}, "images"),
        (
            "/v1/messages",
            {
                "model": "demo",
                "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}],
            },
            "content",
        ),
    ],
)
def test_what_was_harmful_elsewhere_is_refused_by_name(server, path, more, field):
    """A template of a request (CVE-2025-61620), huge and negative numbers (CVE-2026-34756, CVE-2026-21869), and
    pictures, of which none is decoded or fetched (CVE-2026-22773, CVE-2026-24779)."""
    found, answer, _ = server.call(path, {"max_tokens": 2} | more if path.startswith("/v1") else more)
    assert (found, field in json.dumps(answer)) == (400, True), answer


def test_no_framework_that_believes_a_host_is_installed_for_serving():
    """CVE-2026-48710 is mended from Starlette 1.0.1 on."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (starlette,) = [
        each for each in map(Requirement, project["optional-dependencies"]["serve"]) if each.name == "starlette"
    ]
    assert not starlette.specifier.contains("1.0.0")
    assert starlette.specifier.contains("1.0.1")


def test_keys_share_no_cache(tmp_path):
    """CVE-2025-46570: the time to the first token told what others had asked."""
    prompt = {"prompt": "the model runs on the GPU and the memory is small " * 8, "max_tokens": 1}
    with serving(tmp_path, "demo", "--key", "sk-one", "--key", "sk-two") as server:

        def cached(key: str) -> int:
            answer = server.call("/v1/completions", prompt, {"x-api-key": key})[1]
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached("sk-one") == 0
        assert cached("sk-one") > 0
        assert cached("sk-two") == 0


@pytest.mark.parametrize("key", ["", "  "])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_an_empty_key_is_none(key, host):
    """As of a variable that is not set: anybody could call a server that seems to have a key."""
    with pytest.raises(UsageError, match="--key is empty"):
        gate.all_keys(host, ["word", key], no_key=False)
