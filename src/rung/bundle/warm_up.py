"""Prepare what a bundle has ready: the kernels that its model runs on, and what its system prompt computed.

Kernels are machine code of one kind of processor; another kind compiles its own. Keys and values of a prompt are of one
model and one way to compute: elsewhere they are not found, and computed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rung.bundle import start
from rung.bundle.archive import Member
from rung.bundle.packages import Package
from rung.core.settings import CACHE
from rung.core.version import PACKAGE
from rung.kernels.cpu.target import sources_hash

#: How a child finds rung: where this process does.
_CHILD = (
    "import json, runpy, sys; sys.path[:], sys.argv[1:] = json.loads(sys.argv[1]); "
    "runpy.run_module('rung', run_name='__main__')"
)
#: Seconds that a model has for its first token: kernels are compiled and proved.
_SECONDS = 600


@dataclass(frozen=True)
class WarmedUp:
    """The files that are ready, by their places; ``problem`` says why there are none."""

    members: tuple[Member, ...] = ()
    problem: str = ""

    @property
    def prefix_bytes(self) -> int:
        """Return the bytes of the keys and values of prompts."""
        return sum(path.stat().st_size for name, path in self.members if name.parts[0] == "prefixes")


def warm_up(
    model: Path, packages: Sequence[Package], options: Sequence[str], system: str | None, folder: Path
) -> WarmedUp:
    """Run a model for a token in a child process that has ``packages`` and no others, as a bundle; return the kernels
    that are compiled then, and, kept in ``folder``, the keys and values of ``system``. Raises ``OSError``."""
    arguments = ["run", str(model), "Hello", "--max-tokens", "1", "--quiet", *options]
    if system is not None:
        arguments += ["--system", system, "--prefix-cache", str(folder)]
    path = [str(_linked(packages, folder / "packages")), *start.standard_library(sys.path)]
    command = [sys.executable, "-P", "-c", _CHILD, json.dumps([path, arguments])]
    try:
        output = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return WarmedUp(problem=f"it did not answer within {_SECONDS} s")
    if output.returncode:
        return WarmedUp(problem=next(iter(output.stderr.strip().splitlines()), f"it ended with {output.returncode}"))
    kernels = CACHE.read() / "kernels" / sources_hash()
    found = [(PurePosixPath("kernels", path.relative_to(kernels.parent).as_posix()), path) for path in _below(kernels)]
    found += [(PurePosixPath("prefixes", path.name), path) for path in sorted(folder.glob("*.kv"))]
    return WarmedUp(tuple(found))


def _linked(packages: Sequence[Package], folder: Path) -> Path:
    """Make a folder of links to rung and packages, so that nothing else is found; return it."""
    folders = {"rung": PACKAGE}
    for package in packages:
        for name in {path.parts[0] for path, _ in package.files()}:
            folders[name] = Path(str(package.distribution.locate_file(name)))
    folder.mkdir()
    for name, origin in folders.items():
        (folder / name).symlink_to(origin.absolute(), origin.is_dir())
    return folder


def _below(folder: Path) -> list[Path]:
    return sorted(
        Path(parent, name) for parent, _, names in os.walk(folder) for name in names if name.endswith(("nbi", "nbc"))
    )
