"""A bundle of the demo, written once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import model, rung  # noqa: F401 - fixtures

#: The interpreter below the environment of the tests, which has no packages of its own to lean on.
PYTHON = getattr(sys, "_base_executable", sys.executable)
#: The system prompt that the bundle is made with.
SYSTEM = "Answer in one short sentence, name the device, and never guess what a card of the catalog could compute."


@pytest.fixture(scope="session")
def bundle(_cache, tmp_path_factory) -> Path:
    """The file, with the permissions that it is written with."""
    return write(tmp_path_factory.mktemp("bundle") / "demo.pyz", "--context", "256", "--system", SYSTEM)


def write(out: Path, *options: str) -> Path:
    """Write a bundle of the demo."""
    command = [sys.executable, "-P", "-m", "rung", "bundle", "demo", str(out), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return out


def start(bundle: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start a bundle as a person does, where the packages of the tests cannot be imported."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA"))}
    return subprocess.run(
        [PYTHON, str(bundle), *arguments],
        env=plain | environment,
        cwd=bundle.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
