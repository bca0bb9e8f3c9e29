"""Where torch computes for the id of a device."""

from __future__ import annotations

from rung.core.errors import DeviceError
from rung.kernels.webgpu import is_webgpu

#: torch's kinds of devices that another one stands in for: under ``rung exec --device cpu`` the processor for ``cuda``.
STANDING_IN: dict[str, str] = {}


def location(device: str) -> str:
    """Return where parts of a model compute: torch's name, and the id itself of a device of WebGPU."""
    return device if is_webgpu(device) else torch_name(device)


def torch_name(device: str) -> str:
    """torch's name: ``cpu:1`` is a second budget on the same processor, and ROCm's devices are ``cuda`` to torch.

    Raises ``DeviceError`` for a device of WebGPU, which torch does not drive.
    """
    kind, _, index = device.partition(":")
    if is_webgpu(device):
        raise DeviceError(
            f"{device} is reached through WebGPU, and this is computed by torch.",
            ["language models and splats run there: rung run, rung chat, rung splat"],
            ["rung devices   # the same card may be there for torch too", "--device cpu"],
        )
    if kind == "cpu":
        return "cpu"
    name = {"rocm": "cuda"}.get(kind, kind)
    return f"{name}:{index}" if index else name
