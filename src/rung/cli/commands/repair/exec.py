"""``rung exec``: its help and its wrong questions; what it does is in ``executing``, which ``main`` calls first."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from rung.cli import options
from rung.core.errors import UsageError

#: What stands behind the command's name is the command's, with or without the two dashes.
CONTEXT = {"allow_interspersed_args": False}

_Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The program and its arguments.")]
_Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="cpu: this processor answers to CUDA, for programs that want a GPU; sim:p2200: a simulated card.",
        show_default=False,
    ),
]
_Memory = Annotated[
    str | None, typer.Option("--memory", help="Free memory of the simulated card: 4.6GB.", show_default=False)
]
_Defect = Annotated[
    list[str] | None,
    typer.Option(
        "--defect",
        help="An operation that fails on the simulated card: 'matmul f16 RuntimeError: CUDA error: ...'.",
        show_default=False,
    ),
]
_Strict = Annotated[bool, typer.Option("--strict", help="Only explain: repeat and repair nothing.")]


def exec(
    command: _Command,
    device: _Device = None,
    software: options.Software = None,
    memory: _Memory = None,
    defect: _Defect = None,
    strict: _Strict = False,
) -> None:
    """Run another program and help it through: refused operations are repeated one dtype or algorithm lower.

    Its output and exit code are its own; at the end stands what was done, and when it died, why.
    """
    raise UsageError(
        "Two dashes stand between the options and the command.", (), [f"rung exec -- {shlex.join(command)}"]
    )
