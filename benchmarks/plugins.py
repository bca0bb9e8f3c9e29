"""Time of looking for plug-ins where there are none, beside importlib.metadata, which would find them without the scan.

    python benchmarks/plugins.py [--runs 7]

Each run is a fresh process, and the two alternate; medians in ms.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

SCAN = "from rung.core import plugins; work = lambda: list(plugins.accepted('rung.formats', lambda p, v: {}, bool))"
PEER = """
def work():
    from importlib.metadata import entry_points
    return [list(entry_points(group=group)) for group in ("rung.formats", "rung.architectures", "rung.rungs")]
"""
TIMED = "\nimport time\nstart = time.perf_counter()\nassert not any(work())\nprint((time.perf_counter() - start) * 1e3)"


def measure(code: str) -> float:
    """Return the milliseconds of ``work`` in a fresh process."""
    return float(
        subprocess.run([sys.executable, "-c", code + TIMED], capture_output=True, text=True, check=True).stdout
    )


def main() -> None:
    """Print both medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {"scan": [], "importlib.metadata": []}
    for _ in range(runs):
        times["scan"].append(measure(SCAN))
        times["importlib.metadata"].append(measure(PEER))
    for name, found in times.items():
        print(f"{name:20} {statistics.median(found):7.1f} ms   {min(found):.1f} to {max(found):.1f}")


if __name__ == "__main__":
    main()
