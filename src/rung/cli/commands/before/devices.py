"""``rung devices``: the devices of this machine, one in full, or the catalog: what each can do, with the proof."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import options
from rung.cli.views.output import console, print_json, table
from rung.core.text import quoted
from rung.core.types import Device, Proof

if TYPE_CHECKING:
    from rich.console import Console

    from rung.hardware.catalog import Product

_WATCH = "rung devices --watch"
#: Seconds between two drawings of ``--watch``.
_SECONDS = 2.0


def devices(
    name: Annotated[
        str,
        typer.Argument(
            help="One device in full: cpu, cuda:0, webgpu:0 ..., a card of the catalog (p2200), a file (my-card.toml).",
            metavar="[NAME]",
        ),
    ] = "",
    catalog: Annotated[
        bool, typer.Option("--catalog", help="List the catalog; NAME narrows it: a word of a name, sm_86, amd.")
    ] = False,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources",
            help="Show the sources of the catalog's rows, and the rows that nobody has checked (with --catalog).",
        ),
    ] = False,
    software: options.Software = None,
    capabilities: Annotated[bool, typer.Option("--capabilities", help="List what a capability's name means.")] = False,
    probe: Annotated[bool, typer.Option("--probe", help="Measure now what each device can do (about 10 s).")] = False,
    all: Annotated[
        bool, typer.Option("--all", help="Show every capability with its proof and reason, and what software runs.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every 2 s until Ctrl-C, on a terminal.")] = False,
    json: options.Json = False,
) -> None:
    """List the devices here and what each can compute.

    Measured, from the catalog, or unknown; never a yes without a proof.
    """
    _refuse_idle(catalog, sources, capabilities, software, probe)
    _refuse_all_and_watch(name, all, watch, listing=catalog or capabilities, json=json, probe=probe)
    if capabilities:
        _capabilities(json)
    elif catalog and sources:
        from rung.cli.views.pages.catalog import page

        print(page(), end="")
    elif catalog:
        _catalog(name, json)
    elif name:
        _one(name, software, probe, json, all)
    elif watch:
        _watch()
    else:
        _here(software, probe, json)


def _refuse_idle(catalog: bool, sources: bool, capabilities: bool, software: str | None, probe: bool) -> None:
    """Raises ``UsageError`` for options that would change nothing."""
    from rung.core.errors import UsageError

    if sources and not catalog:
        raise UsageError(
            "--sources is about the catalog.", (), ["rung devices --catalog --sources"], code="option-without-effect"
        )
    if software and (catalog or capabilities):
        raise UsageError(
            "--software is about one device of the catalog.",
            ways_out=[f"rung devices NAME --software {quoted(software)}"],
            code="option-without-effect",
        )
    if probe and (catalog or capabilities):
        raise UsageError("--probe measures what is here.", (), ["rung devices --probe"])


def _refuse_all_and_watch(name: str, all: bool, watch: bool, *, listing: bool, json: bool, probe: bool) -> None:
    """Raise ``UsageError`` for ``--all`` without a device and for ``--watch`` where nothing can be refreshed."""
    from rung.core.errors import UsageError

    if all and (listing or not name):
        raise UsageError(
            "--all is about one device.",
            (),
            ["rung devices cpu --all", "rung devices p2200 --all"],
            code="option-without-effect",
        )
    if watch and (name or listing or json or probe):
        raise UsageError(
            "--watch shows the devices of this machine and goes with nothing else.",
            (),
            [_WATCH],
            code="option-without-effect",
        )
    if watch and not on_screen():
        raise UsageError(
            "--watch refreshes a screen, and the output is no terminal.", (), ["rung devices", "rung devices --json"]
        )


def _here(software: str | None, probe: bool, json: bool) -> None:
    from rung.cli.views import devices as views
    from rung.core.errors import UsageError
    from rung.hardware import detect

    if software:
        raise UsageError(
            "--software goes with a device of the catalog; what is here has the software that is installed.",
            ways_out=[f'rung devices p2200 --software "{software}"'],
            code="option-without-effect",
        )
    here = detect.devices(software_adapters=True)
    found = [_probed(device) if probe else device for device in here]
    if json:
        print_json([device.to_json() for device in found])
        return
    if _offered(found):
        found = [_probed(device) for device in found]
    out = console()
    for number, device in enumerate(found):
        if number:
            out.print()
        _show(out, device)
        out.print(views.levels(device))
        for line in filter(None, (views.instruction_sets(device), views.kernels(device))):
            out.print(line)
    if why := views.without_webgpu(found):
        out.print(f"\n{why}")
    out.print(f"\nWhy: rung devices {found[0].id if len(found) == 1 else 'ID'} --all")


def _show(out: Console, device: Device) -> None:
    """Print what the device is, its memory and load now, and where its figures come from."""
    from rung.cli.views import devices as views
    from rung.cli.views.devices import state

    for line in (views.heading(device), *state(device), views.speed(device), *views.remarks(device)):
        if line:
            out.print(line)


def on_screen() -> bool:
    """Tell whether the output is a terminal."""
    return sys.stdout.isatty()


def _offered(found: list[Device]) -> bool:
    """Ask a person on a terminal whether to measure now, where no device has been measured yet."""
    from rung.cli.fetching import ask, on_terminal

    proofs = {capability.proof for device in found for capability in device.capabilities.values()}
    if Proof.PROBE in proofs or not (on_screen() and on_terminal()):
        return False
    return ask("Nothing is measured here yet. Measure now what each device can do, about 10 s a device?")


def _watch() -> None:
    """Draw the devices every 2 s until Ctrl-C."""
    from rung.hardware import detect

    out = console()
    while True:
        found = detect.devices(software_adapters=True)
        out.clear()
        for device in found:
            _show(out, device)
            out.print()
        out.print("Ctrl-C ends")
        time.sleep(_SECONDS)


def _one(name: str, software: str | None, probe: bool, json: bool, all: bool) -> None:
    from rung.cli.views import devices as views
    from rung.cli.views.devices import verdict
    from rung.core.errors import UsageError
    from rung.hardware.catalog.support import doubts, support
    from rung.hardware.select import select_device

    device = select_device(name, software)
    if probe and not device.real:
        raise UsageError(
            f"{device.name} is not in this machine; --probe measures what is here.",
            ways_out=[f"rung devices {quoted(name)}", "rung devices --probe"],
        )
    if probe:
        device = _probed(device)
    found, unknown = support(device), doubts(device)
    if json:
        print_json(views.in_full(device, found, unknown))
        return
    out = console()
    lines = [views.heading(device), *verdict(device), views.speed(device), *views.remarks(device)]
    for line in filter(None, lines):
        out.print(line)
    if all:
        out.print(views.reasons(device))
        out.print()
    named = [row for row in found if all or _names(software, row.package)]
    if named:
        out.print(views.software(named))
    for line in unknown:
        out.print(line)
    if not all:
        more = f" --software {quoted(software)}" if software else ""
        out.print(f"Why, and which software runs: rung devices {quoted(name)}{more} --all")


def _names(software: str | None, package: str) -> bool:
    """Tell whether the text of ``--software`` names this package."""
    words = [part.split()[0].lower() for part in (software or "").split(",") if part.strip()]
    return package.lower() in words


def _catalog(text: str, json: bool) -> None:
    from rung.cli.views import devices as views
    from rung.core.errors import UnknownDevice
    from rung.core.text import count
    from rung.hardware import catalog

    found = [product for product in catalog.products() if _fits(product, text)]
    if not found:
        raise UnknownDevice(
            f"Nothing in the catalog has {text!r} in its name, architecture or vendor.",
            ways_out=["rung devices --catalog"],
        )
    if json:
        print_json([catalog.device(product.name).to_json() for product in found])
        return
    for line in views.listing(found):
        typer.echo(line)
    typer.echo(f"\n{count(len(found), 'product')}. One in full: rung devices {catalog.quoted(found[0].name)}")


def _fits(product: Product, text: str) -> bool:
    from rung.hardware import catalog

    row = catalog.architectures()[product.arch]
    names = (
        product.name,
        *product.aliases,
        row.key,
        row.vendor,
        row.kind,
        row.generation,
        product.status,
        product.source,
    )
    words = " ".join(names).lower()
    spaced = words.replace(" ", "")
    return all(word in words for word in text.lower().split()) or text.lower().replace(" ", "") in spaced


def _capabilities(json: bool) -> None:
    from rung.hardware import catalog
    from rung.hardware.families.cpu import APPLE, ARM, X86

    isa = {name: f"the processor lists {' and '.join(flags)}" for name, flags in {**APPLE, **ARM, **X86}.items()}
    meanings = {
        **catalog.NAMES,
        **isa,
        "isa.kernels": "rung's own kernels, at the level of instructions that is shown",
        "subgroup": "WGSL sums over the threads of a subgroup",
    }
    if json:
        print_json(meanings)
        return
    rows = table("capability", "what it says")
    for name, meaning in meanings.items():
        rows.add_row(name, meaning)
    console().print(rows)


def _probed(device: Device) -> Device:
    from rung.run.probe import probe

    with console(stderr=True).status(f"{device.id}: starting") as status:
        return probe(device, fresh=True, progress=lambda what: status.update(f"{device.id}: {what}"))
