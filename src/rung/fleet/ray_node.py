"""Start and end Ray on this machine, with token and TLS always on."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rung.core.errors import RungError, SoftwareMissing, UsageError
from rung.fleet.keys import folder as files
from rung.fleet.keys.folder import Folder

#: The oldest Ray whose tokens hold for all of its services.
LEAST_VERSION = (2, 60)
#: Bytes of the memory that processes of a node share: requests, events, and pieces of model files.
_OBJECT_STORE = 128 * 2**20
#: The file that names the folder of Ray's processes, and how that is called.
_SESSION, _PREFIX = "session", "rung-fleet-"
#: A port that nothing can listen on: Ray goes on without the service.
_NO_PORT = str(2**16)
#: Seconds that Ray has to start, and to end.
_START_SECONDS, _END_SECONDS = 120.0, 3.0
#: Seconds between two looks which processes are Ray's.
_LOOK_SECONDS = 2.0


def require() -> str:
    """Return the version of Ray. Raises ``SoftwareMissing`` where it is not here or too old."""
    try:
        found = version("ray")
        import cryptography as cryptography  # a part of the extra
        import starlette as starlette
    except ImportError:
        raise SoftwareMissing("Ray is not installed; a fleet needs it.", (), ["pip install 'rung[fleet]'"]) from None
    if tuple(int(part) for part in found.split(".")[:2]) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise SoftwareMissing(f"Ray {found} is too old for a fleet.", [], [f"pip install 'ray[serve]>={least}'"])
    return found


def environment(folder: Folder) -> dict[str, str]:
    """Return the variables by which every process of Ray authenticates and encrypts. Raises ``UsageError`` where this
    machine has no token or certificate: nothing is started without."""
    for name in (files.TOKEN, files.AUTHORITY, files.CERTIFICATE, files.KEY):
        folder.read(name)
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder.path / files.TOKEN),
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": str(folder.path / files.AUTHORITY),
        "RAY_TLS_SERVER_CERT": str(folder.path / files.CERTIFICATE),
        "RAY_TLS_SERVER_KEY": str(folder.path / files.KEY),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",  # its port has neither a token nor TLS
        "DASHBOARD_METRIC_PORT": _NO_PORT,  # the same, of Ray's head, on all addresses
        "GRPC_VERBOSITY": "ERROR",
        "RAY_DEDUP_LOGS": "1",
        "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # a driver prints what became of workers among its own output else
        "RAY_SERVE_ENABLE_TASK_EVENTS": "0",
        # threads of Ray Serve call Ray when a process has left it: they would begin a cluster of their own, and hang
        "RAY_ENABLE_AUTO_CONNECT": "0",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "5",
    }


def free_port(address: str) -> int:
    """Return a port of an address that nobody listens on. Raises ``UsageError`` where the address is not here."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((address, 0))
            return int(listener.getsockname()[1])
    except OSError as error:
        raise UsageError(
            f"Nothing can listen on {address}: {error.strerror or error}.", code="address-unusable"
        ) from error


def logs(folder: Folder) -> Path | None:
    """Return where Ray's processes of this machine write their logs; None where none run."""
    try:
        found = Path((folder.path / _SESSION).read_text("utf-8")) / "session_latest" / "logs"
    except FileNotFoundError:
        return None
    return found if found.is_dir() else None


class RayNode:
    """The processes of Ray on this machine, ended with ``stop``."""

    def __init__(self, folder: Folder, name: str, address: str, labels: Mapping[str, str]) -> None:
        self._folder, self._name, self._address, self._labels = folder, name, address, labels
        self._end_earlier()
        self._temporary = Path(tempfile.mkdtemp(prefix=_PREFIX))  # short: sockets have names of 107 bytes at most
        folder.write(_SESSION, str(self._temporary).encode())
        self._process: subprocess.Popen[bytes] | None = None
        #: What Ray's process has started, as it was seen last: when that one has ended nothing leads to them.
        self._below: list[Any] = []
        self._looked, self._lock = 0.0, threading.Lock()

    def start_head(self, port: int) -> str:
        """Begin a cluster and return its address. Raises ``RungError``."""
        self._start("--head", f"--port={port}", "--include-dashboard=false", "--no-monitor")
        return f"{self._address}:{port}"

    def start(self, head: str) -> None:
        """Join the cluster at an address. Raises ``RungError``."""
        self._start(f"--address={head}")

    def _start(self, *arguments: str) -> None:
        labels = ",".join(f"{key}={value}" for key, value in self._labels.items())
        command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", *arguments]
        command += [f"--node-ip-address={self._address}", f"--node-name={self._name}"]
        command += [f"--labels={labels}"] if labels else []
        command += [f"--object-store-memory={_OBJECT_STORE}", f"--temp-dir={self._temporary}"]
        command += ["--num-gpus=0", "--disable-usage-stats", "--include-log-monitor=false"]
        self._log = self._temporary / "said"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # signals of the terminal are for this process, which ends Ray
                env={**os.environ, **environment(self._folder)},
            )
        until = time.monotonic() + _START_SECONDS
        while b"runtime started" not in self._log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > until:
                last_lines = self._log.read_text("utf-8", "replace").strip().splitlines()[-4:]
                self.stop()
                raise RungError("Ray has not started.", last_lines, code="fleet-ray")
            time.sleep(0.05)
        self.watch()

    @property
    def is_running(self) -> bool:
        """Return whether Ray runs here."""
        return self._process is not None and self._process.poll() is None

    def watch(self) -> bool:
        """Return whether Ray runs here, and note from time to time what it has started: ``stop`` ends that, too."""
        with self._lock:
            if time.monotonic() - self._looked > _LOOK_SECONDS:
                self._look()
            return self.is_running

    def _look(self) -> None:
        """Note what Ray's process has started, with what is still there of what was seen before."""
        self._looked = time.monotonic()
        if self._process is not None and self.is_running:
            # equal where pid and start are, so a number that another process has now is not taken for this one
            running = [process for process in self._below if process.is_running()]
            self._below = list({*running, *_below([self._process.pid])})

    def stop(self) -> None:
        """End all processes of Ray that were started here, and take their files away."""
        with self._lock:
            self._look()
            if self._process is not None and self.is_running:  # once it is waited for its group's number may be free
                os.killpg(self._process.pid, signal.SIGTERM)
                try:
                    self._process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(self._process.pid, signal.SIGKILL)
                    self._process.wait()
            self._process = None
            _kill(self._below)
        _end_session(self._temporary)

    def _end_earlier(self) -> None:
        """End what a process of this machine's part left that was killed."""
        with contextlib.suppress(FileNotFoundError):
            session = Path((self._folder.path / _SESSION).read_text("utf-8"))
            if session.name.startswith(_PREFIX) and session.parent == Path(tempfile.gettempdir()):
                _end_session(session)


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Make this process a driver of Ray in the fleet of this machine. Raises ``UsageError`` where it is in none."""
    folder = Folder.of_settings()
    member = folder.require_member()
    os.environ.update(environment(folder))  # Ray reads its settings when it is imported
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    # without its address another machine may be taken for it, which results of more than 100 kB then never leave
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    ray.init(address=member.ray, _node_ip_address=member.address, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _end_session(folder: Path) -> None:
    """End processes of Ray whose command names a folder that was made for them, with those that they started, and take
    it away."""
    import psutil

    found = [
        process
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or ())
    ]
    _kill([*found, *_below([process.pid for process in found])])
    shutil.rmtree(folder, ignore_errors=True)


def _below(pids: Iterable[int]) -> list[Any]:
    """Return the processes (of psutil) that these started, and those that they did: workers of Ray have other names."""
    import psutil

    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found += psutil.Process(pid).children(recursive=True)
    return found


def _kill(processes: Iterable[Any]) -> None:
    """End processes that are still there, and wait until they are gone."""
    import psutil

    there = list(processes)
    for process in there:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(there, _END_SECONDS)
