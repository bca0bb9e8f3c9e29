"""Python environments that are not this process: which Python they have, and whether they may be changed."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from rung.core.errors import UsageError
from rung.core.text import quoted
from rung.core.value import Value

#: What is asked of an interpreter; this one evaluates it, others print it. Understood by Python 3.6.
_FACTS = (
    "[sys.executable, sys.prefix, sys.base_prefix, '%d.%d' % sys.version_info[:2], "
    "sysconfig.get_path('purelib'), platform.system(), platform.machine()]"
)
_SYSTEMS = {"Linux": "linux", "Windows": "windows", "Darwin": "macos"}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
#: Seconds that an interpreter may take to answer.
_PATIENCE = 30.0


@dataclass(frozen=True)
class Environment(Value):
    """An interpreter (path and ``3.12``) with the folder that packages are installed in; ``virtual`` where changing it
    touches no other program: a venv, or a conda environment beside the base. ``system`` and ``machine`` as in
    ``rung.software.companions.Host``."""

    python: str
    prefix: str
    version: str
    virtual: bool
    folder: str
    system: str
    machine: str


def current() -> Environment:
    """The virtual environment that the user is in, else the one of this process."""
    active = os.environ.get("VIRTUAL_ENV")
    if active and Path(active).resolve() != Path(sys.prefix).resolve():
        return at(active)
    return environment_from(eval(_FACTS, {"sys": sys, "sysconfig": sysconfig, "platform": platform}))


def _room(path: Path) -> str:
    """Where an environment can be made: in that folder, beside what somebody keeps in it in none."""
    return "ENV" if path.is_dir() and any(path.iterdir()) else quoted(str(path))


def at(path: str) -> Environment:
    """The environment in that folder, or of that interpreter. Raises ``UsageError`` when nothing there runs."""
    path_expanded = Path(path).expanduser()
    candidates = (
        [path_expanded]
        if path_expanded.is_file()
        else [path_expanded / "bin" / "python", path_expanded / "Scripts" / "python.exe"]
    )
    python = next((candidate for candidate in candidates if candidate.is_file()), None)
    if python is None:
        cause = (
            f"{path} is no virtual environment: it has no bin/python."
            if path_expanded.exists()
            else f"There is no {path}."
        )
        raise UsageError(cause, ways_out=[f"python3 -m venv {_room(path_expanded)}"])
    # not resolved: the interpreter of a venv is a link, and the way to it decides what it imports
    code = f"import json, platform, sys, sysconfig; print(json.dumps({_FACTS}))"
    command = [os.path.abspath(python), "-I", "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True)
        return environment_from(json.loads(done.stdout))
    except subprocess.CalledProcessError as error:
        last_line = (error.stderr.strip().splitlines() or [f"it ended with status {error.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        last_line = f"it did not answer within {_PATIENCE:.0f} s"
    except (OSError, ValueError) as error:
        last_line = str(error)
    raise UsageError(f"{python} is no Python that runs.", [last_line], [f"python3 -m venv --clear {quoted(path)}"])


def environment_from(facts: list[str]) -> Environment:
    """Return the environment that the lines of a child process state."""
    python, prefix, base, version, folder, system, machine = facts
    conda = Path(prefix, "conda-meta").is_dir() and not Path(prefix, "condabin").is_dir()
    return Environment(
        python=python,
        prefix=prefix,
        version=version,
        virtual=prefix != base or conda,
        folder=folder,
        system=_SYSTEMS.get(system, system.lower()),
        machine=_MACHINES.get(machine.lower(), machine.lower()),
    )
