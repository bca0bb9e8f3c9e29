"""Levels of ARM, and of x86 without AVX2, on emulated processors: what kernels compute is right.

``make test-emulated`` makes the system and runs this.

A processor that lacks an instruction ends the process that uses it, so a level proves which instructions it needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.emulation import checks, system
from tests.emulation.guest import SOCKET

pytestmark = pytest.mark.slow
NAMES = [name for name, _ in checks.checks()]
#: Seconds that the checks of one processor may take.
LIMIT = 2400
Results = dict[str, Any]


def run(emulated: system.System, core: system.Core, folder: Path) -> Results:
    """Run all checks on one processor while another process compiles for it; what each found wrong, by name."""
    socket = str(folder / core.level)
    environment = {"RUNG_CACHE": str(folder / "cache"), SOCKET: socket}
    command = [sys.executable, "-m", "tests.emulation.compiler", socket, core.level]
    if core.arch == "x86_64":
        command += emulated.run(core, ["-m", "tests.emulation.compiler"], LIMIT).stdout.splitlines()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=compiler_environment(folder)) as compiler:
        try:
            assert compiler.stdout is not None
            assert compiler.stdout.readline() == "ready\n"
            done = emulated.run(core, ["-m", "tests.emulation.checks"], LIMIT, environment)
        finally:
            compiler.kill()
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found: Results = {line["check"]: line["wrong"] for line in lines[1:]}
    ended = f"ended with {done.returncode} before: {done.stdout[-500:]}{done.stderr[-2000:]}"
    return {name: found.get(name, ended) for name in NAMES} | {"first": lines[0] if lines else ended}


def compiler_environment(folder: Path) -> dict[str, str]:
    """Return the environment of the process that compiles."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    return kept | {"RUNG_CACHE": str(folder / "cache")}


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Results]]]:
    """Return the findings of each level while its checks run, two at a time."""
    try:
        emulated = system.find()
    except system.Unavailable as error:
        pytest.skip(f"no emulated processors: {error}")
    with ThreadPoolExecutor(2) as pool:
        yield {
            level: pool.submit(run, emulated, core, tmp_path_factory.mktemp(level))
            for level, core in system.cores().items()
        }


@pytest.mark.parametrize("level", system.cores())
def test_the_level_is_that_of_the_processor(level: str, results: dict[str, Future[Results]]) -> None:
    first = results[level].result()["first"]
    assert first["level"] == level, first
    assert ("dotprod" in first["features"]) == (level in ("neon_dotprod", "neon_i8mm"))
    assert ("avx" in first["features"]) == (level == "avx")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", system.cores())
def test_right(level: str, name: str, results: dict[str, Future[Results]]) -> None:
    assert results[level].result()[name] == ""
