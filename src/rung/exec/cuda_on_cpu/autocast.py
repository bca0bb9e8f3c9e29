"""``torch.autocast("cuda")`` is the processor's, in the dtype of the card's.

torch keeps a state for each kind of device. While that of the card is on, the processor's is on too; what the program
asks and sets of the processor's own is kept apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from rung.simulation.dispatch.patches import Patches

_CARD, _HOST = "cuda", "cpu"


class _Own(threading.local):
    """Hold what the program has set for the processor itself in this thread."""

    def __init__(self) -> None:
        self.enabled = False
        self.dtype: torch.dtype = torch.bfloat16


class _Switches:
    """Stand in for torch's functions, and call those that were there when it was made."""

    def __init__(self) -> None:
        self._own = _Own()
        self._enable, self._is_enabled = torch.set_autocast_enabled, torch.is_autocast_enabled
        self._set_dtype, self._get_dtype = torch.set_autocast_dtype, torch.get_autocast_dtype

    def _settle(self) -> None:
        """Bring the processor's state to the card's while that is on, else to the program's own."""
        card = self._is_enabled(_CARD)
        dtype = self._get_dtype(_CARD) if card else self._own.dtype
        if dtype is not self._get_dtype(_HOST):
            torch.clear_autocast_cache()  # which holds weights in the dtype of before
            self._set_dtype(_HOST, dtype)
        self._enable(_HOST, card or self._own.enabled)

    def set_enabled(self, *args: Any) -> None:
        """Stand in for ``torch.set_autocast_enabled``."""
        if args[0] == _HOST:
            self._own.enabled = bool(args[1])
        else:  # of old a truth alone, for the card
            self._enable(*args)
        self._settle()

    def set_dtype(self, kind: str, dtype: torch.dtype) -> None:
        """Stand in for ``torch.set_autocast_dtype``."""
        if kind == _HOST:
            self._own.dtype = dtype
        else:
            self._set_dtype(kind, dtype)
        self._settle()

    def is_enabled(self, *args: Any) -> bool:
        """Stand in for ``torch.is_autocast_enabled``."""
        return self._own.enabled if args == (_HOST,) else self._is_enabled(*args)

    def get_dtype(self, kind: str) -> torch.dtype:
        """Stand in for ``torch.get_autocast_dtype``."""
        return self._own.dtype if kind == _HOST else self._get_dtype(kind)


def install(patches: Patches) -> None:
    """Put it in force."""
    switches = _Switches()
    changed: dict[str, Callable[..., Any]] = {
        "set_autocast_enabled": switches.set_enabled,
        "set_autocast_dtype": switches.set_dtype,
        "is_autocast_enabled": switches.is_enabled,
        "get_autocast_dtype": switches.get_dtype,
        "set_autocast_cpu_enabled": lambda enabled: switches.set_enabled(_HOST, enabled),
        "set_autocast_cpu_dtype": lambda dtype: switches.set_dtype(_HOST, dtype),
        "set_autocast_gpu_dtype": lambda dtype: switches.set_dtype(_CARD, dtype),
        "is_autocast_cpu_enabled": lambda: switches.is_enabled(_HOST),
        "get_autocast_cpu_dtype": lambda: switches.get_dtype(_HOST),
    }
    for name, function in changed.items():
        patches.set(torch, name, function)
