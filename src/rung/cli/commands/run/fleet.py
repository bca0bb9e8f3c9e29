"""Serve models on many unequal machines as one, over Ray."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import options
from rung.cli.views.output import note
from rung.core.errors import UsageError
from rung.core.text import size

if TYPE_CHECKING:
    from rung.fleet.messages import FleetStatus, ModelStatus, NodeStatus


def up(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Models to serve, as rung serve takes them.", show_default=False),
    ],
    address: Annotated[
        str, typer.Option("--address", help="Address of this machine by which the others reach it.")
    ] = "127.0.0.1",
    control_port: Annotated[
        int, typer.Option("--control-port", min=0, max=65535, help="Port on which machines join; 0: any free one.")
    ] = 8470,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of this machine; its host name by default.", show_default=False)
    ] = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8080,
    key: options.Keys = None,
    no_key: options.NoKey = False,
    head_only: Annotated[
        bool, typer.Option("--head-only", help="Compute nothing on this machine, only on those that join.")
    ] = False,
    format: options.Format = None,
    memory: options.Memory = None,
    context: options.Context = None,
    parallel: options.Parallel = None,
    cache_type: options.CacheType = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but a key that was made.")] = False,
) -> None:
    """Begin a fleet that serves models, on this machine and on those that join.

    Ray runs with a token and TLS; both are made here. The line that another machine joins with is printed.
    """
    from rung.cli import interrupts
    from rung.fleet import head, ray_node

    ray_node.require()
    from rung.models.lookup import DEMO, find_path
    from rung.server import serve as server
    from rung.server.protocol import Load

    common = {
        "format": format,
        "memory": memory,
        "context": context,
        "parallel": parallel,
        "cache_type": cache_type,
        "threads": threads,
        "offline": offline,
    }
    loads = {each: Load(each if each == DEMO else str(find_path(each, offline=offline)), common) for each in models}
    settings = server.Settings({}, host=host, port=port, keys=tuple(key or ()), no_key=no_key)
    interrupts.keep_running()
    own = head.Own(address, control_port, name, head_only)
    head.up(loads, settings, own, lambda text: None if quiet else note(text), note)


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


def leave() -> None:
    """Take this machine out of its fleet when the answers that it computes have ended."""
    from rung.fleet.keys.folder import Folder

    folder = Folder.of_settings()
    member = folder.require_member()
    if member.is_head:
        raise UsageError("This machine is the head: without it there is no fleet.", (), ["rung fleet down"])
    os.kill(member.process, signal.SIGTERM)
    while folder.member() is not None:
        time.sleep(0.1)


def status(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the nodes of the fleet: devices, models, speeds, and what is computed."""
    from rung.fleet import ray_node

    ray_node.require()
    import msgspec

    from rung.fleet import control_client
    from rung.fleet.keys.folder import Folder

    found = control_client.of_member(Folder.of_settings()).status()
    print(msgspec.json.encode(found).decode() if json else shown(found))


def shown(found: FleetStatus) -> str:
    """Return a status as text."""
    up = sum(each.state == "up" for each in found.nodes)
    head = f"{found.url}   {up} of {len(found.nodes)} nodes up, {found.waiting} requests wait"
    return "\n".join([head, *(line for each in found.nodes for line in _node(each))])


def _node(node: NodeStatus) -> list[str]:
    report = node.report
    devices = ", ".join(f"{each.name} {size(each.budget)} free" for each in report.devices)
    about = f"{report.name}  {node.state}  {report.address}  {report.device_class}  {devices}"
    return ["", about, *(f"  {_model(each)}" for each in node.models)]


def _model(model: ModelStatus) -> str:
    layers = f", {model.layers}" if model.layers else ""
    if model.rates is None:
        taken = f", {size(model.memory)}" if model.layers else ""
        return f"{model.model}: {model.state}{layers}{taken}"
    rates, now = model.rates, f", now at {model.speed:.0%} of that" if abs(model.speed - 1) > 0.1 else ""
    room = f"{model.running} of {model.slots} answers, context {model.context:,}, {size(model.memory)}"
    speed = f"{rates.decode_sum:,.0f} tokens/s together, {rates.decode:,.0f} alone{now}"
    return f"{model.model}: {model.state}{layers}, {model.format}, {room}; {speed}"


def token() -> None:
    """Print a token with which one machine joins, within the hour."""
    from rung.fleet import ray_node

    ray_node.require()
    from rung.fleet import control_client
    from rung.fleet.keys.folder import Folder
    from rung.fleet.messages import Text

    print(control_client.of_member(Folder.of_settings()).call("/token", None, Text).text)


def down() -> None:
    """End the fleet of this machine when the answers that are computed have ended."""
    from rung.fleet import ray_node

    ray_node.require()
    from rung.fleet import control_client
    from rung.fleet.keys.folder import Folder
    from rung.fleet.messages import Text

    folder = Folder.of_settings()
    control_client.of_member(folder).call("/down", None, Text)
    while folder.member() is not None:
        time.sleep(0.1)


#: The commands of the group by name, in the order of its help.
COMMANDS = {"up": up, "join": join, "token": token, "status": status, "leave": leave, "down": down}
