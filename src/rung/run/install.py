"""Installs into a virtual environment: resolved first without a change, then done by its own pip, then verified.

pip runs in a session of its own, so that a Ctrl-C reaches it once and not twice: it is asked to stop, puts back what it
was replacing, and only then this process goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rung.core.errors import SoftwareMissing, UsageError
from rung.core.types import Device
from rung.core.value import Value
from rung.hardware.software import installed_in
from rung.run import worker
from rung.run.environment import Environment
from rung.run.worker import Job, Outcome

#: The oldest Python that rung's probes run in, with the dtypes that are tried.
PROBED = (3, 11)
DTYPES = ("f32", "f16", "bf16")
#: Seconds that pip may take to stop after it has been asked to.
_PUT_BACK = 60.0
_LIMIT = 30.0
#: What pip says, what that means, and what to do. The first that is found counts: without a network it also says
#: that there is no such version.
_FAILURES = (
    (
        r"NewConnectionError|NameResolutionError|name resolution|Name or service not known|Max retries|timed? ?out"
        r"|ProxyError|Connection (?:refused|reset)|SSLError|No route to host|ReadTimeout",
        "{index} cannot be reached",
        "take an index that can be: rung setup --apply --index-url URL",
    ),
    (
        r"No matching distribution|Could not find a version",
        "{index} has no such build for this Python and system",
        "take the official index, or another: rung setup --apply --index-url URL",
    ),
    (r"No module named pip", "the environment has no pip", "{python} -m ensurepip --upgrade"),
    (r"no such option", "its pip is too old to try first", "{python} -m pip install --upgrade pip"),
    (
        r"externally[- ]managed",
        "the system's Python is managed by its packages",
        "python3 -m venv ENV, then rung setup --apply --venv ENV",
    ),
    (r"Permission denied|Read-only file system|EnvironmentError", "the environment cannot be written to", ""),
    (r"No space left", "the disk is full", "free space, then the same command again"),
    (r"ResolutionImpossible|conflicting dependencies", "packages ask for versions that exclude each other", ""),
)


@dataclass(frozen=True)
class Change(Value):
    """A package that would be installed; ``before`` is the version that is there now, empty for none."""

    package: str
    before: str
    after: str


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while pip was at work; its text says what is installed now."""


def may_change(environment: Environment, system: bool) -> None:
    """Raises ``UsageError`` for a Python that is no virtual environment, unless ``system``, or that is read-only."""
    if not environment.virtual and not system:
        raise UsageError(
            f"{environment.python} is no virtual environment; rung changes it only when told so.",
            ["what is installed there is shared with the system's programs"],
            ["python3 -m venv ENV", "rung setup --apply --venv ENV", "rung setup --apply --system"],
        )
    if not os.access(environment.folder, os.W_OK):
        raise UsageError(
            f"{environment.folder} cannot be written to.",
            ["nothing was changed"],
            ["python3 -m venv ENV, then rung setup --apply --venv ENV"],
            code="output-unwritable",
        )


def changes(environment: Environment, arguments: Sequence[str]) -> tuple[Change, ...]:
    """Return the changes that ``pip install`` with those arguments would make, resolved without making any.

    Raises ``SoftwareMissing`` with the reason when it would fail.
    """
    command = [*_pip(environment), "--quiet", "--dry-run", "--retries", "1", "--report", "-", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise _failed(environment, arguments, done.stderr, "nothing was changed")
    before = _versions(environment)
    found = (row["metadata"] for row in json.loads(done.stdout)["install"])
    return tuple(Change(row["name"], before.get(_plain(row["name"]), ""), row["version"]) for row in found)


def install(environment: Environment, arguments: Sequence[str]) -> None:
    """Runs ``pip install``; its progress goes to stderr. Raises ``SoftwareMissing``, ``Interrupted``."""
    own = {"start_new_session": True} if os.name == "posix" else {}
    process = subprocess.Popen([*_pip(environment), *arguments], stdout=2, **own)  # type: ignore[call-overload]
    try:
        code = process.wait()
    except KeyboardInterrupt:
        _stop(process)
        raise Interrupted(f"pip was stopped; {state(environment)}") from None
    if code:
        why = f"pip ended with status {code} and said why above"
        raise _failed(environment, arguments, "", f"{why}; {state(environment)}")


def state(environment: Environment) -> str:
    """Which torch is in the environment now."""
    at = installed_in(Path(environment.folder)).get("torch")
    return f"{environment.prefix} has torch {at}" if at else f"{environment.prefix} has no torch"


def verify(environment: Environment, device: Device | None) -> list[tuple[str, Outcome]]:
    """Matrices multiplied by the environment's torch on the device (the processor for None), compared with float64.

    A dtype and its outcome each: ``value`` is empty when the numbers are right. Empty for a Python older than
    ``PROBED``.
    """
    if tuple(int(part) for part in environment.version.split(".")) < PROBED:
        return []
    from rung.run.probe import marks

    prepare = Job.of(
        "rung.run.probes.start:start",
        kind=device.kind if device else "cpu",
        arch=device.arch if device else "",
        marks=marks(device) if device else {},
        threads=os.cpu_count() or 1,
    )
    jobs = [Job.of("rung.run.probes.values:matmul", dtype=dtype) for dtype in DTYPES]
    here = Path(environment.prefix).resolve() == Path(sys.prefix).resolve()
    outcomes = worker.run(jobs, _LIMIT, prepare=prepare, python=None if here else environment.python)
    return list(zip(DTYPES, outcomes, strict=True))


def _pip(environment: Environment) -> list[str]:
    return [environment.python, "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]


def _versions(environment: Environment) -> dict[str, str]:
    from importlib.metadata import distributions

    return {_plain(found.metadata["Name"]): found.version for found in distributions(path=[environment.folder])}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _failed(environment: Environment, arguments: Sequence[str], printed: str, state: str) -> SoftwareMissing:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "error"))] or lines
    found = next(((why, way) for pattern, why, way in _FAILURES if re.search(pattern, printed, re.IGNORECASE)), None)
    why, way = found or ("pip failed", "")
    index = arguments[arguments.index("--index-url") + 1] if "--index-url" in arguments else "the index"
    ways = [way.format(python=environment.python)] if way else [f"pip install {' '.join(arguments)}"]
    system = re.search(r"\[Errno -?\d+\] [^'\")]+", printed)
    facts = [system[0]] if system else [line[:300] for line in errors[-1:]]
    return SoftwareMissing(f"{arguments[0]} was not installed: {why.format(index=index)}.", [*facts, state], ways)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks pip once to stop and waits until it has put back what it was replacing; a second Ctrl-C ends it."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        process.wait(_PUT_BACK)
        return
    process.kill()
    process.wait()
