"""Environment variables that help a program whatever it is, and are known to harm none."""

from __future__ import annotations

import os
import sys


def repairs(variables: dict[str, str]) -> dict[str, str]:
    """Return those that this machine needs and ``variables`` does not have, each with its value.

    Apple: what torch lacks on the GPU it computes on the processor. AMD: a card whose code no build carries runs that
    of its closest relative, by the catalog (ROCm, ``HSA_OVERRIDE_GFX_VERSION``).
    """
    found: dict[str, str] = {}
    if sys.platform == "darwin":
        found["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"
    if os.path.exists("/dev/kfd") and "HSA_OVERRIDE_GFX_VERSION" not in variables:
        found |= _relative()
    return {name: value for name, value in found.items() if name not in variables}


def _relative() -> dict[str, str]:
    from rung.hardware import catalog, detect
    from rung.hardware.catalog.capabilities import gfx_version

    for device in detect.devices():
        row = catalog.architectures().get(device.arch) if device.kind == "rocm" else None
        if row is not None and row.override:
            return {"HSA_OVERRIDE_GFX_VERSION": gfx_version(row.override)}
    return {}
