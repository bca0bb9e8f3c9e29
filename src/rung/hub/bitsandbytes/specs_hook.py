"""Do what happens in a program under ``rung exec`` before bitsandbytes looks for its compiled library."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from rung.exec.launch import PROCESSOR

#: Said of a kernel that rung's takes the place of.
_MISSED = "Failed to load CPU gemm_4bit_forward"


def install(settings: Mapping[str, str]) -> None:
    """Has it take the library of processors where the processor answers to CUDA."""
    if settings.get("device") == PROCESSOR:
        sys.modules["bitsandbytes.cuda_specs"].get_cuda_specs = lambda: None  # type: ignore[attr-defined]
    if "strict" not in settings:
        logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(lambda record: _MISSED not in str(record.msg))
