"""``rung fleet status``: the nodes of the fleet, what they have and compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rung.core.text import size

if TYPE_CHECKING:
    from rung.fleet.messages import FleetStatus, ModelStatus, NodeStatus


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
