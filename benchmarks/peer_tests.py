"""bitsandbytes' own tests with rung's kernels in place: what passes, and how many calls of its operators reach rung.

    python benchmarks/peer_tests.py FOLDER [FILE ...] [-k EXPRESSION]

FOLDER is a checkout of bitsandbytes, of which tests/ is needed; the installed package is what is tested, on the CPU.
Without files the six are run that test operators, layers and gradients; each in a process of its own, and where a test
fails again without rung. Prints how many tests pass, by file; those that pass only without rung; and the calls of all
operators of bitsandbytes, with those that rung computed.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

_FILES = ("test_ops", "test_modules", "test_linear4bit", "test_autograd", "test_parametrize", "test_functional")
_KEY = "BackendSelect"

Counts = collections.Counter[str]


class Passed:
    """A plugin of pytest that keeps the names of tests that passed, and counts the outcomes of all."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.outcomes: Counts = collections.Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called for each phase of a test; a test that is skipped has no call, one that fails to set up neither."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.when == "call" and report.outcome == "passed":
            self.names.add(report.nodeid)


def count(calls: Counts) -> torch.library.Library:
    """Counts calls with tensors of the CPU, before the dispatcher chooses a kernel; as long as the library lives."""
    library = torch.library.Library("bitsandbytes", "IMPL", _KEY)
    below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        if space != "bitsandbytes":
            continue
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.bitsandbytes, packet), overload or "default")

        def counted(keys: Any, *args: Any, op: Any = op, name: str = name, **kwargs: Any) -> Any:
            if any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in args):
                calls[name] += 1
            return op._handle.redispatch_boxed(keys & below, *args, **kwargs)

        library.impl(name, counted, with_keyset=True)
    return library


def counting(name: str, kernel: Any, reached: Counts) -> Any:
    """A kernel that counts its calls."""

    def run(*args: Any, **kwargs: Any) -> Any:
        reached[name] += 1
        return kernel(*args, **kwargs)

    return run


def run(folder: Path, file: str, chosen: str, plain: bool) -> tuple[Passed, Counts, Counts]:
    """The outcomes of a file's tests, the calls of operators, and those that reached rung."""
    os.chdir(folder)
    os.environ["BNB_TEST_DEVICE"] = "cpu"
    sys.path.insert(0, os.getcwd())

    import bitsandbytes  # noqa: F401 (its operators must be there to be counted)

    from rung.hub import bitsandbytes as hub
    from rung.hub.bitsandbytes.kernels import KERNELS

    calls, reached, passed = collections.Counter[str](), collections.Counter[str](), Passed()
    counter = count(calls)
    if not plain:
        for name, kernel in list(KERNELS.items()):
            KERNELS[name] = counting(name, kernel, reached)
        hub.install()
    skipped = "not slow and not benchmark and not deprecated"
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-m", skipped, "-k", chosen]
    pytest.main([*options, "--override-ini=addopts=", "--override-ini=log_cli=false", file], [passed])
    del counter
    return passed, calls, reached


def apart(*arguments: Any, plain: bool) -> tuple[Passed, Counts, Counts]:
    """Call ``run`` in a process of its own and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, (*arguments, plain))


def summary(passed: Passed) -> str:
    """The outcomes in words."""
    return ", ".join(f"{number} {what}" for what, number in sorted(passed.outcomes.items()))


def main() -> None:
    """Runs the tests and prints the tables; exits with 1 where a test passes only without rung."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", default=[f"tests/{name}.py" for name in _FILES])
    parser.add_argument("-k", dest="chosen", default="")
    chosen = parser.parse_intermixed_args()
    lost: list[str] = []
    calls, reached = collections.Counter[str](), collections.Counter[str]()
    print(f"{'file':28} with rung")
    for file in chosen.files:
        with_rung, new_calls, ours = apart(chosen.folder, file, chosen.chosen, plain=False)
        print(f"{file:28} {summary(with_rung)}", flush=True)
        calls += new_calls
        reached += ours
        if with_rung.outcomes["failed"]:
            without, _, _ = apart(chosen.folder, file, chosen.chosen, plain=True)
            print(f"{'  without rung':28} {summary(without)}", flush=True)
            lost += sorted(without.names - with_rung.names)
    for name in lost:
        print(f"passes only without rung: {name}")
    print("operator                              calls   by rung")
    for name, number in calls.most_common():
        print(f"{name:34} {number:9} {reached[name]:9}")
    print(f"{'all':34} {calls.total():9} {reached.total():9} {reached.total() / max(calls.total(), 1):8.1%}")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
