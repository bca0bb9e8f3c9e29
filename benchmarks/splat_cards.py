"""Training splats on simulated cards and on the processor: the same quality, and the rungs that were left for it.

    python benchmarks/splat_cards.py [--devices cpu sim:3060 ... --steps 300 --splats 2000 --size 96]

Runs ``rung splat train`` on its demo scene for each device and prints the PSNR of the test pictures, how far it is
from that of the first device, how long a step took, and each step down that the run reported.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DEVICES = ("cpu", "sim:3060", "sim:2080 Ti", "sim:P2200")


def trained(device: str, options: list[str]) -> dict[str, Any]:
    """The metrics of a run."""
    with tempfile.TemporaryDirectory() as name:
        call = [sys.executable, "-m", "rung", "splat", "train", "demo", "--out", str(Path(name) / "run"), "--json"]
        done = subprocess.run([*call, "--device", device, *options], stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def main() -> None:
    """Prints a line for each device, and one for each step down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", default=DEVICES)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--splats", type=int, default=2000)
    parser.add_argument("--size", type=int, default=96)
    arguments = parser.parse_args()
    options = [
        "--steps",
        str(arguments.steps),
        "--max-splats",
        str(arguments.splats),
        "--max-resolution",
        str(arguments.size),
    ]
    first: float | None = None
    for device in arguments.devices:
        found = trained(device, options)
        first = found["psnr"] if first is None else first
        print(
            f"{device}: {found['plan']['rung']}, PSNR {found['psnr']:.2f} dB ({found['psnr'] - first:+.2f}), "
            f"{found['seconds'] / found['steps']:.3f} s a step",
            flush=True,
        )
        for step in found["report"]["steps"]:
            print(f"  {step['rung']} -> {step['to']}: {step['reason']}", flush=True)


if __name__ == "__main__":
    main()
