"""Begin an emulated Python: its children start through qemu too, and another process compiles where there is one."""

import importlib.abc
import importlib.util
import os
import sys

_COMPILED = "rung.kernels.cpu.compiled"


class _Finder(importlib.abc.MetaPathFinder):
    """Once the module that compiles is imported, let ``guest`` change it."""

    def find_spec(self, name, path=None, target=None):
        if name != _COMPILED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            from tests.emulation import guest

            guest.install(module)

        spec.loader.exec_module = exec_module
        return spec


sys.executable = os.environ.get("EMULATED_PYTHON", sys.executable)
if os.environ.get("EMULATION_COMPILER"):
    sys.meta_path.insert(0, _Finder())
