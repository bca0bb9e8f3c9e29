"""llama.cpp's own server tests, with ``rung serve`` in the place of llama-server.

    python -m benchmarks.server.llama_tests --python PYTHON [--tests FOLDER] [--only test_completion.py ...]

FOLDER is llama.cpp's tools/server/tests; without it the sdist of llama-cpp-python, which has one, is fetched by pip.
PYTHON is an interpreter that has what the tests import (their requirements.txt). Nothing of theirs is changed or kept:
an executable that they start as llama-server translates its options and runs ``rung serve`` of the demo, or of a tiny
encoder where they ask for embeddings. Tests that expect words of a certain model therefore fail. Prints the outcome of
each test and the sums of each file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

_SDIST = "llama-cpp-python==0.3.36"
_TESTS = "vendor/llama.cpp/tools/server/tests"
_ROOT = Path(__file__).parents[2]
#: Seconds that the tests of one file may take.
_FILE_SECONDS = 600
#: Options of llama-server whose value ``rung serve`` takes under another name.
_OPTIONS = {
    "--port": "--port",
    "--host": "--host",
    "--alias": "--alias",
    "--api-key": "--key",
    "--slot-save-path": "--slot-save-path",
    "--parallel": "--parallel",
}
#: Tokens that the demo holds.
_DEMO_CONTEXT = 512
#: Words in a repository or file of the hub that name an encoder.
_ENCODERS = ("bert", "jina", "embed")


def serve(given: Sequence[str]) -> None:
    """Become ``rung serve`` with the options of llama-server; those that it has not are left out."""
    values = dict(zip(given, [*given[1:], ""], strict=True))
    encodes = any(word in f"{values.get('--hf-repo')} {values.get('--hf-file')}" for word in _ENCODERS)
    model = os.environ["RUNG_TEST_ENCODER"] if encodes else "demo"
    command = [sys.executable, "-m", "rung", "serve", model, "--any-name"]  # llama-server looks at no name
    for theirs, ours in _OPTIONS.items():
        if theirs in values and not (encodes and theirs == "--parallel"):
            command += [ours, values[theirs]]
    if "--ctx-size" in values and not encodes:  # llama-server divides it among its slots
        context = int(values["--ctx-size"]) // int(values.get("--parallel", "1"))
        command += ["--context", str(min(context, _DEMO_CONTEXT))]
    os.execv(sys.executable, command)


def find_tests(folder: Path) -> Path:
    """Return the folder of tests in the sdist, which pip brings to ``folder``."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
        "-d",
        str(folder),
    ]
    subprocess.run([*command, _SDIST], check=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    return next(folder.glob(f"*/{_TESTS}"))


def run_file(python: str, tests: Path, name: str, environment: dict[str, str], work: Path) -> dict[str, str]:
    """Return the outcome of each test of a file: passed, failed, error, skipped; none where it took too long."""
    report = work / f"{name}.xml"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"unit/{name}", f"--junitxml={report}"]
    try:
        with open(work / f"{name}.log", "wb") as log:
            subprocess.run(
                command, cwd=tests, env=environment, stdout=log, stderr=log, timeout=_FILE_SECONDS, check=False
            )
    except subprocess.TimeoutExpired:
        return {}
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[case.get("name", "")] = {"failure": "failed"}.get(bad[0], bad[0]) if bad else "passed"
    return found


def main() -> int:
    """Run the tests; print outcomes."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tests", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    from tests import tiny_encoders

    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tests = given.tests or find_tests(work)
        encoder = work / "encoder"
        encoder.mkdir()
        tiny_encoders.write(encoder)
        shim = work / "llama-server"
        paths = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
        shim.write_text(
            f'#!/bin/sh\nPYTHONPATH="{paths}" exec "{sys.executable}" -m benchmarks.server.llama_tests --serve "$@"\n'
        )
        shim.chmod(0o755)
        environment = {**os.environ, "LLAMA_SERVER_BIN_PATH": str(shim), "RUNG_TEST_ENCODER": str(encoder)}
        for file in given.only or sorted(each.name for each in (tests / "unit").glob("test_*.py")):
            found = run_file(given.python, tests, file, environment, work)
            totals.update(found.values())
            print(f"{file:32} {dict(Counter(found.values())) or 'took too long'}", flush=True)
            for test, outcome in found.items():
                print(f"    {outcome:8} {test}")
    print(f"in all: {dict(totals)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
