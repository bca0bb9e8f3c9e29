"""Run the parts of the suite one after the other, each in a process with a time limit; print a line for each check that
fails and one for each part. The exit code is 1 if any fails.

    python -m benchmarks.accept --device cuda:0 --out FOLDER [--only PART ...] [--small]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.accept import parts
from benchmarks.accept.check import ROOT, Check, Target

from rung.core.errors import RungError
from rung.hardware.select import select_device

#: In the order in which they run: what the others divide by comes first.
NAMES = sorted(
    (each.name for each in pkgutil.iter_modules(parts.__path__)),
    key=lambda name: importlib.import_module(f"{parts.__name__}.{name}").ORDER,
)


def perform(name: str, target: Target) -> None:
    """Run a part in this process and write what it finds, after each check."""
    started, checks = time.monotonic(), list[Check]()
    error = ""

    def write(status: str) -> None:
        found = {
            "part": name,
            "device": target.name,
            "small": target.small,
            "status": status,
            "seconds": round(time.monotonic() - started, 1),
            "error": error,
            "checks": [{"name": each.name, "holds": each.holds, **each.facts} for each in checks],
        }
        path = target.folder / f"{name}.json"
        path.with_suffix(".part").write_text(json.dumps(found, indent=1, default=str) + "\n")
        os.replace(path.with_suffix(".part"), path)

    write("running")
    try:
        for check in importlib.import_module(f"{parts.__name__}.{name}").run(target):
            checks.append(check)
            write("running")
    except Exception:
        error = traceback.format_exc()
    failed = error or any(each.holds is False for each in checks)
    write("failed" if failed else "passed")


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a part in a child within its time limit; return what it wrote."""
    path, part = options.out / f"{name}.json", importlib.import_module(f"{parts.__name__}.{name}")
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.accept", "--device", options.device, "--out", str(options.out)]
    command += ["--part", name, *(["--small"] if options.small else [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    status, said = "", ""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=part.SECONDS, capture_output=True, text=True, check=False
        )
        said = done.stderr[-4000:]
        if done.returncode:
            status = f"ended with {done.returncode}"
    except subprocess.TimeoutExpired as late:
        status, said = f"killed after {part.SECONDS} s", str(late.stderr or "")[-4000:]
    found: dict[str, Any] = {"part": name, "device": options.device, "seconds": part.SECONDS, "error": "", "checks": []}
    if path.exists():
        found = json.loads(path.read_text())
    if status:
        found |= {"status": status, "error": found["error"] or said}
        path.write_text(json.dumps(found, indent=1) + "\n")
    return found


def show(found: dict[str, Any]) -> bool:
    """Print what a part found; return whether all of it holds."""
    checks = found["checks"]
    failed = [each for each in checks if each["holds"] is False]
    print(f"{found['part']:12} {found['status']}: {len(checks)} checks, {len(failed)} failed, {found['seconds']:.0f} s")
    for each in failed:
        print(f"  {each['name']}: {', '.join(f'{key} {value}' for key, value in each.items() if key not in _KNOWN)}")
    if found["error"]:
        print("  " + found["error"].strip().replace("\n", "\n  "))
    sys.stdout.flush()
    return found["status"] == "passed"


_KNOWN = ("name", "holds")


def main() -> None:
    """Run all parts, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="cpu, cuda:0, webgpu:0, ...")
    parser.add_argument("--out", type=Path, required=True, help="a folder for a JSON file of each part")
    parser.add_argument("--only", nargs="+", choices=NAMES, help="these parts alone")
    parser.add_argument("--small", action="store_true", help="small shapes: whether the suite itself works")
    parser.add_argument("--part", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        select_device(options.device)
    except RungError as error:
        parser.error(str(error))
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        perform(options.part, Target(options.device, options.small, options.out))
        return
    results = [show(run(name, options)) for name in options.only or NAMES]
    print(f"{sum(results)} of {len(results)} parts passed")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
