"""Ask another process to compile kernels, from within the emulated one; see ``compiler``."""

from __future__ import annotations

import functools
import os
import threading
from multiprocessing.connection import Client
from typing import Any

#: The socket of the compiler; nothing is asked for without it.
SOCKET = "EMULATION_COMPILER"
_LOCK = threading.Lock()


@functools.cache
def _compiler() -> Any:
    return Client(os.environ[SOCKET], "AF_UNIX")


def _ask(kind: str, function: Any, argument: Any) -> None:
    from numba.core.serialize import dumps

    with _LOCK:
        _compiler().send_bytes(dumps((kind, function, argument)))
        reason = _compiler().recv()
    if reason:
        print(f"not compiled outside: {function}: {reason}", flush=True)


def install(compiled: Any) -> None:
    """Let kernels of ``rung.kernels.cpu.compiled``, and what Numba keeps on disk, be compiled there."""
    from numba.core import caching, dispatcher

    compile_kernel, compile_function = compiled.Kernel.compile, dispatcher.Dispatcher.compile

    def of_kernel(kernel: Any) -> Any:
        if not kernel.on_disk:
            _ask("kernel", kernel.function, kernel.count)
        return compile_kernel(kernel)

    def of_function(self: Any, signature: Any) -> Any:
        name = f"{self.py_func.__module__}:{self.py_func.__qualname__}"
        if isinstance(self._cache, caching.FunctionCache) and "<" not in name:
            _ask("function", name, signature)
        return compile_function(self, signature)

    compiled.Kernel.compile, dispatcher.Dispatcher.compile = of_kernel, of_function
