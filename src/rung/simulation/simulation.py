"""Hold what one simulation knows: its cards, each with its memory, its defects; and whether it is still in force."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rung.core.types import Device, Level
from rung.run.probes.start import TORCH_KINDS
from rung.simulation import refusals
from rung.simulation.allocator import Allocator, Block
from rung.simulation.defects import Defect

_DEVICE = torch.device  # the real one, whatever stands in for it
#: The CUDA context and the libraries that torch loads, where the catalog has no figure for the card and build.
_RUNTIME = 400 * 2**20
#: What cuBLAS takes at the first product (aten/src/ATen/cuda/CUDABlas.cpp: 32 MB from compute capability 9.0 on,
#: before that ``:4096:2:16:8``).
_WORKSPACE, _WORKSPACE_HOPPER = 8_519_680, 32 << 20


class Host:
    """The processor's memory, where a tensor lies that lies on no card."""

    torch_device = torch.device("cpu")
    type = "cpu"


HOST = Host()


class Card:
    """A simulated card: what it is, its memory and its random state. ``torch_device`` is its device in torch."""

    def __init__(self, world: World, device: Device, index: int) -> None:
        self.world, self.device, self.index = world, device, index
        self.type = world.type
        self.torch_device = torch.device(world.type, index)
        self.total = device.budget if device.free is not None else device.memory
        self.runtime = int(device.details.get("runtime_bytes", _RUNTIME))
        self.allocator = Allocator(max(self.total - self.runtime, 0), lambda size: refusals.out_of_memory(self, size))
        #: Memory of the card for so many bytes; raises what torch raises when it is full.
        self.allocate = self.allocator.allocate
        self.release = self.allocator.release
        self.random = torch.Generator()
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

    def use_workspace(self) -> None:
        """Takes what cuBLAS takes at the first product and keeps."""
        if self._workspace is None and self.device.kind == "cuda":
            self._workspace = self.allocate(_WORKSPACE_HOPPER if self.capability >= (9, 0) else _WORKSPACE)

    def by_chance(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A result of an operation with the card's own random state, unless a generator is named."""
        if kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        with self.world.chance:
            kept = torch.default_generator.get_state()
            torch.default_generator.set_state(self.random.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                self.random.set_state(torch.default_generator.get_state())
                torch.default_generator.set_state(kept)


class _Local(threading.local):
    """Hold what each thread has for itself."""

    #: Where the Python call that is being served wants its tensors; None: as inputs lie.
    target: Card | Host | None = None
    #: The number of the card that is meant where none is named.
    current = 0
    #: The tensor that torch's own ``to`` is at work on.
    moving: torch.Tensor | None = None


class World:
    """The cards that are simulated together, numbered in their order, and what they share."""

    #: Whether the processor stands in for the card: no operation is watched, and ``host_key`` says what lies where.
    plain = False
    card_class = Card

    def __init__(self, devices: Sequence[Device], defects: Iterable[Defect] = ()) -> None:
        self.defects = tuple(defects)
        self.active = False
        self.capturing: Any = None  # the graph that notes operations
        #: torch's word for the kind: cuda (AMD too), xpu or mps.
        self.type = TORCH_KINDS[devices[0].kind]
        self.local = _Local()
        self.chance = threading.RLock()  # held while a card's random state stands in for the processor's
        self.cards = tuple(self.card_class(self, device, index) for index, device in enumerate(devices))

    @property
    def card(self) -> Card:
        """The current card of this thread."""
        return self.cards[self.local.current]

    def find(self, device: object) -> Card | Host | None:
        """The place that a device argument means; None for no device, or one of another kind (meta).

        Raises torch's own error for a card that is not there.
        """
        if device is None:
            return None
        if isinstance(device, torch.cuda.device):  # the block
            device = device.idx
        if isinstance(device, int) and not isinstance(device, bool):
            kind, index = self.type, device
        else:
            requested = device if isinstance(device, _DEVICE) else _DEVICE(str(device))
            kind, index = requested.type, requested.index
        if kind == "cpu":
            return HOST
        if kind != self.type:
            return None
        if index is None:
            return self.card
        if not 0 <= index < len(self.cards):
            raise self.no_such_device(index)
        return self.cards[index]

    def no_such_device(self, index: int) -> Exception:
        """torch's own error for a card that is not there."""
        return refusals.no_such_device(self.type, len(self.cards), index)

    def card_of(self, device: object) -> Card:
        """The card that a question of ``torch.cuda`` is about; the current one where none is named.

        Raises torch's own error for another kind of device.
        """
        found = self.find(device)
        if device is not None and not isinstance(found, Card):
            raise ValueError(f"Expected a {self.type} device, but got: {device}")
        return found if isinstance(found, Card) else self.card


def version(text: str) -> tuple[int, int]:
    """Major and minor of ``2.3.1+cu121``."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
