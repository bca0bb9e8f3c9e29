"""Words of a kernel by their names, for kernels that take many."""

from __future__ import annotations

from typing import Any

from rung.kernels.cpu.compiled import Kernel
from rung.kernels.cpu.thread_pool import run


class NamedWords:
    """The words of kernels that take the same ones; holds on to the arrays whose addresses they are."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Set all words to 0."""
        self._names, self._arrays = names, dict[str, Any]()
        self.words = [0] * len(names)

    def set(self, **values: Any) -> None:
        """Set words to numbers, or to the addresses of arrays and of tensors on the CPU."""
        for name, value in values.items():
            self._arrays[name] = value
            self.words[self._names.index(name)] = _number(value)

    def run(self, kernel: Kernel, threads: int) -> None:
        """Run a kernel on so many threads."""
        run(kernel.address, self.words, threads)


def _number(value: Any) -> int:
    if hasattr(value, "data_ptr"):
        return int(value.data_ptr())
    address = getattr(value, "ctypes", None)
    return int(value if address is None else address.data)
