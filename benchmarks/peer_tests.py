"""bitsandbytes' own tests with rung's kernels in place: what passes, and how many calls of its operators reach rung.

    python benchmarks/peer_tests.py FOLDER [FILE ...] [--plain]

FOLDER is a checkout of bitsandbytes, of which tests/ is needed; the installed package is what is tested, on the CPU.
Without files the six are run that test operators, layers and gradients. ``--plain`` runs them without rung, for
comparison. Prints the failures, and the calls by operator: all of them, and those that rung computed.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

_FILES = ("test_ops", "test_modules", "test_linear4bit", "test_autograd", "test_parametrize", "test_functional")
_KEY = "BackendSelect"

calls: collections.Counter[str] = collections.Counter()
reached: collections.Counter[str] = collections.Counter()


def count(kernels: dict[str, Any]) -> torch.library.Library:
    """Counts calls with real tensors, before the dispatcher chooses a kernel; as long as the library lives."""
    library = torch.library.Library("bitsandbytes", "IMPL", _KEY)
    below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))
    for name in kernels:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.bitsandbytes, packet), overload or "default")

        def counted(keys: Any, *args: Any, op: Any = op, name: str = name, **kwargs: Any) -> Any:
            if any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in args):
                calls[name] += 1
            return op._handle.redispatch_boxed(keys & below, *args, **kwargs)

        library.impl(name, counted, with_keyset=True)
    return library


def counting(name: str, kernel: Any) -> Any:
    """A kernel that counts its calls."""

    def run(*args: Any, **kwargs: Any) -> Any:
        reached[name] += 1
        return kernel(*args, **kwargs)

    return run


def main() -> None:
    """Runs the tests and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", default=[f"tests/{name}.py" for name in _FILES])
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("-k", dest="chosen", default="")
    chosen = parser.parse_args()
    os.chdir(chosen.folder)
    os.environ["BNB_TEST_DEVICE"] = "cpu"
    sys.path.insert(0, os.getcwd())

    import bitsandbytes  # noqa: F401 (its operators must be there to be counted)

    from rung.hub import bitsandbytes as hub
    from rung.hub.bitsandbytes.kernels import KERNELS

    counter = count(KERNELS)
    if not chosen.plain:
        for name, kernel in list(KERNELS.items()):
            KERNELS[name] = counting(name, kernel)
        hub.install()
    skipped = "not slow and not benchmark and not deprecated"
    options = ["-q", "--tb=line", "-p", "no:cacheprovider", "-m", skipped, "-k", chosen.chosen]
    code = pytest.main([*options, "--override-ini=addopts=", *chosen.files])
    print("operator                              calls   by rung")
    for name, number in calls.most_common():
        print(f"{name:34} {number:9} {reached[name]:9}")
    print(f"{'all':34} {calls.total():9} {reached.total():9} {reached.total() / max(calls.total(), 1):8.1%}")
    del counter
    sys.exit(code)


if __name__ == "__main__":
    main()
