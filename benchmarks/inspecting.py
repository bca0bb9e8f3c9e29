"""Compare ``rung inspect`` with cuobjdump, and measure time and memory of the largest archive.

usage: python benchmarks/inspecting.py --cuobjdump PATH [--scratch FOLDER] WHEEL_OR_LIBRARY...

Every library is read by both. cuobjdump is asked with -all, without which it shows the first object of a library only,
and gets a copy of a wheel's member, since it reads no archives. Where it fails or prints an error that is said, and
not counted as a difference. Time and peak memory are those of a process of its own that reads the whole file.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHILD = """
import resource, sys, time
from rung.cli.app import main
try:
    main(["inspect", sys.argv[1], "--json"])
finally:
    peak = resource.getrusage(resource.RUSAGE_SELF)
    print(peak.ru_maxrss * 1024, peak.ru_utime + peak.ru_stime, file=sys.stderr)
"""
LISTED = re.compile(r"^(?:ELF|PTX) file\s+\d+:.*?(?:sm|compute)_(\d+[af]?)\.(?:cubin|ptx)\s*$", re.MULTILINE)


def read(path: Path) -> tuple[dict[str, Any], float, float, int]:
    """Return rung's answer for a file, the seconds that passed, those of processor time, and peak memory in bytes."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=False)
    passed = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{path}: {done.stderr}")
    peak, used = done.stderr.split()[-2:]
    return json.loads(done.stdout), passed, float(used), int(peak)


def in_fatbins(library: dict[str, Any], kind: str) -> Counter[str]:
    """Targets of the images that cuobjdump lists, without their prefix: those in fatbins.

    cuobjdump 13.5 lists a cubin for sm_100f as one for sm_100.
    """
    found: Counter[str] = Counter()
    for item in library["objects"]:
        for image in item["images"]:
            if item["where"] in ("fatbin", "empty") and image["kind"] == kind:
                target = image["target"].split("_")[1]
                found[target.rstrip("f") if kind == "cubin" else target] += item["count"]
    return found


def by_cuobjdump(tool: str, file: Path) -> tuple[Counter[str], Counter[str], str]:
    """Cubins and PTX as cuobjdump lists them, and what it complains of."""
    lists, complaint = [], ""
    for option in ("--list-elf", "--list-ptx"):
        done = subprocess.run([tool, "-all", option, str(file)], capture_output=True, text=True, check=False)
        text = done.stdout + done.stderr
        lists.append(Counter(LISTED.findall(text)))
        for line in text.splitlines():
            if re.search(r"error|fatal|invalid|does not contain device code", line, re.IGNORECASE):
                complaint = line.strip()
    return lists[0], lists[1], complaint


def files(path: Path, names: list[str], scratch: Path) -> Iterator[tuple[str, Path]]:
    """The libraries of that name as files, one at a time."""
    if not zipfile.is_zipfile(path):
        yield names[0], path
        return
    with zipfile.ZipFile(path) as archive:
        for name in names:
            with tempfile.NamedTemporaryFile(dir=scratch, suffix=Path(name).suffix) as copy:
                with archive.open(name) as member:
                    shutil.copyfileobj(member, copy, 1 << 20)
                copy.flush()
                yield name, Path(copy.name)


def main() -> None:
    """Prints a line a library and a line a file; exits 1 when a list differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuobjdump", required=True)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("paths", type=Path, nargs="+")
    options = parser.parse_args()
    equal = differ = unread = 0
    for path in options.paths:
        answer, passed, used, peak = read(path)
        size = path.stat().st_size
        print(f"{path.name}: {size / 2**20:.0f} MB, {passed:.1f} s, {used:.1f} s of processor, {peak / 2**20:.0f} MB")
        libraries = {item["name"]: item for item in answer["libraries"] if item["cubins"] or item["ptx"]}
        for name, file in files(path, list(libraries), options.scratch):
            ours = in_fatbins(libraries[name], "cubin"), in_fatbins(libraries[name], "PTX")
            cubins, ptx, complaint = by_cuobjdump(options.cuobjdump, file)
            same = ours == (cubins, ptx)
            word = "equal" if same else f"cuobjdump: {complaint}" if complaint else "DIFFERS"
            equal, differ, unread = equal + same, differ + (word == "DIFFERS"), unread + (not same and bool(complaint))
            print(f"  {word:<8} {name}: {sum(cubins.values())} cubins, {sum(ptx.values())} PTX")
            if not same:
                print(f"    only rung: {ours[0] - cubins} {ours[1] - ptx}")
                print(f"    only cuobjdump: {cubins - ours[0]} {ptx - ours[1]}")
    print(f"{equal} libraries equal, {differ} different, {unread} that cuobjdump does not read")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
