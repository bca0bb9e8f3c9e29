"""Size of an installation for language models on a CPU, and what its first answers cost.

    python benchmarks/install.py [--model smollm2.gguf] [--extra lean] [--turns 5]

Makes a virtual environment with ``.[lean]`` in a temporary folder (packages come from the index that pip is set up for)
and compares with the bars: MB of site-packages, no torch there, seconds of a first answer with no kernel compiled, and
CPU seconds of a start with kernels cached. ``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` make another processor of it.
Other programs on the machine stretch the wall time, and CPU seconds a little: the fastest start counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIZE_BAR, FIRST_BAR, START_BAR = 400, 15.0, 1.5


def build(folder: Path, extra: str) -> tuple[Path, float]:
    """Make an environment with rung and what the extra names, compiled as pip leaves it; return its site-packages, and
    the MB that were there before (pip)."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    before = megabytes(packages)
    requirements = ["-c", str(ROOT / "constraints.txt"), f"{ROOT}[{extra}]"]
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *requirements], check=True)
    return packages, before


def megabytes(folder: Path) -> float:
    """Return the size of the files below a folder on the disk, as ``du`` counts it, in MB of 2^20 bytes."""
    return sum(512 * path.lstat().st_blocks for path in folder.rglob("*")) / 2**20


def run(command: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """Return the wall and CPU seconds of a command and its children."""
    started, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, env=variables, capture_output=True)
    after = os.times()
    computed = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, computed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--extra", default="lean")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        venv = Path(temporary) / "venv"
        packages, before = build(venv, options.extra)
        size, has_torch = megabytes(packages), (packages / "torch").exists()
        print(
            f"site-packages  {size - before:.0f} MB more than before (bar {SIZE_BAR}), {size:.0f} in all; "
            f"torch: {'yes' if has_torch else 'no'}"
        )
        variables = os.environ | {"RUNG_CACHE": str(Path(temporary) / "cache")}
        command = [
            str(venv / "bin" / "rung"),
            "run",
            options.model,
            "What is the capital of Japan?",
            "--max-tokens",
            "8",
        ]
        wall, computed = run(command, variables)
        print(f"first answer   {wall:.1f} s, {computed:.1f} s of CPU, nothing compiled before (bar {FIRST_BAR:.0f} s)")
        starts = [run([*command[:-1], "1"], variables) for _ in range(options.turns)]
        best = min(computed for _, computed in starts)
        print(f"start          {best:.2f} s of CPU, kernels cached (bar {START_BAR} s); wall {min(starts)[0]:.2f} s")


if __name__ == "__main__":
    main()
