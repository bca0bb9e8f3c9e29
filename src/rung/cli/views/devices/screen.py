"""The screen of ``rung devices``: a device's memory as a bar, its load, what holds it, what would still fit."""

from __future__ import annotations

import os

from rung.cli.views.devices.verdict import fits
from rung.core.text import size
from rung.core.types import Device
from rung.hardware import occupants
from rung.hardware.families.webgpu import SOFTWARE

_BAR = 24
#: How many processes are named, and the share of the memory below which one is not.
_NAMED, _LEAST = 3, 0.01


def state(device: Device) -> list[str]:
    """Return a line each about memory, load, the processes that hold it and the models that would still fit."""
    lines = [_memory(device), _load(device), _holders(device), _fits(device)]
    return [line for line in lines if line]


def _memory(device: Device) -> str:
    if device.free is None or not device.memory:
        return ""
    used = max(device.memory - device.free, 0)
    full = round(_BAR * used / device.memory)
    return f"memory   [{'#' * full}{'.' * (_BAR - full)}] {size(used)} used, {size(device.free)} free"


def _load(device: Device) -> str:
    """Return the programs that wanted the processor in the last minute; of a card its driver tells rung nothing."""
    if device.kind != "cpu" or not hasattr(os, "getloadavg"):
        return ""
    try:
        busy = os.getloadavg()[0]
    except OSError:
        return ""
    cores = int(device.details.get("cores", 1))
    word = "idle" if busy < 0.1 * cores else "busy" if busy < cores else "more work than cores"
    return f"load     {busy:.1f} in the last minute, {word}"


def _holders(device: Device) -> str:
    largest = [p for p in occupants.of(device) if p["bytes"] >= _LEAST * (device.memory or 1)]
    named = [f"{process['name']} {size(process['bytes'])} (pid {process['pid']})" for process in largest[:_NAMED]]
    return f"held by  {', '.join(named)}" if named else ""


def _fits(device: Device) -> str:
    known = device.free is not None and device.memory and device.arch != SOFTWARE
    return f"fits     {fits(device).partition(': ')[2]}" if known else ""
