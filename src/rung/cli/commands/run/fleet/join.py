"""``rung fleet join ADDRESS --token TOKEN``: make this machine a node of a fleet."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from rung.cli.views.output import note


def join(
    head: Annotated[
        str, typer.Argument(metavar="ADDRESS[:PORT]", help="The head, as rung fleet up printed it.", show_default=False)
    ],
    token: Annotated[str, typer.Option("--token", help="Join token: rung fleet token prints one.", show_default=False)],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of this machine; its host name by default.", show_default=False)
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Address of this machine by which the others reach it; that towards the head by default.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Make this machine a node of a fleet, until Ctrl-C, rung fleet leave, or the end of the fleet."""
    from rung.cli import interrupts
    from rung.fleet import ray_node

    ray_node.require()
    from rung.fleet import node

    ended = threading.Event()
    interrupts.keep_running()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    node.join(head, token, name, address, lambda text: None if quiet else note(text), ended)
