"""The head of a fleet: makes its keys, starts Ray, lets machines in, and serves the models to clients."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from rung.fleet import control, node, page, ray_node
from rung.fleet.control_client import PORT
from rung.fleet.keys import certificates
from rung.fleet.keys import folder as files
from rung.fleet.keys.folder import Folder, JoinTokens, Member
from rung.server import serve as server
from rung.server.protocol import Load

#: Bytes of the token of Ray, which are its hexadecimal digits.
_TOKEN_BYTES = 32
#: Seconds between two looks whether Ray runs, and what is said where it does not.
_LOOK_SECONDS = 0.5
_LOST = (
    "Ray's own head on this machine has ended, and the fleet with it. Its nodes wait for an hour: "
    "the same rung fleet up has it back."
)


@dataclass(frozen=True)
class Own:
    """This machine as the head: its address for the others, the port on which they join, its name, and whether it
    computes nothing itself."""

    address: str = "127.0.0.1"
    control_port: int = PORT
    name: str | None = None
    head_only: bool = False


def make_keys(folder: Folder, name: str, address: str) -> bool:
    """Make the authority of a fleet, the head's certificate and the token of Ray. Where a head before this one has not
    ended its fleet its authority and token stay, by which its nodes come back; return whether that is so."""
    is_kept = folder.has(files.AUTHORITY, files.AUTHORITY_KEY, files.TOKEN)
    key = certificates.new_key()
    if is_kept:
        authority, authority_key = folder.read(files.AUTHORITY), folder.read(files.AUTHORITY_KEY)
        token = folder.read(files.TOKEN)
    else:
        authority_key = certificates.new_key()
        authority = certificates.new_authority(authority_key)
        token = secrets.token_hex(_TOKEN_BYTES).encode()
    certificate = certificates.sign(authority, authority_key, certificates.request(key, name), name, address)
    written = {files.AUTHORITY: authority, files.AUTHORITY_KEY: authority_key, files.CERTIFICATE: certificate}
    for each, data in {**written, files.KEY: key, files.TOKEN: token}.items():
        folder.write(each, data)
    return is_kept


def up(
    models: Mapping[str, Load],
    settings: server.Settings,
    own: Own = Own(),
    on_note: Callable[[str], None] = lambda text: None,
    on_key: Callable[[str], None] = lambda text: None,
) -> None:
    """Begin a fleet and serve ``models`` until SIGTERM, Ctrl-C or ``rung fleet down``.

    Nodes reach the head at its own address, clients the server at ``settings.host``. Raises ``RungError``.
    """
    folder = Folder.of_settings()
    folder.require_none()
    address, versions, named = own.address, node.versions(), node.name_of(own.name)
    with server.bind(address, own.control_port) as listener:
        port = listener.getsockname()[1]
        if make_keys(folder, named, address):
            on_note("The fleet before was not ended: its nodes come back.")
        os.environ.update(ray_node.environment(folder))  # this process is a driver of Ray, too
        report = node.report(named, address)
        if own.head_only:
            report = msgspec.structs.replace(report, device_class="")
        running = ray_node.RayNode(folder, named, address, node.labels(report))
        try:
            head = f"{address}:{port}"
            ray_address = _begin(running, folder, named, address, head)
            tokens = JoinTokens(certificates.fingerprint(folder.read(files.CERTIFICATE)))
            from rung.fleet.pool import FleetPool  # Ray reads its settings when it is imported

            async def let_in(pool: FleetPool) -> None:
                on_note(f"fleet: {head}   rung fleet join {head} --token {tokens.new()}   # once, within the hour")
                serving = control.serve(control.Control(folder, pool, tokens, ray_address), folder, listener)
                await asyncio.gather(serving, _watch_ray(running, on_note))

            pool = FleetPool(models, ray_address, versions, on_note, let_in, _end)
            pool.connect()
            pool.enter(report)
            pool.url = f"http://{settings.host}:{settings.port}"
            server.serve(
                replace(settings, models={}),
                on_note,
                on_key=on_key,
                on_page=lambda address: on_note(f"{address}fleet   the nodes, what they do, and what failed"),
                pool=pool,
                more=page.endpoints(pool),
            )
            folder.clear()  # after an error the keys stay, so that nodes of the fleet come back
        finally:
            running.stop()


def _begin(running: ray_node.RayNode, folder: Folder, named: str, address: str, head: str) -> str:
    """Start Ray's head, and note in the folder that this machine is the head of a fleet; return Ray's address."""
    found = running.start_head(ray_node.free_port(address))
    folder.enter(Member(name=named, address=address, process=os.getpid(), control=head, ray=found, is_head=True))
    return found


async def _watch_ray(running: ray_node.RayNode, on_note: Callable[[str], None]) -> None:
    """End this process where Ray's own head beside it has ended: at once, as nothing that it has of Ray answers any
    more, and without a word to nodes, which come back as to a head that was killed."""
    while await asyncio.to_thread(running.watch):
        await asyncio.sleep(_LOOK_SECONDS)
    on_note(_LOST)
    running.stop()
    os._exit(1)


def _end() -> None:
    """End this process as SIGTERM does, once the answer to whoever wants it is written."""
    asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
