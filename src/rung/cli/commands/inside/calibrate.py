"""``rung calibrate``: measures a device's rates, so that plans made here predict its speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import options
from rung.cli.views.output import console, print_json, table
from rung.cli.views.output import note as tell

if TYPE_CHECKING:
    from rung.core.errors import RungError
    from rung.core.types import Device

#: Bytes that must be free on a GPU: the largest weights that are measured, what they are decoded to, and the context.
_NEEDED = 2 << 30
_OTHERS = ("rung calibrate --device cpu", "rung devices")
_Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Measure this one (rung devices lists them); by default the first card that computes, else the processor.",
        show_default=False,
    ),
]


def calibrate(
    device: _Device = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Measure how fast a device decodes in each format (some minutes), for the plans made here."""
    from rung.engine import planning
    from rung.hardware import probe_cache
    from rung.kernels.cpu import target

    planning.need_software(what="timing kernels")
    count = planning.compute_threads(threads)
    with console(stderr=True).status("calibrating") as status:
        chosen = _chosen(device, status.update)
        target.configure()  # before Numba is imported, which fixes its target
        from rung.engine.calibration.importance import calibrate as measure

        found = measure(chosen, count, lambda what: status.update(f"calibrating {chosen.id}: {what}"))
    note = probe_cache.write_rates(chosen, found)
    if json:
        print_json({"device": chosen.id, "rates": found, "note": note})
        return
    rows = table("", "")
    for name, rate in found.items():
        rows.add_row(name, _words(name, rate))
    console().print(rows)
    tell(note or f"Plans made here use these rates of {chosen.name} from now on.")
    if chosen.kind != "cpu":
        tell("The processor has rates of its own: rung calibrate --device cpu")


def _chosen(name: str | None, notify: Callable[[str], None]) -> Device:
    """The device that is measured. Raises ``UnknownDevice`` for what is not here or is only simulated,
    ``DeviceError`` for what computes nothing, ``OutOfMemory`` for a card with too little left."""
    from rung.core.errors import DeviceError, OutOfMemory
    from rung.core.text import size
    from rung.engine.planning import device_here
    from rung.hardware.select import catalog_device
    from rung.planning.memory import computes

    if name is not None and (card := catalog_device(name)) is not None:
        raise _not_here(card, name)
    device = device_here(name, notify)
    if not device.real:
        raise _not_here(device, device.name)
    if not (able := computes(device)):
        raise DeviceError(f"{device.name} ({device.id}) computes nothing here.", [able.reason], _OTHERS)
    if device.kind != "cpu" and device.budget < _NEEDED:
        raise OutOfMemory(
            f"Calibrating {device.name} ({device.id}) takes {size(_NEEDED)} of its memory.",
            [f"{size(device.budget)} is free"],
            ["close what else uses it, then try again", *_OTHERS],
        )
    return device


def _not_here(card: Device, name: str) -> RungError:
    from rung.core.errors import UnknownDevice
    from rung.core.text import quoted

    return UnknownDevice(
        f"{card.name} is not in this machine, so it cannot be timed.",
        ["simulated, it computes on this processor: the times would not be the card's"],
        [f"rung check MODEL --device {quoted(name.removeprefix('sim:'))}   # from the catalog's figures", *_OTHERS],
    )


def _words(name: str, rate: float) -> str:
    """Seconds of a layer or a launch, shares, and else bytes or operations a second."""
    if name == "spread":
        return f"{rate:.0%}"
    seconds = name.startswith(("layer", "expert", "launch"))
    return f"{rate * 1e6:.1f} us" if seconds else f"{rate / 1e9:.1f} G/s"
