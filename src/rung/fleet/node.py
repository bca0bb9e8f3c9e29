"""Describe a machine, and take it into a fleet and out of it."""

from __future__ import annotations

import os
import platform
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from rung.core.errors import RungError, UsageError
from rung.core.settings import CPU_LEVEL
from rung.core.types import Device
from rung.core.version import __version__
from rung.fleet import control_client, ray_node
from rung.fleet.keys import certificates
from rung.fleet.keys import folder as files
from rung.fleet.keys.folder import Folder, Member
from rung.fleet.keys.join_tokens import fingerprint_of
from rung.fleet.messages import CLASS_LABEL, DeviceReport, Invitation, JoinRequest, NodeReport, Versions
from rung.hardware import detect

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
#: Characters of a name or label at most: Ray's.
_MOST_NAME = 60


def versions() -> Versions:
    """Return the versions that must be equal on all nodes. Raises ``SoftwareMissing`` without Ray."""
    return Versions(".".join(platform.python_version_tuple()[:2]), ray_node.require(), __version__)


def check_versions(ours: Versions, theirs: Versions) -> None:
    """Raise ``UsageError`` where two machines could not understand each other, with the command that helps."""
    if ours.python != theirs.python:
        raise UsageError(
            f"The fleet runs Python {ours.python}, this machine {theirs.python}.",
            ["objects of Ray are read by the same minor version of Python only"],
            [f"uv venv --python {ours.python} && uv pip install 'rung[fleet]' 'ray[serve]=={ours.ray}'"],
            code="fleet-version",
        )
    if ours.ray != theirs.ray:
        raise UsageError(
            f"The fleet runs Ray {ours.ray}, this machine {theirs.ray}.",
            (),
            [f"pip install 'ray[serve]=={ours.ray}'"],
            code="fleet-version",
        )
    if ours.rung != theirs.rung:
        raise UsageError(
            f"The fleet runs rung {ours.rung}, this machine {theirs.rung}.",
            (),
            [f"pip install 'rung[fleet]=={ours.rung}'"],
            code="fleet-version",
        )


def name_of(given: str | None) -> str:
    """Return the name of a node: as given, else that of the machine. Raises ``UsageError`` for one that Ray refuses."""
    if given is None:
        return _UNFIT.sub("-", socket.gethostname())[:_MOST_NAME].strip("-.") or "node"
    if _UNFIT.search(given) or not given or len(given) > _MOST_NAME:
        raise UsageError(f"--name {given}: letters, digits, - . _ and at most {_MOST_NAME} of them.")
    return given


def class_of(devices: tuple[Device, ...]) -> str:
    """Return a word for what the bytes of answers depend on: kind and architecture of the device that computes."""
    cards = [each for each in devices if each.kind != "cpu" and each.torch_computes]
    chosen = cards[0] if cards else devices[0]
    level = CPU_LEVEL.read() if chosen.kind == "cpu" else ""
    return _UNFIT.sub("-", f"{chosen.kind}-{level or chosen.arch or chosen.name}")[:_MOST_NAME].strip("-.")


def report(name: str, address: str) -> NodeReport:
    """Return the description of this machine."""
    devices = detect.devices()
    shown = [DeviceReport(each.id, each.name, each.memory, each.budget, each.bandwidth or 0.0) for each in devices]
    return NodeReport(name, address, class_of(devices), os.cpu_count() or 1, shown)


def labels(found: NodeReport) -> dict[str, str]:
    """Return the labels by which Ray Serve finds nodes of a class."""
    return {CLASS_LABEL: found.device_class} if found.device_class else {}


def join(
    head: str, token: str, name: str | None, address: str | None, on_note: Callable[[str], None], ended: threading.Event
) -> None:
    """Join the fleet of a head (``ADDRESS:PORT``) and stay until ``ended`` is set or the head ends the fleet.

    ``address`` is where the other nodes reach this machine; by default that by which it reaches the head. Raises
    ``RungError`` where the head refuses, or cannot be reached.
    """
    folder = Folder.of_settings()
    folder.require_none()
    mine = versions()
    named = name_of(name)
    with control_client.connected(head, fingerprint_of(token)) as client:
        own, control = address or client.own_address, client.address
        ray_node.free_port(own)
        said = report(named, own)
        key = certificates.new_key()
        wanted = certificates.request(key, named).decode()
        invitation = client.call("/join", JoinRequest(token.strip(), mine, said, wanted), Invitation)
    folder.write(files.AUTHORITY, invitation.authority.encode())
    folder.write(files.CERTIFICATE, invitation.certificate.encode())
    folder.write(files.KEY, key)
    folder.write(files.TOKEN, invitation.token.encode())
    running = ray_node.RayNode(folder, named, own, labels(said))
    try:
        folder.enter(Member(name=named, address=own, process=os.getpid(), control=control, ray=invitation.ray))
        running.start(invitation.ray)
        on_note(f"{named} is in the fleet of {head}: {said.device_class}")
        while running.is_running and not ended.wait(0.2):
            pass
        if ended.is_set():
            on_note(f"{named} leaves when its answers have ended.")
            with suppress(RungError):
                control_client.of_member(folder).leave(named)
        else:
            on_note("The fleet has ended.")
    finally:
        running.stop()
        folder.clear()
