"""Models of the hub in the store: ``rung pull ORG/REPO:Q4_K_M``. What the hub's own cache holds is used there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from rung.core import locks
from rung.core.errors import DownloadError, HubError
from rung.core.settings import OFFLINE
from rung.core.text import size
from rung.models import hub
from rung.models.hub import Listing
from rung.models.locate import CONFIG, label_of, repository_of, select_files
from rung.models.store import folder
from rung.models.store.folder import Manifest, Progress, StoredFile, blob_name, disk_full, keep_blob, writing_store
from rung.models.store.starters import Starter

_SHA256, _GIT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_PIECE = 2**20


def pull_repository(
    name: str, *, offline: bool, revision: str | None, progress: Progress, on_note: Callable[[str], None]
) -> Path:
    """Return the path of a model of the hub, fetched into the store unless it is there or in the hub's cache.

    Raises ``ModelNotFound``, ``HubError``, ``DownloadError``, ``DiskFull``.
    """
    known = folder.find(name)
    if known is not None and known.is_whole and revision is None:
        return known.path
    parsed = repository_of(name)
    assert parsed is not None, "the caller has asked"
    repository, label, file = parsed
    listed, notes = hub.listing(repository, revision, offline or bool(OFFLINE.read()))
    files, chosen = select_files(listed, label, file, None)
    for note in (*notes, *chosen):
        on_note(note)
    if hub.in_cache(listed, files):
        on_note(f"The hub's cache has {repository} already: it is used there, not copied.")
        fetched = hub.fetch(listed, files)
        return fetched[0].parent if CONFIG in files else fetched[0]
    whole = repository if CONFIG in files else f"{repository}:{label_of(files[0])}".rstrip(":")
    return _keep(listed, files, name if file else whole, progress, on_note).path


def _keep(listed: Listing, files: list[str], name: str, progress: Progress, on_note: Callable[[str], None]) -> Manifest:
    """Fetch the files of a repository and make them a model of the store."""
    waiting = f"Another process fetches {name}: waiting for it."
    with writing_store(), locks.locked(folder.name_lock(name), lambda: on_note(waiting)):
        parts = folder.root() / "parts" / f"hub-{hashlib.sha256(name.lower().encode()).hexdigest()[:32]}"
        model = parts / "made"
        model.mkdir(parents=True, exist_ok=True)
        _check_room(listed, files, model)
        total, before, stored = sum(listed.files.get(file, 0) for file in files), 0, []
        for file in files:

            def came(_: str, done: int, __: int, start: int = before) -> None:
                progress(f"fetching {name}", min(start + done, total), total)

            target = model / PurePosixPath(file).name
            stored.append(_fetch_checked(listed.repository, listed.revision, file, target, came))
            before += listed.files.get(file, 0)
        found = tuple(stored)
        keep_blob(model, blob_name(found))
        shutil.rmtree(parts, ignore_errors=True)
        kind = label_of(files[0]).lower() or ("safetensors" if CONFIG in files else "")
        manifest = Manifest(name, listed.repository, "", kind, f"the model hub, {listed.repository}", found)
        folder.write_manifest(manifest)
    return manifest


def _check_room(listed: Listing, files: list[str], model: Path) -> None:
    here = sum(path.stat().st_size for path in model.iterdir())
    needed, free = sum(listed.files.get(file, 0) for file in files) - here, shutil.disk_usage(model).free
    if needed > free:
        raise disk_full(f"{size(needed)} to fetch, {size(free)} are free")


def _fetch_checked(
    repository: str, revision: str | None, file: str, target: Path, progress: Callable[[str, int, int], None]
) -> StoredFile:
    """Fetch one file, hold it against the hash that the hub states, and return what it is."""
    part = target.with_name(f"{target.name}.part")
    if not target.exists():
        etag = hub.fetch_part(repository, revision, file, part, progress)
        with open(part, "rb") as read:
            os.fsync(read.fileno())
        if not _is_right(part, etag):
            part.unlink()
            raise DownloadError(
                f"{file} of {repository} did not come as the hub says it is.",
                [f"its hash is not {etag}", "nothing of it was kept"],
                [f"rung pull {repository}   # fetches it again"],
            )
        os.replace(part, target)
    return StoredFile(target.name, target.stat().st_size, _digest(target, hashlib.sha256()))


def _is_right(path: Path, etag: str) -> bool:
    """Tell whether a file has the hash that its ETag is: of large files SHA-256, of small ones Git's; else unknown."""
    if _SHA256.fullmatch(etag):
        return _digest(path, hashlib.sha256()) == etag
    if _GIT.fullmatch(etag):
        return _digest(path, hashlib.sha1(f"blob {path.stat().st_size}\0".encode())) == etag
    return True


def _digest(path: Path, digest: hashlib._Hash) -> str:
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def fetch_file(starter: Starter, parts: Path, progress: Progress) -> None:
    """Fetch a starter's file from the hub and give it its place. Raises ``HubError``, ``DownloadError``."""
    closed = hub.is_closed(False)
    if closed:
        raise HubError(f"The model hub is closed by {closed}.", code="network-closed")
    model = parts / "made"
    model.mkdir(parents=True, exist_ok=True)
    source = starter.hub

    def came(_: str, done: int, __: int) -> None:
        progress(f"fetching {starter.name}", done, starter.size)

    found = _fetch_checked(source.repository, source.revision, source.file, model / starter.file, came)
    if found.sha256 != starter.sha256:
        shutil.rmtree(parts, ignore_errors=True)
        raise DownloadError(
            f"{source.file} of {source.repository} is not the file that rung knows.",
            [f"expected sha256 {starter.sha256[:16]}..., found {found.sha256[:16]}..."],
        )
    keep_blob(model, f"sha256-{starter.sha256}")
