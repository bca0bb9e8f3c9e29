"""Do what happens in a program under ``rung exec`` when it has imported bitsandbytes."""

from __future__ import annotations

from collections.abc import Mapping

from rung.exec.fallbacks import stand_in
from rung.hub import bitsandbytes
from rung.hub.bitsandbytes.kernels import KERNELS


def install(settings: Mapping[str, str]) -> None:
    """Puts rung's kernels in place unless the settings say ``strict``, and where an operator is refused."""
    if "strict" not in settings:
        bitsandbytes.replace_kernels()
        for name, kernel in KERNELS.items():
            stand_in(f"bitsandbytes::{name}", kernel)
