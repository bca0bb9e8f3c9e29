"""Faults in the process of a model: Python imports this module when it starts, wherever its folder is in the path.

Whenever the file that ``PLANTED`` names is there it is removed, and the next step of the model fails as the file says.
"""

import importlib.abc
import importlib.util
import os
import signal
import sys

FILE = os.environ.get("PLANTED", "")


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


def plant_in_decoder(module):
    compute = module.Decoder.compute

    def failing(self, batch):
        from rung.core.errors import DeviceLost, OutOfMemory

        match due("segfault", "lost", "memory", "bug"):
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


PLANTS = {"rung.engine.decoder": plant_in_decoder, "rung.ops.decode_step.numba_step": plant_in_kernel}


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


if FILE:
    sys.meta_path.insert(0, Finder())
