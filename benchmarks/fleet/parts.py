"""Start a fleet, hold its nodes to a share of a core, and ask it many things at once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.fleet import Machine, machines_of, namespaces

from rung.hardware import json_cache

#: Where the first version of control groups has the shares of a core, and a period in microseconds.
_GROUPS, _PERIOD = Path("/sys/fs/cgroup/cpu"), 20_000


def chat(number: int, tokens: int, words: str = "number") -> dict[str, Any]:
    """Return a question whose answer is drawn by a seed."""
    messages = [{"role": "user", "content": f"{words} {number}"}]
    return {"messages": messages, "max_tokens": tokens, "temperature": 1, "seed": number}


def streamed(body: dict[str, Any]) -> dict[str, Any]:
    """Return a question whose answer comes token by token, with how many there were at its end."""
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def text(answer: dict[str, Any]) -> str:
    """Return the text of an answer; empty where there is none."""
    if answer["status"] != 200:
        return ""
    return str(json.loads(answer["content"])["choices"][0]["message"]["content"])


def tokens(answers: Sequence[dict[str, Any]]) -> int:
    """Return how many tokens answers have, streamed or not."""
    found = 0
    for each in answers:
        counts = re.findall(r'"completion_tokens":\s*(\d+)', each["content"]) if each["status"] == 200 else []
        found += int(counts[-1]) if counts else 0
    return found


def p95(values: Iterable[float]) -> float:
    """Return the 95th percentile, as the simulator takes it."""
    found = sorted(values)
    return found[int(0.95 * (len(found) - 1))]


def hold(machine: Machine, share: float) -> Path:
    """Give all processes that a machine runs now, and what they start, no more than a share of a core; return their
    group."""
    group = _GROUPS / f"rung-{machine.namespace}"
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
    (group / "cpu.cfs_quota_us").write_text(str(int(_PERIOD * share)))
    for pid in machine.processes():
        with contextlib.suppress(OSError):
            (group / "cgroup.procs").write_text(str(pid))
    return group


@contextlib.contextmanager
def _limited(machine: Machine, share: float) -> Iterator[None]:
    """Give a machine that runs no more than a share of a core; end it."""
    group = hold(machine, share)
    try:
        yield
    finally:
        machine.stop()
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def fleet(nodes: int, *options: str, model: str = "demo", shares: Sequence[float] = ()) -> Iterator[list[Machine]]:
    """Run a head that computes nothing, and nodes; yield the head and them, which have these shares of a core."""
    os.environ.setdefault("RUNG_MODELS", tempfile.mkdtemp())
    with (
        tempfile.TemporaryDirectory() as folder,
        namespaces(nodes + 1, f"bf{os.getpid() % 10000}") as names,
        contextlib.ExitStack() as stack,
    ):
        head, *others = machines = machines_of(names, Path(folder))
        stack.callback(head.stop)
        head.start(
            "up", model, "--address", head.address, "--name", "head", "--head-only", "--context", "512", *options
        )
        token = head.wait_for(r"--token (\S+)")
        for number, node in enumerate(others, 1):
            stack.callback(node.stop)
            node.start("join", head.address, "--token", token, "--name", f"n{number}")
            head.wait_for(f"is ready on n{number}:")
            token = head.rung("fleet", "token").stdout.strip()
        for node, share in zip(others, shares, strict=bool(shares)):
            stack.enter_context(_limited(node, share))
        yield machines


def measure_again(head: Machine, nodes: Sequence[Machine]) -> None:
    """Return when all nodes are measured with the shares of a core that they have now.

    Replicas are begun again, which an idle head measures after some seconds; what earlier runs left is forgotten.
    """
    for path in json_cache.folder().glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.read_text())["key"].get("kind") == "fleet-rates":
                path.unlink()
    before = _rates(head)
    for node in nodes:
        kill_replica(node)
    head.wait_for("(?s)" + "is lost.*" * len(nodes))
    wait_ready(head, len(nodes))
    until = time.monotonic() + 300
    while any(now == old for now, old in zip(_rates(head), before, strict=True)):
        if time.monotonic() > until:
            raise TimeoutError("the nodes are not measured again")
        time.sleep(1.0)


def _rates(head: Machine) -> list[dict[str, float]]:
    """Return the rates that each node was measured at."""
    return [dict(each["models"][0]["rates"]) for each in status(head)["nodes"] if each["models"]]


def kill_replica(machine: Machine) -> None:
    """Kill the process that has the model on a machine."""
    for pid in machine.replicas():
        os.kill(pid, signal.SIGKILL)


def rejoin(head: Machine, machine: Machine, name: str) -> None:
    """Have a machine join that was lost, once the head knows that it is."""
    machine.stop()
    until = time.monotonic() + 60
    while any(each["report"]["name"] == name and each["state"] == "up" for each in status(head)["nodes"]):
        if time.monotonic() > until:
            raise TimeoutError(f"{name} is not lost")
        time.sleep(0.2)
    token = head.rung("fleet", "token").stdout.strip()
    machine.start("join", head.address, "--token", token, "--name", name)


def leave(node: Machine) -> None:
    """Take a node out of the fleet."""
    node.rung("fleet", "leave")
    assert node.process is not None
    node.process.wait(60)


def one_by_one(head: Machine, nodes: Sequence[Machine], shares: Sequence[float]) -> Iterator[int]:
    """Yield the number of each node while no other one is in the fleet, held to its share of a core."""
    for node in nodes[1:]:
        leave(node)
    yield 0
    for number in range(1, len(nodes)):
        token = head.rung("fleet", "token").stdout.strip()
        nodes[number].start("join", head.address, "--token", token, "--name", f"again{number}")
        head.wait_for(f"is ready on again{number}:")
        leave(nodes[number - 1])
        hold(nodes[number], shares[number])
        yield number


def status(head: Machine) -> dict[str, Any]:
    """Return the state of the fleet, of a head that has been busy when it has answered."""
    until = time.monotonic() + 60
    while "nodes" not in (found := json.loads(head.rung("fleet", "status", "--json").stdout)):
        if time.monotonic() > until:
            raise TimeoutError(found)
    return dict(found)


def wait_ready(head: Machine, count: int, seconds: float = 300.0) -> None:
    """Return when so many nodes have the model."""
    until = time.monotonic() + seconds
    while sum(each["models"][0]["state"] == "ready" for each in status(head)["nodes"] if each["models"]) < count:
        if time.monotonic() > until:
            print(head.said(), file=sys.stderr)
            raise TimeoutError("the nodes are not ready")
        time.sleep(0.2)
