"""Faults in the process of a model: Python imports this module when it starts, wherever its folder is in the path.

Starters are those of the table that ``PLANTED_STARTERS`` names. Whenever the file that ``PLANTED`` names is there it is
removed, and the next step of the model fails as the file says, or tries its rights. With ``PLANTED_CLOCK`` the clock
of the day jumps by so many seconds, there and back, each time that it is read.
"""

import importlib.abc
import importlib.util
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

FILE, STARTERS = os.environ.get("PLANTED", ""), os.environ.get("PLANTED_STARTERS", "")


def due(*kinds):
    """The fault of the file, if it is one of these; it happens once."""
    try:
        with open(FILE, encoding="ascii") as file:
            kind = file.read()
    except OSError:
        return ""
    if kind not in kinds:
        return ""
    os.remove(FILE)
    return kind


def try_rights():
    """Write down what the process may do, in the folder of temporary files; whatever it could write it leaves."""
    cache = pathlib.Path(os.environ["RUNG_CACHE"])
    tries = {
        "change packages": lambda: (cache / "bundles" / "a" / "program" / "module.py").write_text("planted"),
        "add bytecode": lambda: (cache / "bundles" / "a" / "bytecode" / "module.pyc").write_text("planted"),
        "add to the cache": lambda: (cache / "planted").mkdir(),
        "move packages": lambda: os.rename(cache / "bundles" / "a", cache / "tmp" / "a"),
        "add kernels": lambda: (cache / "kernels" / "planted").mkdir(),
        "read": lambda: open(os.environ["PLANTED_SECRET"], encoding="utf-8").close(),
        "write": lambda: open(os.environ["PLANTED_SECRET"], "w", encoding="utf-8").close(),
        "connect": lambda: socket.create_connection(("127.0.0.1", int(os.environ["PLANTED_PORT"])), 1).close(),
        "run": lambda: subprocess.run(["/bin/cat", os.environ["PLANTED_SECRET"]], check=True, capture_output=True),
    }
    found = {}
    for name, call in tries.items():
        try:
            call()
            found[name] = "done"
        except (OSError, subprocess.CalledProcessError) as error:
            found[name] = type(error).__name__
    with open(cache / "tmp" / "rights", "w", encoding="utf-8") as file:
        json.dump(found, file)


def plant_in_decoder(module):
    compute = module.Decoder.compute

    def failing(self, batch):
        from rung.core.errors import DeviceLost, OutOfMemory

        match due("segfault", "lost", "memory", "bug", "rights"):
            case "rights":
                try_rights()
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "lost":
                raise DeviceLost("The planted card does not answer any more.")
            case "memory":
                raise OutOfMemory("The planted memory is full.")
            case "bug":
                raise AssertionError("a planted bug")
        return compute(self, batch)

    module.Decoder.compute = failing


def plant_in_kernel(module):
    apply = module.Step.apply

    def failing(self, state, batch):
        if due("kernel"):
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
        return apply(self, state, batch)

    module.Step.apply = failing


def plant_starters(module):
    if STARTERS:
        module.TABLE = pathlib.Path(STARTERS)


PLANTS = {
    "rung.engine.decoder": plant_in_decoder,
    "rung.ops.decode_step.numba_step": plant_in_kernel,
    "rung.models.store.starters": plant_starters,
}


class Finder(importlib.abc.MetaPathFinder):
    """Changes modules when they are imported."""

    def find_spec(self, name, path, target=None):
        if name not in PLANTS:
            return None
        plant = PLANTS.pop(name)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            plant(module)

        spec.loader.exec_module = exec_module
        return spec


def jump(seconds):
    """Have the clock of the day jump."""
    read, turns = time.time, itertools.cycle((0.0, seconds, 0.0, -seconds))
    time.time = lambda: read() + next(turns)


if jumps := os.environ.get("PLANTED_CLOCK"):
    jump(float(jumps))
if FILE or STARTERS:
    sys.meta_path.insert(0, Finder())
