"""Serve until a signal: the listening socket, the engines and the HTTP server in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn

from rung.core.errors import UsageError
from rung.server import gate, page_files
from rung.server.admission import MOST_WAITING, Admission
from rung.server.api import ENDPOINTS
from rung.server.app import MOST_CONNECTIONS, App
from rung.server.engines import Pool
from rung.server.http import Protocol
from rung.server.model_pool import ModelPool
from rung.server.protocol import Load
from rung.server.service import Endpoint, Service
from rung.server.store.client import StoreClient

#: Bytes of the head of a request at most.
_MOST_HEAD = 2**16
#: Files that the process may have at once: connections and those of its own. Systems often begin with 1,024.
_FILES = 2 * MOST_CONNECTIONS
#: Where this machine reaches a server that listens on all addresses.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
#: Seconds that answers have to end after SIGTERM, and after Ctrl-C.
DRAIN_SECONDS, _STOP_SECONDS = 30, 1


@dataclass(frozen=True)
class Settings:
    """Settings of a server. ``models`` are loads by the name that clients give, ``options`` those of a load of any
    model of the store (None: requests name no other); ``memory`` and ``keep_alive`` as in ``ModelPool``; ``drain``
    seconds after SIGTERM answers are cut. ``tls_cert`` is the file of a certificate (PEM) that makes it HTTPS,
    ``tls_key`` that of its private key, if it is not in the same. ``allow_pull``: clients may pull and delete models of
    the store; ``saves_slots``: they may save and restore slots. ``any_name``: an unknown name means the first model."""

    models: dict[str, Load]
    options: dict[str, Any] | None = None
    memory: str | None = None
    keep_alive: float | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    keys: tuple[str, ...] = ()
    no_key: bool = False
    allow_hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    most_waiting: int = MOST_WAITING
    drain: int = DRAIN_SECONDS
    tls_cert: str | None = None
    tls_key: str | None = None
    allow_pull: bool = False
    saves_slots: bool = False
    any_name: bool = False


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ``UsageError`` where another program does, or the address is not here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"Port {port} of {host} is in use.",
                ["another program listens there, maybe another rung serve"],
                [f"rung serve --port {port + 1 if port < 2**16 - 1 else 8080}", f"ss -ltnp 'sport = :{port}'   # who"],
                code="port-in-use",
            ) from error
        raise UsageError(
            f"Nothing can listen on {host} port {port}: {error.strerror or error}.",
            (),
            ["rung serve --host 127.0.0.1 --port 8080"],
            code="address-unusable",
        ) from error
    except OverflowError as error:
        raise UsageError(f"{port} is no port: they go from 0 to 65535.", code="value-out-of-range") from error
    return listener


def check_tls(cert: str | None, key: str | None) -> None:
    """Raise ``UsageError`` for files that are no certificate and its private key."""
    if cert is None:
        if key is not None:
            raise UsageError("--tls-key needs the certificate, too.", (), [f"--tls-cert FILE --tls-key {key}"])
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, lambda: "")  # nobody is there to type one
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        names = cert if key is None else f"{cert} and {key}"
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{names}: no certificate with its private key can be read there.",
            [str(reason)],
            ["--tls-cert CERTIFICATE.pem --tls-key KEY.pem   # the key without a password"],
        ) from error


def http_config(
    app: App, drain: int = DRAIN_SECONDS, tls_cert: str | None = None, tls_key: str | None = None
) -> uvicorn.Config:
    """Return how uvicorn serves an application: heads and connections have limits, and nothing is written to a log."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_MOST_HEAD,
        timeout_graceful_shutdown=drain,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )


class _Server(uvicorn.Server):
    """uvicorn's server, whose signals are ``serve``'s."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    settings: Settings,
    on_note: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    on_key: Callable[[str], None] = lambda text: None,
    on_page: Callable[[str], None] = lambda address: None,
    pool: Pool | None = None,
    more: Sequence[Endpoint] = (),
) -> None:
    """Serve models, or those of ``pool``, and ``more``, until SIGTERM or Ctrl-C; SIGTERM lets answers end first.

    When the models are loaded, ``on_note`` hears the address, and ``on_page`` gets that of the page for a browser on
    this machine. ``on_key`` hears of a key that was made. Raises ``RungError`` where a model cannot be loaded or
    nothing can listen.
    """
    check_tls(settings.tls_cert, settings.tls_key)
    keys, new_key = gate.all_keys(settings.host, settings.keys, settings.no_key)
    with bind(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]
        is_tls = settings.tls_cert is not None
        shown = _address(settings.host, port, is_tls)
        here = _address(_ANY.get(settings.host, settings.host), port, is_tls)
        if new_key:
            on_key(f"key: {new_key}   (other machines reach {settings.host}; --key sets one, --no-key goes without)")

        def on_ready() -> None:
            on_note(f"{shown}   OpenAI's base URL: {shown}/v1")
            on_page(f"{here}/")

        if pool is None:
            options = settings.options, settings.memory, settings.keep_alive
            pool = ModelPool(settings.models, *options, on_note, on_progress, settings.any_name)
        asyncio.run(_serve(settings, keys, listener, pool, on_ready, more))


def _address(host: str, port: int, is_tls: bool) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{name}:{port}"


async def _serve(
    settings: Settings,
    keys: tuple[str, ...],
    listener: socket.socket,
    pool: Pool,
    on_ready: Callable[[], None],
    more: Sequence[Endpoint],
) -> None:
    """Serve until a signal; ``on_ready`` is called when the models of the command line are loaded."""
    offline = bool((settings.options or {}).get("offline"))
    service = Service(
        pool,
        partial(Admission, settings.most_waiting, shared=len(keys) > 1),
        store=StoreClient(settings.allow_pull, offline),
        saves_slots=settings.saves_slots,
    )
    hosts = gate.own_hosts(settings.host) | {each.lower() for each in settings.allow_hosts}
    served = (*ENDPOINTS, *page_files.ENDPOINTS, *more)
    app = App(service, gate.Gate(keys, hosts, frozenset(settings.origins)), served)
    config = http_config(app, settings.drain, settings.tls_cert, settings.tls_key)
    server = _Server(config)
    app.connections = server.server_state.connections
    _stop_by_signals(server, config)
    _allow_files()
    http = asyncio.create_task(server.serve([listener]))
    start = asyncio.create_task(pool.start())
    try:
        await asyncio.wait({http, start}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            on_ready()
        await http
    finally:
        server.should_exit = True
        server.force_exit = not http.done()
        start.cancel()
        await asyncio.gather(http, start, return_exceptions=True)
        if answers := set(server.server_state.tasks):  # cut off: what they say last is sent
            await asyncio.wait(answers, timeout=_STOP_SECONDS)
        await pool.stop()


def _allow_files() -> None:
    """Let this process have as many files as it needs, where the system lets it; engines inherit that."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _stop_by_signals(server: uvicorn.Server, config: uvicorn.Config) -> None:
    """End at SIGTERM when answers have ended, at Ctrl-C at once; SIGHUP changes nothing."""
    loop, drain = asyncio.get_running_loop(), config.timeout_graceful_shutdown or 0

    def stop(seconds: int) -> None:
        config.timeout_graceful_shutdown = min(seconds, drain)
        server.force_exit = server.should_exit  # a second signal
        server.should_exit = True

    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends the loop
        loop.add_signal_handler(signal.SIGTERM, stop, drain)
        loop.add_signal_handler(signal.SIGINT, stop, _STOP_SECONDS)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
