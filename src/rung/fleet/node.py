"""Describe a machine, and take it into a fleet and out of it."""

from __future__ import annotations

import os
import platform
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from rung.core.errors import RungError, UsageError
from rung.core.settings import CPU_LEVEL
from rung.core.types import Device
from rung.core.version import __version__
from rung.fleet import control_client, ray_node
from rung.fleet.keys import certificates
from rung.fleet.keys import folder as files
from rung.fleet.keys.folder import Folder, Member, fingerprint_of
from rung.fleet.messages import CLASS_LABEL, DeviceReport, Invitation, JoinRequest, NodeReport, Versions
from rung.hardware import detect

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
#: Characters of a name or label at most: Ray's.
_MOST_NAME = 60
#: Seconds that a node waits for a head that is gone, and between two tries.
_AWAY_SECONDS, _RETRY_SECONDS = 3600.0, 1.0


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


def name_of(name: str | None) -> str:
    """Return the name of a node: as given, else that of the machine. Raises ``UsageError`` for one that Ray refuses."""
    if name is None:
        return _UNFIT.sub("-", socket.gethostname())[:_MOST_NAME].strip("-.") or "node"
    if _UNFIT.search(name) or not name or len(name) > _MOST_NAME:
        raise UsageError(f"--name {name}: letters, digits, - . _ and at most {_MOST_NAME} of them.")
    return name


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
        node_report = report(named, own)
        key = certificates.new_key()
        certificate_request = certificates.request(key, named).decode()
        invitation = client.call(
            "/join", JoinRequest(token.strip(), mine, node_report, certificate_request), Invitation
        )
    folder.write(files.AUTHORITY, invitation.authority.encode())
    folder.write(files.CERTIFICATE, invitation.certificate.encode())
    folder.write(files.KEY, key)
    folder.write(files.TOKEN, invitation.token.encode())
    member = Member(name=named, address=own, process=os.getpid(), control=control, ray=invitation.ray)
    _stay(folder, member, node_report, head, on_note, ended)


def _stay(
    folder: Folder,
    member: Member,
    node_report: NodeReport,
    head: str,
    on_note: Callable[[str], None],
    ended: threading.Event,
) -> None:
    """Be a node until ``ended`` is set or the head ends the fleet. Where the head is gone without a word, or this
    machine was cut off, come back when the head is there. Raises ``RungError``."""
    running = ray_node.RayNode(folder, member.name, member.address, labels(node_report))
    try:
        folder.enter(member)
        running.start(member.ray)
        on_note(f"{member.name} is in the fleet of {head}: {node_report.device_class}")
        watch = _Watch(folder)
        while not (ended.wait(0.2) or watch.has_ended):
            if running.watch() and not watch.is_gone:
                continue
            if (ray := _come_back(folder, node_report, watch, on_note, ended)) is None:
                break
            if ray != member.ray or not running.is_running:
                running.stop()
                member = msgspec.structs.replace(member, ray=ray)
                folder.enter(member)
                running = ray_node.RayNode(folder, member.name, member.address, labels(node_report))
                running.start(ray)
            on_note(f"{member.name} is back in the fleet of {head}.")
            watch = _Watch(folder)
        if ended.is_set():
            on_note(f"{member.name} leaves when its answers have ended.")
            with suppress(RungError):
                control_client.of_member(folder).leave(member.name)
        else:
            on_note("The fleet has ended.")
    finally:
        running.stop()
        folder.clear()


class _Watch:
    """Hear from the head that it ends the fleet (``has_ended``), or that it does not answer (``is_gone``)."""

    def __init__(self, folder: Folder) -> None:
        self.has_ended = self.is_gone = False
        threading.Thread(target=self._wait, args=(folder,), daemon=True, name="head").start()

    def _wait(self, folder: Folder) -> None:
        try:
            control_client.of_member(folder).wait_end()
            self.has_ended = True
        except RungError:
            self.is_gone = True


def _come_back(
    folder: Folder, node_report: NodeReport, watch: _Watch, on_note: Callable[[str], None], ended: threading.Event
) -> str | None:
    """Return Ray's address once a head is there, None where none comes or this machine is to leave."""
    on_note(f"The head does not answer; {node_report.name} waits for it.")
    until = time.monotonic() + _AWAY_SECONDS
    while time.monotonic() < until and not watch.has_ended:
        try:
            return control_client.of_member(folder).rejoin(node_report)
        except RungError:
            if ended.wait(_RETRY_SECONDS):
                return None
    return None
