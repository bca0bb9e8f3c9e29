"""Define what several commands need: a simulated device, a plan in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rung.core.errors import UsageError
from rung.core.text import size
from rung.core.types import Device, Plan


def tell_taken(names: Iterable[str | None]) -> None:
    """Says on stderr what was taken for names that leave something open: ``3060`` is sold with 12 and with 8 GB."""
    from rung.cli.views.output import note as tell
    from rung.hardware import catalog
    from rung.hardware.catalog.names import match

    cards = [one for name in names if name for one in catalog.several(name.removeprefix("sim:"))]
    for note in dict.fromkeys(match(one).note for one in cards if catalog.find(one)):
        if note:
            tell(note)


#: Of more devices than these, as of the whole catalog, nobody is told which have less than the budget.
_FEW = 16


def tell_beyond(memory: Mapping[str, int], groups: Sequence[Sequence[Device]]) -> None:
    """Say on stderr that a budget names more than a device has, and what is counted."""
    from rung.cli.views.output import note
    from rung.planning.request import above_memory

    devices = [device for group in groups for device in group]
    if len(devices) <= _FEW and (words := above_memory(memory, devices)):
        note(words)


def device_words(device: Device) -> str:
    """``CPU, 2 cores, 22.0 GB free`` or ``Quadro P2200, 5.0 GB``."""
    from rung.hardware import topology

    if device.kind == "cpu":
        free = device.free if device.free is not None else device.memory
        return f"CPU, {topology.words(device.details)}, {size(free)} free"
    return f"{'' if device.real else 'simulated '}{device.name}, {size(device.memory)}"


@contextlib.contextmanager
def simulated(device: str | None, software: str | None = None) -> Iterator[str | None]:
    """While in the block the card of ``sim:NAME`` is simulated; its value is the id to compute on, None for several.

    Any other id is passed on. Raises ``UnknownDevice``, and ``UsageError`` for ``software`` that is not a simulated
    card's.
    """
    check_software(device, software)
    if device is None or not device.startswith("sim:"):
        yield device
        return
    from rung.simulation.context import simulate

    simulation = simulate(device, software=software)
    tell_taken([device])
    with simulation as card:
        yield card.id if len(simulation.devices) == 1 else None


def check_software(device: str | None, software: str | None) -> None:
    """Raise ``UsageError`` for ``software`` that is not a simulated card's."""
    if software is not None and not (device or "").startswith("sim:"):
        raise UsageError(
            "--software is of a simulated card; a device that is here has the software that is installed.",
            ways_out=[f'--device sim:p2200 --software "{software}"'],
            code="option-without-effect",
        )


def quiet_bitsandbytes() -> None:
    """PEFT and diffusers import it, and it tells people who never asked for it to install a package."""
    import logging  # the start does without

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def plan_line(plan: Plan, devices: Sequence[Device]) -> str:
    """One line: where it runs, in which format and why, what it takes of how much, and the context."""
    by_id = {device.id: device for device in devices}
    where = " + ".join(device_words(by_id[p.device]) for p in plan.placements)
    return f"{where} · {'; '.join(plan.reasons)} · {plan.memory_words()} · {context_words(plan)}"


def context_words(plan: Plan) -> str:
    """Return the context, and for how many sequences there is room."""
    return f"context {plan.context:,}" + (f" for each of {plan.parallel} sequences" if plan.parallel > 1 else "")


def part_lines(plan: Plan) -> list[str]:
    """Return a line for each format and reason of parts that are stored in another format than the plan's own."""
    roles: dict[tuple[str, str], list[str]] = {}
    for part in plan.parts:
        roles.setdefault((part.format, part.reason), []).append(part.role)
    return [f"  {name}: {' '.join(parts)}" + (f" ({why})" if why else "") for (name, why), parts in roles.items()]
