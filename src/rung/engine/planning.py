"""Plans for this machine: its devices with their proofs, and the wishes of a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rung.core.types import Device, Plan
from rung.engine import system
from rung.models.card import ModelCard
from rung.planning import Request, solve
from rung.planning.request import parse_memory


def make_plan(
    card: ModelCard,
    *,
    format: str | None = None,
    device: str | None = None,
    memory: str | int | Mapping[str, str | int] | None = None,
    context: int | None = None,
    threads: int | None = None,
    devices: Sequence[Device] | None = None,
    on_probe: Callable[[Device], None] = lambda device: None,
) -> tuple[Plan, tuple[Device, ...]]:
    """The plan for a card, and the devices it was made for (by default those of this machine, probed once).

    Raises ``DoesNotFit``, ``ContextTooLong``, ``UnknownFormat``, ``UnknownDevice``, ``UsageError``.
    """
    request = Request(
        format=format,
        device=device,
        memory=parse_memory(memory),
        context=context,
        threads=system.threads(threads),
    )
    found = tuple(devices) if devices is not None else system.proven_devices(on_probe)
    return solve(card, found, request), found
