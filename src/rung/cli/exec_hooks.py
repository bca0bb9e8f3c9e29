"""Do what happens in a program under ``rung exec`` when it has imported a module; ``executing.HOOKS`` says which."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping
from typing import Any

from rung.exec.launch import PROCESSOR

#: Said of a kernel that rung's takes the place of.
_MISSED = "Failed to load CPU gemm_4bit_forward"
_INTERPRETED = "the program's Triton kernels ran in Triton's interpreter, which is very slow"


def bitsandbytes_specs(settings: Mapping[str, str]) -> None:
    """Have bitsandbytes take the library of processors where the processor answers to CUDA."""
    if settings.get("device") == PROCESSOR:
        sys.modules["bitsandbytes.cuda_specs"].get_cuda_specs = lambda: None  # type: ignore[attr-defined]
    if "strict" not in settings:
        logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(lambda record: _MISSED not in str(record.msg))


def bitsandbytes(settings: Mapping[str, str]) -> None:
    """Put rung's kernels in place unless the settings say ``strict``, and where an operator is refused."""
    if "strict" not in settings:
        from rung.exec.fallbacks import stand_in
        from rung.hub import bitsandbytes as adapter
        from rung.hub.bitsandbytes.kernels import KERNELS

        adapter.replace_kernels()
        for name, kernel in KERNELS.items():
            stand_in(f"bitsandbytes::{name}", kernel)


def gsplat(settings: Mapping[str, str]) -> None:
    """Have gsplat draw by rung's rungs where no GPU is: its own kernels are for GPUs alone."""
    from rung.exec.step_down import gpu

    if "strict" not in settings and (settings.get("device") == PROCESSOR or ("device" not in settings and not gpu())):
        from rung.splats import gsplat as adapter

        adapter.install()


def triton_interpreter(settings: Mapping[str, str]) -> None:
    """Say so when a kernel of the program is interpreted."""
    if settings.get("device") != PROCESSOR:
        return
    from rung.exec.report import Notes

    notes = Notes(settings["notes"])
    owner = sys.modules["triton.runtime.interpreter"].GridExecutor
    call = owner.__call__

    @functools.wraps(call)
    def counted(executor: Any, *args: Any, **kwargs: Any) -> Any:
        notes.word(_INTERPRETED)
        return call(executor, *args, **kwargs)

    owner.__call__ = counted
