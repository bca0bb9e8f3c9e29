"""``rung setup``: which torch fits a card, driver, Python and system, and what goes with it; installs and checks it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import interrupts, options
from rung.cli.views.output import print_json
from rung.core.errors import SoftwareMissing, UsageError
from rung.core.text import quoted

if TYPE_CHECKING:
    from rung.core.types import Device
    from rung.run.environment import Environment
    from rung.run.install import Change
    from rung.software.companions import Host
    from rung.software.setup import Setup

_Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device", help="Choose for this card instead of those here; several: one build for all.", show_default=False
    ),
]
_Torch = Annotated[
    str,
    typer.Option(
        "--torch",
        metavar="VERSION",
        help="Choose only among builds of this torch: 2.7, 2.7.1+cu126.",
        show_default=False,
    ),
]
_Driver = Annotated[str, typer.Option("--driver", help="NVIDIA driver of that machine: 535.54.", show_default=False)]
_Python = Annotated[str, typer.Option("--python", help="Python of that machine: 3.12.", show_default=False)]
_System = Annotated[
    str,
    typer.Option(
        "--os",
        help="System of that machine: linux, windows or macos; linux-aarch64 on an Arm processor.",
        show_default=False,
    ),
]
_Venv = Annotated[
    str, typer.Option("--venv", metavar="ENV", help="Check or install in this virtual environment.", show_default=False)
]
_Base = Annotated[bool, typer.Option("--system", help="Allow --apply to change the system's Python.")]
_Apply = Annotated[bool, typer.Option("--apply", help="Install it, then verify that it computes.")]
_With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="PACKAGE",
        help="Install these packages, too, with --apply: bitsandbytes, xformers, triton.",
        show_default=False,
    ),
]
_Yes = Annotated[bool, typer.Option("--yes", help="Install without asking, with --apply.")]
_Check = Annotated[bool, typer.Option("--check", help="Judge what is installed now.")]
_There = Annotated[
    str | None,
    typer.Option(
        "--software",
        help='Releases that are installed there, with --check and --device: "torch 2.9+cu130".',
        show_default=False,
    ),
]
_Index = Annotated[str, typer.Option("--index-url", help="Take packages from this index.", show_default=False)]
_Extra = Annotated[
    list[str] | None, typer.Option("--extra-index-url", help="Take packages from this index, too.", show_default=False)
]


def setup(
    device: _Devices = None,
    torch: _Torch = "",
    driver: _Driver = "",
    python: _Python = "",
    os: _System = "",
    venv: _Venv = "",
    apply: _Apply = False,
    with_: _With = None,
    system: _Base = False,
    yes: _Yes = False,
    check: _Check = False,
    software: _There = None,
    index_url: _Index = "",
    extra_index_url: _Extra = None,
    json: options.Json = False,
) -> None:
    """Choose the torch that fits the GPU, its driver, Python and system, and what goes with it; install it, check it.

    Prints commands and changes nothing, unless --apply. --check exits with 1 when something installed does not fit.
    """
    from rung.run import environment

    _check_options(device, driver, apply, with_, system, yes, check, software)
    here = environment.at(venv) if venv else environment.current()
    _check_environment(here, python, os, driver, apply, check and software is None)
    devices, others = _devices(device, python or here.version, software)
    from rung.software.installed import host_of

    if apply or (check and not os and software is None):
        os = f"{here.system}-{here.machine}"

    hosts = [host_of(d, (here.system, here.machine), python or here.version, driver, os) for d in devices]
    indexes = _indexes(index_url, extra_index_url or ())
    found = _choose(hosts, torch, indexes)
    if check:
        _judge(here, found, json, device or (), devices if software is not None else ())
    elif apply:
        _install(here, devices, found, with_ or [], system, yes, json)
    elif json:
        print_json({"setups": [one.to_json() for one in found]})
    else:
        _show(found, devices, others)


def _check_options(
    device: Sequence[str] | None,
    driver: str,
    apply: bool,
    packages: Sequence[str] | None,
    system: bool,
    yes: bool,
    check: bool,
    software: str | None,
) -> None:
    """Raise ``UsageError`` for options that exclude each other, have no effect, or have no such value."""
    if apply and check:
        raise UsageError(
            "--apply and --check exclude each other.",
            ways_out=["rung setup --check"],
            code="options-exclude-each-other",
        )
    idle = [name for name, value in (("--with", packages), ("--yes", yes), ("--system", system)) if value and not apply]
    if idle:
        raise UsageError(
            f"{' and '.join(idle)}: only with --apply.",
            ways_out=["rung setup --apply --venv ENV"],
            code="option-without-effect",
        )
    if driver and not all(part.isdecimal() for part in driver.split(".")):
        raise UsageError(
            f"{driver!r} is no version of a driver.", ways_out=["rung setup --driver 535.54"], code="value-out-of-range"
        )
    if software is not None and not (check and device):
        raise UsageError(
            "--software goes with --check and --device: it is judged for a card, whatever is installed here.",
            ways_out=[f'rung setup --check --device p2200 --software "{software}"'],
            code="option-without-effect",
        )


def _check_environment(here: Environment, python: str, os: str, driver: str, apply: bool, judged: bool) -> None:
    """Raise ``UsageError`` where the environment that is changed or judged is not the one that the options describe."""
    if python and (apply or judged) and python != here.version:
        raise UsageError(
            f"{here.prefix} has Python {here.version}, not {python}.", ways_out=[f"python{python} -m venv ENV"]
        )
    if apply and (os or driver):
        raise UsageError(
            "--os and --driver describe a machine elsewhere; --apply is about this one.", code="option-without-effect"
        )


def _devices(
    names: Sequence[str] | None, python: str, software: str | None = None
) -> tuple[list[Device], list[Device]]:
    """Return the devices to choose for, and the other devices of this machine."""
    from rung.hardware.select import select_device
    from rung.software.installed import devices_here

    try:
        major, minor = (int(part) for part in python.split("."))
    except ValueError:
        raise UsageError(
            f"{python!r} is no version of Python.", ways_out=["rung setup --python 3.12"], code="value-out-of-range"
        ) from None
    if major != 3:
        raise UsageError(
            f"There is no torch for Python {major}.{minor}.",
            ways_out=["rung setup --python 3.12"],
            code="no-torch-build",
        )
    if names:
        return [select_device(name.removeprefix("sim:"), software) for name in names], []
    chosen, others = devices_here()
    return list(chosen), list(others)


def _indexes(url: str, extra: Sequence[str]) -> tuple[str, ...]:
    arguments = ("--index-url", url) if url else ()
    return (*arguments, *(word for one in extra for word in ("--extra-index-url", one)))


def _choose(hosts: Sequence[Host], torch: str, indexes: Sequence[str]) -> list[Setup]:
    """One setup for all hosts, or one for each where no build serves all of them."""
    from rung.software.setup import choose

    if all_ := choose(hosts, torch, indexes):
        return [all_]
    found = [choose([host], torch, indexes) for host in hosts]
    for host, one in zip(hosts, found, strict=True):
        if one is None:
            _no_such_torch(torch, host)
    return [one for one in found if one]


def _no_such_torch(torch: str, host: Host) -> None:
    from rung.hardware.catalog.releases import builds
    from rung.software.setup import choose

    known = {build.release for build in builds()}
    fits = choose([host])
    instead = f"{fits.torch.version} fits {host.card}" if fits else ""
    if ".".join(torch.partition("+")[0].split(".")[:2]) not in known:
        raise UsageError(f"The catalog knows no torch {torch}.", [instead], ["rung setup"], code="no-torch-build")
    raise UsageError(
        f"No build of torch {torch} carries code for {host.card} ({host.target}).",
        [instead],
        ["rung setup"],
        code="no-torch-build",
    )


def _show(found: Sequence[Setup], devices: Sequence[Device], others: Sequence[Device]) -> None:
    from rung.cli.views import setup as views

    if len(found) > 1:
        typer.echo("No build of torch carries code for all of these; one for each:\n")
    for number, one in enumerate(found):
        typer.echo(("\n" if number else "") + "\n".join(views.lines(one)))
    for device in (*devices, *others):
        if "notes" in device.details:
            typer.echo(f"{device.name}: {device.details['notes']}")
    for device in others:
        served = "reached without torch, through WebGPU" if device.kind == "webgpu" else "not served by this build"
        typer.echo(f"Also here, {served}: {device.name}.")
    if why := _without_webgpu((*devices, *others)):
        typer.echo(f"Without torch, through WebGPU: not here, {why}.")
    if any(device.real for device in devices) and found[0].torch.arguments:
        typer.echo("Install and verify:  rung setup --apply, in a virtual environment or with --venv ENV")


def _without_webgpu(found: Sequence[Device]) -> str:
    """Why the cards of this machine are not reached through WebGPU; empty where they are, or where there is no card."""
    from rung.hardware.families import webgpu

    return webgpu.absence() if any(device.real and device.kind != "cpu" for device in found) else ""


def _judge(
    here: Environment, found: Sequence[Setup], json: bool, names: Sequence[str], there: Sequence[Device]
) -> None:
    """Judges what is installed here, or the releases that the cards ``there`` were given: the same to all."""
    from rung.cli.views import setup as views
    from rung.hardware.software import installed_in
    from rung.software.installed import judge, releases_of

    installed = releases_of(there[0]) if there else installed_in(Path(here.folder))
    findings = {text.text: text for one in found for host in one.hosts for text in judge(installed, host, one)}
    wrong = any(finding.fits is False for finding in findings.values())
    if json:
        print_json(
            {
                "installed": installed,
                "findings": [finding.to_json() for finding in findings.values()],
                "setups": [one.to_json() for one in found],
            }
        )
    else:
        cards = " and ".join(device.name for device in there)
        typer.echo(f"{cards} with the releases named" if there else f"{here.prefix} · Python {here.version}")
        for finding in findings.values():
            word = {True: "  yes  ", False: "  no   ", None: "  ?    "}[finding.fits]
            typer.echo("\n".join(views.wrapped(finding.text, word, " " * len(word))))
        commands = dict.fromkeys(one.torch.command for one in found if one.torch.command)
        if wrong:
            typer.echo("What to do")
            why = " ".join(["rung setup", *(f"--device {quoted(name)}" for name in names)])
            for number, command in enumerate((*commands, why), 1):
                typer.echo(f"  {number}  {command}")
    if wrong:
        raise typer.Exit(1)


def _install(
    here: Environment,
    devices: Sequence[Device],
    found: Sequence[Setup],
    packages: Sequence[str],
    system: bool,
    yes: bool,
    json: bool,
) -> None:
    from rung.run import install

    chosen = _only(found)
    install.may_change(here, system)
    if chosen.needs:
        raise SoftwareMissing(
            f"torch {chosen.torch.version} needs {' and '.join(chosen.needs)}.",
            ["nothing was changed"],
            _other_ways(chosen),
        )
    arguments = _arguments(chosen, packages)
    coming = install.changes(here, arguments)
    _not_taken_for_another(here, chosen, coming)
    if coming:
        _announce(here, coming)
        _run_pip(here, arguments, yes)
    else:
        typer.echo(f"Nothing to change: {install.state(here)}.", err=True)
    proven = install.verify(here, next((device for device in devices if device.real), None))
    _report(here, chosen, devices, coming, proven, json)


def _only(found: Sequence[Setup]) -> Setup:
    """Return the setup that serves all cards; raise ``UsageError`` where each has its own."""
    if len(found) > 1:
        raise UsageError(
            "No build of torch carries code for all of these cards.",
            ways_out=["rung setup --device CARD"],
            code="no-torch-build",
        )
    return found[0]


def _run_pip(here: Environment, arguments: Sequence[str], yes: bool) -> None:
    """Install, after asking on a terminal; Ctrl-C lets pip put back what it was replacing."""
    from rung.run import install

    if sys.stdin is not None and sys.stdin.isatty() and not yes:
        typer.confirm("Go on?", abort=True, err=True)
    interrupts.keep_running()  # pip puts back what it was replacing
    try:
        install.install(here, arguments)
    except install.Interrupted as stopped:
        typer.echo(str(stopped), err=True)
        raise


def _other_ways(chosen: Setup) -> list[str]:
    ways = ["rung setup   # what fits, and why"]
    if chosen.python:
        ways.insert(0, f"python{chosen.python} -m venv ENV, then rung setup --apply --venv ENV")
    if chosen.otherwise and chosen.otherwise.command:
        ways.append(f"on the processor: {chosen.otherwise.command}")
    return ways


def _arguments(chosen: Setup, packages: Sequence[str]) -> tuple[str, ...]:
    """Return pip's arguments for torch and the packages in one call, so that neither replaces the other's choice."""
    if not chosen.torch.arguments:
        raise SoftwareMissing(
            f"torch {chosen.torch.version} is a file that pip does not fetch.", ways_out=[str(chosen.torch.command)]
        )
    known = {one.package: one for one in chosen.packages if one.how in ("install", "optional")}
    extra: list[str] = []
    for name in packages:
        if name not in known or "--no-build-isolation" in known[name].arguments:
            reason = next((one.reason for one in chosen.packages if one.package == name), "rung setup does not know it")
            raise UsageError(f"{name} cannot be installed with it: {reason}.", ways_out=["rung setup"])
        extra += known[name].arguments[:1]
    first, *where = chosen.torch.arguments
    if extra and "--index-url" in where and "download.pytorch.org" in where[-1]:
        where += ["--extra-index-url", "https://pypi.org/simple"]
    return (first, *extra, *where)


def _not_taken_for_another(here: Environment, chosen: Setup, coming: Sequence[Change]) -> None:
    """Raises when pip takes another build of torch for the one that is wanted: of the index, or the installed one."""
    from rung.hardware.software import installed_in
    from rung.software.installed import judge

    installed = installed_in(Path(here.folder))
    local = chosen.torch.version.partition("+")[2]
    for change in coming:
        if change.package == "torch":
            if local and change.after.partition("+")[2] not in ("", local):
                raise SoftwareMissing(
                    f"The index gives torch {change.after}, not {chosen.torch.version}.",
                    ["nothing was changed"],
                    ["rung setup --apply   # without --index-url: the official index"],
                )
            return
    if "torch" not in installed:
        return
    for host in chosen.hosts:
        torch = judge(installed, host, chosen)[0]
        if torch.fits is False:
            raise SoftwareMissing(
                f"pip takes the installed torch {torch.version} for {chosen.torch.version}.",
                [torch.text, "nothing was changed"],
                [f"{here.python} -m pip uninstall torch", "rung setup --apply"],
            )


def _announce(here: Environment, coming: Sequence[Change]) -> None:
    typer.echo(f"Changes in {here.prefix} (Python {here.version}):", err=True)
    for change in coming:
        before = f"{change.before} → " if change.before else "new: "
        typer.echo(f"  {change.package}  {before}{change.after}", err=True)


def _report(
    here: Environment,
    chosen: Setup,
    devices: Sequence[Device],
    coming: Sequence[Change],
    proven: Sequence[tuple[str, Any]],
    json: bool,
) -> None:
    """Print what the probe proved; exit with 1 when f32 is not multiplied right."""
    from rung.cli.views import setup as views
    from rung.hardware.software import installed_in

    wrong = any(dtype == "f32" and (not outcome.ok or outcome.value) for dtype, outcome in proven)
    if json:
        verified = {dtype: (outcome.value if outcome.ok else outcome.error) for dtype, outcome in proven}
        changes = [change.to_json() for change in coming]
        print_json({"setups": [chosen.to_json()], "changes": changes, "verified": verified})
    else:
        torch = installed_in(Path(here.folder)).get("torch", "")
        for line in views.verified(here.version, torch, chosen, devices, proven):
            typer.echo(line)
    if wrong:
        raise typer.Exit(1)
