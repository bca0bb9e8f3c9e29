"""Where torch computes for the id of a device."""

from __future__ import annotations

#: torch's kinds of devices that another one stands in for: under ``rung exec --device cpu`` the processor for ``cuda``.
STANDING_IN: dict[str, str] = {}


def torch_name(device: str) -> str:
    """torch's name: ``cpu:1`` is a second budget on the same processor, and ROCm's devices are ``cuda`` to torch."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return "cpu"
    name = {"rocm": "cuda"}.get(kind, kind)
    return f"{name}:{index}" if index else name
