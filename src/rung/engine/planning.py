"""Plans for this machine: its devices with their proofs, and the wishes of a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rung.core.errors import UnknownDevice, UsageError
from rung.core.types import Device, Plan
from rung.engine import process_memory
from rung.hardware import detect
from rung.hardware.probe_cache import how_often
from rung.hardware.select import catalog_device, select_groups
from rung.models.card import ModelCard
from rung.models.cards.encoder import EncoderCard
from rung.models.cards.folder import NetworkCard
from rung.planning.request import Request, Typed, parse_memory
from rung.planning.solve import choose_device, solve

#: Sequences that a plan may have room for.
MOST_PARALLEL = 4096


def device_here(name: str | None, on_note: Callable[[str], None], webgpu: bool = False) -> Device:
    """The device of this machine that is named, by default the first card that computes, else the CPU.

    ``on_note`` is called with notes on what takes long; ``webgpu``: a card that torch does not drive will do. Raises
    ``UnknownDevice``.
    """
    if name is not None and (card := catalog_device(name)) is not None:
        raise not_here(card, name)
    devices = process_memory.proven_devices(
        lambda d: on_note(f"Finding out what {d.name} can do: about 10 seconds, {how_often(why=True)}."), name
    )
    return choose_device(devices, name, webgpu)


def not_here(card: Device, name: str) -> UnknownDevice:
    """The error for a card of the catalog where something is to be computed."""
    return UnknownDevice(
        f"{card.name} is not in this machine.",
        [f"devices here: {', '.join(d.id for d in detect.devices())}"],
        [f"--device sim:{name.removeprefix('sim:')}   # simulates it", "rung devices"],
    )


@dataclass(frozen=True)
class PlanTarget:
    """Where to plan for: the id of a ``device`` (None: any of them) among ``devices`` (None: those of this machine).

    ``together``: the devices are one budget.
    """

    device: str | None = None
    devices: tuple[Device, ...] | None = None
    together: bool = False


def target_named(name: str | None, software: str | None = None) -> PlanTarget:
    """Return where to plan for by the name of a device, of a card that is not here, or of several: ``p2200+cpu``.

    The CPU of this machine stands beside a card that is not here, for what does not fit on the card alone. Raises what
    ``select_groups`` raises.
    """
    if name is None and software is None:
        return PlanTarget()
    group = select_groups((name,) if name is not None else (), software)[0]
    if len(group) > 1:
        return PlanTarget(None, group, together=True)
    (device,) = group
    if device.real:
        return PlanTarget(device.id)
    cpu = select_groups(("cpu",))[0] if device.kind != "cpu" else ()
    return PlanTarget(device.id, (device, *cpu))


def make_plan(
    card: ModelCard | EncoderCard | NetworkCard,
    *,
    format: str | None = None,
    device: str | None = None,
    memory: str | int | Mapping[str, str | int] | None = None,
    context: int | None = None,
    parallel: int | None = None,
    threads: int | None = None,
    devices: Sequence[Device] | None = None,
    on_probe: Callable[[Device], None] = lambda device: None,
    catalog: bool = False,
    reserved: int = 0,
    together: bool = False,
    typed: Typed | None = None,
    cache_type: str | None = None,
) -> tuple[Plan, tuple[Device, ...]]:
    """The plan for a card, and the devices it was made for (by default those of this machine, probed once).

    ``parallel`` sequences have room for the whole context, by default one. ``reserved`` bytes are left for
    adapters and a draft model;
    ``cache_type``: f32, f16, q8_0 or q4_0 for keys and values; None or auto: rung chooses. ``together``: the devices
    are one budget; ``typed`` is what ways out repeat.
    With ``catalog``, for plans that nobody is about to run, ``device`` may name a card that is not here, or several.
    Where numba is missing, or torch that the model needs, nothing can be probed: the plan is for this machine with
    them, and says so.
    Raises ``DoesNotFit``, ``ContextTooLong``, ``UnknownFormat``, ``UnknownDevice``, ``UsageError``.
    """
    if device is not None and devices is None:
        if catalog:
            target = target_named(device)
            typed = typed or Typed("rung plan" if target.devices else "rung run", "", device)
            device, devices, together = target.device, target.devices, target.together
        elif (card_named := catalog_device(device)) is not None:
            raise not_here(card_named, device)
    if parallel is not None and not 1 <= parallel <= MOST_PARALLEL:
        raise UsageError(
            f"{parallel} sequences at once make no sense: it must be 1 to {MOST_PARALLEL:,}.", code="value-out-of-range"
        )
    budgets = parse_memory(memory)  # before anything is probed, which takes a while
    needed = process_memory.LEAN if isinstance(card, ModelCard | EncoderCard) else process_memory.ALL
    missing = process_memory.missing_software(needed) if devices is None else []
    found = tuple(devices) if devices is not None else _devices_here(missing, on_probe, device)
    request = Request(
        format=format,
        device=device,
        memory=budgets,
        context=context,
        threads=(count := process_memory.threads(threads)),
        batch=parallel or 1,
        reserved=reserved,
        together=together,
        typed=typed or Typed(),
        cache_type=None if cache_type == "auto" else cache_type,
    )
    plan = solve(card, found, request)
    requested = process_memory.requested_threads(threads)
    if requested is not None and requested > count:
        note = f"{count} of {requested:,} threads: more do not run at a time here"
        plan = replace(plan, reasons=(*plan.reasons, note))
    if missing:
        extra = "run" if "torch" in missing else "lean"
        note = f"planned as if {' and '.join(missing)} were installed: pip install 'rung[{extra}]'"
        plan = replace(plan, reasons=(*plan.reasons, note))
    return plan, found


def _devices_here(missing: Sequence[str], on_probe: Callable[[Device], None], named: str | None) -> tuple[Device, ...]:
    """The devices of this machine, probed; as if missing packages were installed where nothing can be probed."""
    if missing:
        return tuple(_with(device, missing) for device in detect.devices())
    return process_memory.proven_devices(on_probe, named)


def _with(device: Device, packages: Sequence[str]) -> Device:
    usable = [name for name in packages if name != "torch" or device.torch_computes]
    return replace(device, software=device.software | dict.fromkeys(usable, "not installed"))
