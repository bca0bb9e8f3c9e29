"""Seconds and modules that the commands cost which must answer at once.

    python benchmarks/startup.py [--turns 7]

The time is that of the whole process, the first one of a command left out (its files are not in the page cache, its
modules not compiled); CPU seconds are those of the fastest one, which a busy machine does not stretch as much; modules
are what is in ``sys.modules`` at the end. Compiled modules are kept, as those of an installed package are.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from os import environ, times

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("--version",),
    ("devices",),
    ("run", "--help"),
    ("formats",),
    ("check", "llama 3.1 8b", "--device", "4090", "--offline"),
    ("check", "8b", "--device", "4090"),
    ("check", "--device", "4090"),
)
BAR, IMPORT_BAR = 0.3, 0.1
HEAVY = ("torch", "numba", "triton", "transformers", "numpy")
COUNT = """
import atexit, sys
def count():
    heavy = [name for name in {heavy!r} if name in sys.modules]
    print(len(sys.modules), *heavy, file=sys.stderr)
atexit.register(count)
from rung.cli.app import main
sys.argv = ["rung", *{arguments!r}]
main()
"""


def seconds(arguments: tuple[str, ...], turns: int, variables: dict[str, str]) -> tuple[list[float], float]:
    """Wall time of Python with these arguments, once per turn, and the least CPU time of one."""
    taken, computed = [], []
    for _ in range(turns + 1):
        started, before = time.perf_counter(), times()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True, env=variables)
        taken.append(time.perf_counter() - started)
        after = times()
        computed.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return taken[1:], min(computed[1:])


def modules(arguments: tuple[str, ...], variables: dict[str, str]) -> tuple[int, list[str]]:
    """How many modules are loaded at the end, and which of the heavy ones."""
    program = COUNT.format(heavy=HEAVY, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables)
    count, *heavy = done.stderr.splitlines()[-1].split()
    return int(count), heavy


def main() -> None:
    """Print one row per command, ``devices`` once more with an empty cache, and what ``import rung`` costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    print(
        f"| command | median s | fastest s | CPU s | < {BAR} s | modules | heavy ones |\n|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as empty:
        kept = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        kept["PYTHONPYCACHEPREFIX"] = f"{empty}/compiled"
        cases = [(command, "", kept) for command in COMMANDS]
        cases.append((("devices",), " (no cache)", {**kept, "RUNG_CACHE": empty}))
        for command, note, variables in cases:
            taken, computed = seconds(("-m", "rung", *command), turns, variables)
            count, heavy = modules(command, variables)
            median = statistics.median(taken)
            print(
                f"| rung {' '.join(command)}{note} | {median:.3f} | {min(taken):.3f} | {computed:.3f} "
                f"| {'yes' if median < BAR else 'no'} | {count} | {', '.join(heavy) or 'none'} |"
            )
    bare, with_rung = (
        statistics.median(seconds(("-c", code), turns, dict(environ))[0]) for code in ("pass", "import rung")
    )
    cost = with_rung - bare
    met = "yes" if cost < IMPORT_BAR else "no"
    print(f"\nimport rung: {with_rung:.3f} s, {cost:.3f} of them beside Python's own; < {IMPORT_BAR} s: {met}")


if __name__ == "__main__":
    main()
