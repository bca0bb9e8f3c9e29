"""A batch over the nodes of a fleet in which every process is killed once: is each line answered exactly once?

    python -m benchmarks.fleet.batch [--lines 10000] [--tokens 4] [--gap 4]

``rung batch --fleet`` answers lines of the demo with two nodes. Every ``--gap`` seconds another process is killed (-9):
the command itself, those that have the model, Ray's on both nodes and on the head, those of ``rung fleet join`` and
``up``. What has ended is begun again with the same command, as somebody would. At the end OUT must have an answer to
each line, once, as one without kills has it. Needs root, Linux and Ray; exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.support.fleet import Machine, machines_of, namespaces

#: Processes by a word of their commands: each is killed on each machine that has it.
_KINDS = ("ray::ServeReplica", "engine_child", "raylet/raylet", "gcs_server", "ray::ServeController", "rung fleet")


def find(machine: Machine, kind: str) -> int | None:
    """Return a process of a kind on a machine; ``rung fleet`` is the one that was started there."""
    if kind == "rung fleet":
        return None if machine.process is None else machine.process.pid
    for pid in machine.processes():
        with contextlib.suppress(OSError):
            if kind.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "):
                return pid
    return None


class Batch:
    """The command, which is begun again whenever it has ended before all is answered."""

    def __init__(self, machine: Machine, lines: Path, out: Path) -> None:
        self._machine, self._log = machine, out.with_suffix(".said")
        self._arguments = ("-m", "rung", "batch", str(lines), str(out), "--fleet")
        self.begins = 0
        self.begin()

    def begin(self) -> None:
        """Begin it."""
        self.begins += 1
        with open(self._log, "ab") as file:
            command = self._machine.command(*self._arguments)
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=self._machine.environment)

    def is_over(self) -> bool:
        """Return whether it has answered all; begin it again where it ended otherwise."""
        code = self.process.poll()
        if code:
            time.sleep(1)
            self.begin()
        return code == 0

    def said(self) -> str:
        """Return its output."""
        return self._log.read_text("utf-8", "replace")


def is_well(head: Machine) -> bool:
    """Return whether the head answers."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return head.rung("fleet", "status", seconds=20).returncode == 0
    return False


def revive(machine: Machine, begin: Callable[[], None]) -> None:
    """Begin the command of a machine again where it has ended, once its processes have."""
    if machine.process is not None and machine.process.poll() is not None:
        begin()


def kill_all(machines: list[Machine], batch: Batch, gap: float, begins: list[Callable[[], None]]) -> Counter[str]:
    """Kill one process after the other; return how many of each kind."""
    killed = Counter[str]()
    todo = [(machine, kind) for kind in _KINDS for machine in machines]
    if batch.process.poll() is None:
        os.kill(batch.process.pid, signal.SIGKILL)
        killed["rung batch"] += 1
    tries = Counter[tuple[str, str]]()
    while todo and not batch.is_over():
        time.sleep(gap)
        for machine, begin in zip(machines, begins, strict=True):
            revive(machine, begin)
        if not is_well(machines[0]):
            continue
        machine, kind = todo.pop(0)
        if (pid := find(machine, kind)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed[kind] += 1
                print(f"killed {kind} on {machine.namespace}", flush=True)
        elif tries[machine.namespace, kind] < 5:
            tries[machine.namespace, kind] += 1
            todo.append((machine, kind))
    return killed


def main() -> None:
    """Answer, kill, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--gap", type=float, default=4.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, namespaces(2, "bb") as names, contextlib.ExitStack() as stack:
        machines = machines_of(names, Path(folder))
        head, node = machines
        lines, out = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        options = {"max_tokens": arguments.tokens, "temperature": 1}
        rows = [{"prompt": f"number {k}", "seed": k, **options} for k in range(arguments.lines)]
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
        up = ("up", "demo", "--address", head.address, "--name", "one", "--context", "512")
        for machine in machines:
            stack.callback(machine.stop)
        head.start(*up)
        token = head.wait_for(r"--token (\S+)")
        node.start("join", head.address, "--token", token, "--name", "two")
        head.wait_for("is ready on one")
        head.wait_for("is ready on two")

        def join() -> None:
            token = ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                token = head.rung("fleet", "token", seconds=20).stdout.strip()
            if token:
                node.start("join", head.address, "--token", token, "--name", "two")

        begun = time.monotonic()
        batch = Batch(head, lines, out)
        time.sleep(arguments.gap)
        begins = [lambda: head.start(*up), join]
        killed = kill_all(machines, batch, arguments.gap, begins)
        until = time.monotonic() + 900
        while not batch.is_over():
            for machine, begin in zip(machines, begins, strict=True):
                revive(machine, begin)
            if time.monotonic() > until:
                print(batch.said()[-2000:], head.said()[-2000:], node.said()[-2000:], file=sys.stderr)
                sys.exit(1)
            time.sleep(1)
        seconds = time.monotonic() - begun
        whole = out.with_name("whole.jsonl")
        alone = head.rung("batch", str(lines), str(whole), "--model", "demo", "--context", "512", seconds=900)
        answers, expected = ([json.loads(row) for row in path.read_text().splitlines()] for path in (out, whole))
    words = ", ".join(f"{count} {kind}" for kind, count in killed.items())
    print(f"{len(answers):,} answers in {seconds:.0f} s; killed: {words}; the command was begun {batch.begins} times")
    counts, texts = Counter(each["line"] for each in answers), {each["line"]: each.get("text") for each in expected}
    once, errors = sum(counts[line] == 1 for line in texts), sum("error" in each for each in answers)
    same = sum(each.get("text") == texts.get(each["line"]) for each in answers)
    print(f"{once:,} of {arguments.lines:,} lines are answered exactly once, {errors} of them with an error;")
    print(f"{same:,} texts are those of one machine without kills ({alone.returncode}: {len(texts):,} answers)")
    sys.exit(not once == len(answers) == arguments.lines or errors > 0)


if __name__ == "__main__":
    main()
