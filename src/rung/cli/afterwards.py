"""Hold what ``rung exec`` imports only when it is needed: the check of a card's name, and the explanation at the
end."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rung.cli.views.output import console
from rung.core.errors import UnknownDevice, UsageError
from rung.exec.launch import PROCESSOR
from rung.hardware import detect

if TYPE_CHECKING:
    from rich.console import Console

    from rung.diagnosis.explain import Explanation

#: Names of cards as examples, one of each maker and age.
_CARDS = ("p2200", "2080ti", "v100", "4090", "rx6600", "a770")
#: How programs say it that look for a GPU themselves.
_IN_OWN_WORDS = re.compile(
    r"(?i)\b(?:cuda|gpu)s?\b.{0,40}\b(?:not available|unavailable|required|needed|not found)|"
    r"\b(?:requires?|needs?|no)\b.{0,30}\b(?:cuda|gpu)"
)


def check_card(settings: Mapping[str, str], command: Sequence[str]) -> None:
    """Raises ``UnknownDevice`` and ``UsageError`` for what cannot be simulated."""
    from rung.simulation.defects import defects

    name, typed = settings.get("device", ""), shlex.join(command)
    if name == PROCESSOR and settings.keys().isdisjoint(("software", "memory", "defects")):
        return
    if name == PROCESSOR:
        raise UsageError(
            "--software, --memory and --defect are of a simulated card; --device cpu is this processor as it is.",
            ways_out=[f"rung exec --device cpu -- {typed}", f"rung exec --device sim:p2200 --memory 4GB -- {typed}"],
            code="option-without-effect",
        )
    if not name:
        raise UsageError(
            "--software, --memory and --defect are of a simulated card: --device sim:NAME.",
            ways_out=[f"rung exec --device sim:p2200 -- {typed}"],
            code="option-without-effect",
        )
    card = name.removeprefix("sim:").strip()
    if name != card and card.lower() == PROCESSOR:
        raise UsageError("The processor is here and is not simulated.", ways_out=[f"rung exec --device cpu -- {typed}"])
    _check_simulated(card, settings, typed)
    if not name.startswith("sim:"):
        raise UsageError(
            f"rung exec takes the devices that the program finds; {name} can be simulated.",
            ["--device cpu has this processor answer to CUDA", "--device sim:NAME simulates a card"],
            [f"rung exec --device cpu -- {typed}", f"rung exec --device {shlex.quote(f'sim:{name}')} -- {typed}"],
        )
    defects(settings, typed)


def _check_simulated(card: str, settings: Mapping[str, str], typed: str) -> None:
    """Raises ``UnknownDevice`` for a card that is not in the catalog, with names that are and commands for them."""
    from rung.simulation.cards import describe

    try:
        describe([card], settings.get("memory"), settings.get("software"))
    except UnknownDevice as error:
        from rung.hardware.catalog import find, products

        named = [found[1] for way in error.ways_out if (found := re.fullmatch(r'rung devices "?(.+?)"?', way))]
        near = [name for name in named if not name.startswith("--") and find(name)]
        others = "" if near else f": {', '.join(_CARDS)} and {len(products()) - len(_CARDS)} more"
        raise UnknownDevice(
            f"The program was not started: {error.cause[0].lower()}{error.cause[1:]}",
            [*error.facts, f"--device sim:NAME takes the cards of the catalog{others}"],
            [
                *(f"rung exec --device {shlex.quote(f'sim:{name}')} -- {typed}" for name in near or _CARDS[:1]),
                f"rung exec --device cpu -- {typed}",
                "rung devices --catalog",
            ],
        ) from error


def explain_end(
    last: bytes, status: int, settings: Mapping[str, str], command: Sequence[str], already: bool = False
) -> None:
    """Explains on stderr what the end of a program's stderr and the signal that ended it say, where that is known.

    ``already``: what may be the reason is said already, so a death that is no matter of the device is not called so.
    """
    from rung.cli.views.explain import show
    from rung.diagnosis.explain import explain_log

    if status < 0:  # what a shell would add
        last += f"\n{signal.strsignal(-status)} (core dumped)\n".encode()
    if not last.strip():
        return
    out = console(stderr=True)
    if "device" not in settings and (line := _asks_for_gpu(last)):
        _show_processor(out, line, command, settings)
        return
    found = explain_log([last], program_environment(settings))
    known = found.cause is not None and found.evidence  # any program may end so: words alone are too little
    if known and found.cause == "not-a-compatibility-problem":
        if not already:
            out.print(f"rung exec: {found.sentence}")
    elif known:
        out.print()
        show(_with_command(found, command), out, helped="strict" not in settings)
    elif status < 0:
        out.print("rung exec: nothing in its last words matches an error that rung knows: rung explain --list")


def _asks_for_gpu(last: bytes) -> str:
    """The line in which a Python program that died on this machine, which has no GPU, asked for one; else empty."""
    if b"Traceback (most recent call last)" not in last or b"torch" not in last or detect.accelerators():
        return ""
    from rung.diagnosis.explain import wants_gpu
    from rung.diagnosis.logs.reading import read

    found = next((hit.line for hit in reversed(read([last]).hits) if wants_gpu([hit])), "")
    ending = last.decode(errors="replace").strip().splitlines()[-1]
    return found or (ending if _IN_OWN_WORDS.search(ending) else "")


def _show_processor(out: Console, line: str, command: Sequence[str], settings: Mapping[str, str]) -> None:
    """The way out where there is no GPU: the same command on the processor."""
    strict = "--strict " if "strict" in settings else ""
    out.print(
        "\nThe program asked for a GPU, and this machine has none.\n"
        f"  {line.strip()}\n"
        "What to do\n"
        "  1  run it on this processor, without changing code\n"
        f"       rung exec {strict}--device cpu -- {shlex.join(command)}\n"
        '  2  ask for the processor in the program: device="cpu"'
    )


def _with_command(found: Explanation, command: Sequence[str]) -> Explanation:
    """The explanation with the command as it was typed; a traceback names only a script."""
    repairs = tuple(
        replace(fix, text="without changing code", command=f"rung exec -- {shlex.join(command)}")
        if fix.label == "rung-exec"
        else fix
        for fix in found.repairs
    )
    return replace(found, repairs=repairs)


def program_environment(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the environment of the program: this machine, or the simulated card."""
    from rung.diagnosis import machine

    if settings.get("device", PROCESSOR) == PROCESSOR:
        return machine.this_machine()
    from rung.simulation.cards import describe

    device = describe([settings["device"]], settings.get("memory"), settings.get("software"))[0]
    found = machine.catalog_card(device.name)
    return found | {name: device.software[name] for name in ("torch", "cuda", "driver") if name in device.software}
