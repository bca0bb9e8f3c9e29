"""``rung calibrate``: measures this processor's rates, so that plans made here predict its speed."""

from __future__ import annotations

from rung.cli import options
from rung.cli.output import console, print_json, table


def calibrate(
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Measure how fast this processor decodes in each format (two or three minutes), for the plans made here."""
    from rung.engine import system
    from rung.hardware import remember

    system.need_software()
    from rung.kernels.cpu import target

    count = system.threads(threads)
    target.configure(count)  # before Numba is imported, which fixes its target and its threads
    from rung.engine.calibrate import calibrate as measure

    device = next(d for d in system.proven_devices(lambda d: None) if d.kind == "cpu")
    with console(stderr=True).status("calibrating") as status:
        found = measure(device, count, lambda what: status.update(f"calibrating: {what}"))
    note = remember.write_rates(device, found)
    if json:
        print_json({"device": device.id, "rates": found, "note": note})
        return
    rows = table("", "")
    for name, rate in found.items():
        rows.add_row(name, _words(name, rate))
    console().print(rows)
    console(stderr=True).print(note or "Plans made here use these rates from now on.")


def _words(name: str, rate: float) -> str:
    """Seconds of a layer, shares, and else bytes or operations a second."""
    if name == "spread":
        return f"{rate:.0%}"
    return f"{rate * 1e6:.1f} us" if name.startswith(("layer", "expert")) else f"{rate / 1e9:.1f} G/s"
