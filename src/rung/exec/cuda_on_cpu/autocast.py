"""``torch.autocast("cuda")`` is the processor's, in the dtype of the card's.

torch keeps a state for each kind of device. While that of the card is on, the processor's is on too; what the program
asks and sets of the processor's own is kept apart.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from rung.simulation.dispatch.patches import Patches

_CARD, _HOST = "cuda", "cpu"


class _Own(threading.local):
    """Hold what the program has set for the processor itself in this thread."""

    def __init__(self) -> None:
        self.enabled = False
        self.dtype: torch.dtype = torch.bfloat16


def install(patches: Patches) -> None:
    """Puts it in force."""
    own = _Own()
    enable, is_enabled = torch.set_autocast_enabled, torch.is_autocast_enabled
    set_dtype, get_dtype = torch.set_autocast_dtype, torch.get_autocast_dtype

    def settle() -> None:
        card = is_enabled(_CARD)
        dtype = get_dtype(_CARD) if card else own.dtype
        if dtype is not get_dtype(_HOST):
            torch.clear_autocast_cache()  # which holds weights in the dtype of before
            set_dtype(_HOST, dtype)
        enable(_HOST, card or own.enabled)

    def set_enabled(*args: Any) -> None:
        if args[0] == _HOST:
            own.enabled = bool(args[1])
        else:  # of old a truth alone, for the card
            enable(*args)
        settle()

    def set_of(kind: str, dtype: torch.dtype) -> None:
        if kind == _HOST:
            own.dtype = dtype
        else:
            set_dtype(kind, dtype)
        settle()

    def asked_enabled(*args: Any) -> bool:
        return own.enabled if args == (_HOST,) else is_enabled(*args)

    def asked_dtype(kind: str) -> torch.dtype:
        return own.dtype if kind == _HOST else get_dtype(kind)

    changed = {
        "set_autocast_enabled": set_enabled,
        "set_autocast_dtype": set_of,
        "is_autocast_enabled": asked_enabled,
        "get_autocast_dtype": asked_dtype,
        "set_autocast_cpu_enabled": lambda enabled: set_enabled(_HOST, enabled),
        "set_autocast_cpu_dtype": lambda dtype: set_of(_HOST, dtype),
        "set_autocast_gpu_dtype": lambda dtype: set_of(_CARD, dtype),
        "is_autocast_cpu_enabled": lambda: own.enabled,
        "get_autocast_cpu_dtype": lambda: own.dtype,
    }
    for name, function in changed.items():
        patches.set(torch, name, function)
