"""What one simulation knows: the card, its memory, its defects; and whether it is still in force."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

import torch

from rung.core.types import Device, Level
from rung.run.probes.start import TORCH_KINDS
from rung.run.simulate import refusals
from rung.run.simulate.allocator import Allocator, Block, Full
from rung.run.simulate.defects import Defect

#: The CUDA context and the libraries that torch loads, where the catalogue has no figure for the card and build.
_RUNTIME = 400 * 2**20
#: What cuBLAS takes at the first product (aten/src/ATen/cuda/CUDABlas.cpp: 32 MB from compute capability 9.0 on,
#: before that ``:4096:2:16:8``).
_WORKSPACE, _WORKSPACE_HOPPER = 8_519_680, 32 << 20


class _Local(threading.local):
    #: Where the Python call that is being served wants its tensors: True the card, False the host, None as inputs lie.
    wanted: bool | None = None


class World:
    """A card and everything that is kept about it while it is simulated."""

    def __init__(self, device: Device, defects: Iterable[Defect] = ()) -> None:
        self.device = device
        self.defects = tuple(defects)
        self.active = False
        #: torch's word for the kind: cuda (AMD too), xpu or mps.
        self.type = TORCH_KINDS[device.kind]
        self.place = torch.device(self.type, 0)
        self.total = device.budget if device.free is not None else device.memory
        self.runtime = int(device.details.get("runtime_bytes", _RUNTIME))
        self.allocator = Allocator(max(self.total - self.runtime, 0))
        self.local = _Local()
        self.random = torch.Generator()
        self.chance = threading.RLock()  # held while the card's random state stands in for the processor's
        self._workspace: Block | None = None

    @property
    def capability(self) -> tuple[int, int]:
        """NVIDIA's compute capability; for AMD the numbers that ROCm gives instead: gfx90a is (9, 0)."""
        if found := re.match(r"sm_(\d+)(\d)", self.device.arch):
            return int(found[1]), int(found[2])
        if found := re.match(r"gfx(\d+)(\w)\w$", self.device.arch):
            return int(found[1]), int(found[2], 16)
        return 0, 0

    @property
    def torch_version(self) -> tuple[int, int]:
        """Major and minor version of the torch that is assumed."""
        return version(self.device.software.get("torch", torch.__version__))

    @property
    def cuda_version(self) -> tuple[int, int] | None:
        """The CUDA version that torch is assumed to be built for; None when nothing says so."""
        text = self.device.software.get("cuda", "")
        return version(text) if text else None

    @property
    def lacks_code(self) -> str:
        """The reason when the assumed build has no code for this card at all; empty when it has."""
        code = self.device.capability("code")
        return code.source if code.level is Level.ABSENT else ""

    def names_card(self, device: object) -> bool | None:
        """Whether a device argument means the card (True), the host (False), or something else (None).

        Raises torch's own error for a card that is not there, ``cuda:1``.
        """
        if device is None:
            return None
        if isinstance(device, int) and not isinstance(device, bool):
            kind, index = self.type, device
        else:
            asked = device if isinstance(device, torch.device) else torch.device(str(device))
            kind, index = asked.type, asked.index or 0
        if kind == "cpu":
            return False
        if kind != self.type:
            return None
        if index != 0:
            raise refusals.no_such_device(self)
        return True

    def allocate(self, size: int) -> Block:
        """Memory of the card for ``size`` bytes; raises what torch raises when it is full."""
        try:
            return self.allocator.allocate(size)
        except Full as full:
            raise refusals.out_of_memory(self, full.size) from None

    def use_workspace(self) -> None:
        """Takes what cuBLAS takes at the first product and keeps."""
        if self._workspace is None and self.device.kind == "cuda":
            self._workspace = self.allocate(_WORKSPACE_HOPPER if self.capability >= (9, 0) else _WORKSPACE)


def version(text: str) -> tuple[int, int]:
    """Major and minor of ``2.3.1+cu121``."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
