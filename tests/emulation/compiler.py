"""Compile kernels for an emulated processor natively: a process that takes itself for one with that processor.

Compiling is what takes long under emulation. The emulated process sends each function that Numba would compile there
(``guest``); this one compiles it for that processor and keeps it in the cache on disk, where the other finds it. It
never runs what it compiled.

    python -m tests.emulation.compiler SOCKET LEVEL [NAME FEATURES]

The last two are LLVM's: on x86 the emulated process finds them out, by ``python -m tests.emulation.compiler``.
"""

from __future__ import annotations

import pickle
import platform
import sys
from multiprocessing.connection import Connection, Listener

from tests.emulation.system import CORES, Core


def pretend(core: Core, name: str, features: str) -> None:
    """Make LLVM, and so Numba, compile for the core; comes before Numba is imported."""
    from llvmlite import binding

    from rung.hardware import cpu_features

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    platform.machine = lambda: core.arch
    if core.arch == "aarch64":
        features = cpu_features.llvm_features(frozenset(core.flags.split()))
        cpu_features.own_features = lambda: features  # type: ignore[assignment]
    found = binding.FeatureMap((each[1:], each[0] == "+") for each in features.split(","))
    binding.get_process_triple = lambda: f"{core.arch}-unknown-linux-gnu"
    binding.get_host_cpu_name = lambda: name
    binding.get_host_cpu_features = lambda: found


def compile_one(message: bytes) -> None:
    """Compile a function of int64 arguments, or a function of Numba's by its name and signature."""
    from rung.core.types import resolve
    from rung.kernels.cpu.compiled import Kernel

    kind, function, argument = pickle.loads(message)
    if kind == "kernel":
        Kernel(function, argument).compile()
    else:
        resolve(function).compile(argument)


def _serve(connection: Connection) -> None:
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        reason = ""
        try:
            compile_one(message)
        except Exception as error:  # the other process then compiles by itself, and says what is wrong
            reason = f"{type(error).__name__}: {error}"
        connection.send(reason)


def describe() -> None:
    """Print what LLVM finds out of this processor: its name and its features."""
    from llvmlite import binding

    print(binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), sep="\n")


def main(socket: str, level: str, name: str = "", features: str = "") -> None:
    """Compile what processes ask for, one after the other, until the parent ends this one."""
    pretend(CORES[level], name or CORES[level].name, features)
    import threading

    import rung.kernels.isa.registers  # noqa: F401 - Numba, with its target, while nobody waits

    with Listener(socket, "AF_UNIX") as listener:
        print("ready", flush=True)
        while True:
            threading.Thread(target=_serve, args=(listener.accept(),), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else describe()
