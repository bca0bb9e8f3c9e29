"""Plans for this machine: its devices with their proofs, and the wishes of a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rung.core.errors import UnknownDevice
from rung.core.types import Device, Plan
from rung.engine import process_memory
from rung.hardware import detect
from rung.hardware.json_cache import how_often
from rung.hardware.select import catalog_device
from rung.models.card import ModelCard
from rung.models.cards.network import NetworkCard
from rung.planning.request import Request, parse_memory
from rung.planning.solve import choose_device, solve


def device_here(name: str | None, on_note: Callable[[str], None]) -> Device:
    """The device of this machine that is named, by default the first card that computes, else the CPU.

    ``on_note`` is told of what takes long. Raises ``UnknownDevice``.
    """
    if name is not None and (card := catalog_device(name)) is not None:
        raise not_here(card, name)
    devices = process_memory.proven_devices(
        lambda d: on_note(f"Finding out what {d.name} can do: about 10 seconds, {how_often(why=True)}.")
    )
    return choose_device(devices, name)


def not_here(card: Device, name: str) -> UnknownDevice:
    """The error for a card of the catalogue where something is to be computed."""
    return UnknownDevice(
        f"{card.name} is not in this machine.",
        [f"devices here: {', '.join(d.id for d in detect.devices())}"],
        [f"--device sim:{name.removeprefix('sim:')}   # simulates it", "rung devices"],
    )


def make_plan(
    card: ModelCard | NetworkCard,
    *,
    format: str | None = None,
    device: str | None = None,
    memory: str | int | Mapping[str, str | int] | None = None,
    context: int | None = None,
    threads: int | None = None,
    devices: Sequence[Device] | None = None,
    on_probe: Callable[[Device], None] = lambda device: None,
    catalogue: bool = False,
    beside: int = 0,
) -> tuple[Plan, tuple[Device, ...]]:
    """The plan for a card, and the devices it was made for (by default those of this machine, probed once).

    ``beside`` bytes are left for adapters.
    With ``catalogue``, for plans that nobody is about to run, ``device`` may name a card that is not here.
    Where torch or numba is missing nothing can be probed: the plan is for this machine with them, and says so.
    Raises ``DoesNotFit``, ``ContextTooLong``, ``UnknownFormat``, ``UnknownDevice``, ``UsageError``.
    """
    if device is not None and devices is None and (card_named := catalog_device(device)) is not None:
        if not catalogue:
            raise not_here(card_named, device)
        device, devices = card_named.id, (card_named,)
    request = Request(
        format=format,
        device=device,
        memory=parse_memory(memory),
        context=context,
        threads=process_memory.threads(threads),
        beside=beside,
    )
    missing = process_memory.missing_software() if devices is None else []
    if devices is not None:
        found = tuple(devices)
    elif missing:
        found = tuple(_with(device, missing) for device in detect.devices())
    else:
        found = process_memory.proven_devices(on_probe)
    plan = solve(card, found, request)
    if missing:
        note = f"planned as if {' and '.join(missing)} were installed: pip install 'rung[run]'"
        plan = replace(plan, reasons=(*plan.reasons, note))
    return plan, found


def _with(device: Device, packages: Sequence[str]) -> Device:
    return replace(device, software=device.software | dict.fromkeys(packages, "not installed"))
