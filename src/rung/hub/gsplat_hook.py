"""Do what happens in a program under ``rung exec`` when it has imported gsplat."""

from __future__ import annotations

from collections.abc import Mapping

from rung.exec.launch import PROCESSOR
from rung.exec.watch import gpu
from rung.hub import gsplat


def install(settings: Mapping[str, str]) -> None:
    """Has it draw by rung's rungs where no GPU is: its own kernels are for GPUs alone."""
    if "strict" not in settings and (settings.get("device") == PROCESSOR or ("device" not in settings and not gpu())):
        gsplat.install()
