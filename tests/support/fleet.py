"""Machines of a fleet: processes, each in a network namespace of its own with an address. They need root, and Linux."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: Seconds in which a node has to be there.
_START_SECONDS = 180.0
_NET = "10.93.7"

#: Asks a server in its namespace: a time and a body a line on standard input; an answer a line.
_CLIENT = """
import asyncio, json, re, sys, time
FIRST = re.compile(rb'"content": ?"[^"]')
async def ask(body, at, begun):
    await asyncio.sleep(begun + at - time.monotonic())
    begun += at
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", 8080)
    writer.write(b"POST " + sys.argv[1].encode() + b" HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n"
                 b"Content-Length: %d\\r\\n\\r\\n" % len(data) + data)
    first, parts = None, []
    try:
        while part := await reader.read(65536):
            if first is None and FIRST.search(part):
                first = time.monotonic() - begun
            parts.append(part)
    except OSError:
        pass
    writer.close()
    head, _, content = b"".join(parts).partition(b"\\r\\n\\r\\n")
    status = int(head.split()[1]) if head else 0
    return {"status": status, "seconds": time.monotonic() - begun, "first": first, "content": content.decode()}
async def main():
    bodies = [json.loads(line) for line in sys.stdin]
    begun = time.monotonic()
    for each in await asyncio.gather(*(ask(body, at, begun) for at, body in bodies)):
        print(json.dumps(each))
asyncio.run(main())
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True)


@contextlib.contextmanager
def namespaces(count: int, prefix: str) -> Iterator[list[str]]:
    """Namespaces that reach each other over a bridge: number k has the address ``_NET``.k."""
    names = [f"{prefix}{k}" for k in range(1, count + 1)]
    created = []
    try:
        run("ip", "netns", "add", f"{prefix}b")
        created.append(f"{prefix}b")
        run("ip", "-n", f"{prefix}b", "link", "add", "name", "hub0", "type", "bridge")
        run("ip", "-n", f"{prefix}b", "link", "set", "hub0", "up")
        for k, name in enumerate(names, 1):
            run("ip", "netns", "add", name)
            created.append(name)
            run("ip", "-n", name, "link", "add", "e0", "type", "veth", "peer", "name", f"p{k}", "netns", created[0])
            run("ip", "-n", created[0], "link", "set", f"p{k}", "master", "hub0", "up")
            run("ip", "-n", name, "addr", "add", f"{_NET}.{k}/24", "dev", "e0")
            run("ip", "-n", name, "link", "set", "e0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in created:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Machine:
    """A namespace with a folder of its own, in which ``rung`` is called."""

    def __init__(self, namespace: str, address: str, folder: Path) -> None:
        self.namespace, self.address, self.folder = namespace, address, folder
        self.said_file = folder / f"{namespace}.said"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, sys.executable, "-P", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RUNG_FLEET": str(self.folder / self.namespace)}
        return {**os.environ, **own}

    def rung(self, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        return self.rung_python("-m", "rung", *arguments, seconds=seconds)

    def rung_python(self, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run Python as a part of this machine's fleet."""
        command = self.command(*arguments)
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds, env=self.environment
        )

    def python(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
        command = self.command("-c", code)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)

    def start(self, *arguments: str) -> None:
        """Begin ``rung fleet``; what an earlier one said is forgotten."""
        with open(self.said_file, "wb") as file:
            command = self.command("-m", "rung", "fleet", *arguments)
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=self.environment)

    def said(self) -> str:
        return self.said_file.read_text("utf-8", "replace") if self.said_file.exists() else ""

    def wait_for(self, pattern: str) -> str:
        until = time.monotonic() + _START_SECONDS
        while not (found := re.search(pattern, self.said())):
            assert time.monotonic() < until, self.said()
            assert self.process is None or self.process.poll() is None, self.said()
            time.sleep(0.05)
        return found[found.lastindex or 0]

    def ask(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """Status and text of a call of the server in this namespace, made inside it."""
        (found,) = self.ask_all([body], path)
        return found["status"], found["content"]

    def ask_all(
        self, bodies: Sequence[dict[str, Any]], path: str = "/v1/chat/completions", at: Sequence[float] = ()
    ) -> list[dict[str, Any]]:
        """The answers to bodies that are sent at once, or ``at`` these seconds: status, seconds, and content."""
        lines = "\n".join(map(json.dumps, zip(at or [0.0] * len(bodies), bodies, strict=True)))
        command = self.command("-c", _CLIENT, path)
        done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=300)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def processes(self) -> list[int]:
        """The processes in this namespace."""
        return list(map(int, run("ip", "netns", "pids", self.namespace).stdout.split()))

    def kill(self) -> None:
        """End all of this machine's processes at once, as a loss of power does."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(30)

    def link(self, state: str) -> None:
        """Cut this machine off (``down``), without a word to anybody, or connect it again (``up``)."""
        run("ip", "-n", self.namespace, "link", "set", "e0", state)

    def replicas(self) -> list[int]:
        """The processes that have a model here."""
        return self.processes_named("ray::ServeReplica")

    def processes_named(self, name: str) -> list[int]:
        """The processes here whose command, the name of a program without its folder, begins so."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                program = file.read().partition(b"\0")[0]
                found += [pid] * any(each.startswith(name.encode()) for each in (program, program.rpartition(b"/")[2]))
        return found


def machines_of(names: list[str], folder: Path) -> list[Machine]:
    """A machine for each namespace."""
    return [Machine(name, f"{_NET}.{k}", folder) for k, name in enumerate(names, 1)]
