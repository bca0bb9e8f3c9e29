"""The model hub: which files a repository has, and fetching some of them, through ``huggingface_hub``.

Everything of that package that rung uses is here; its errors leave as ``HubError`` or ``ModelNotFound``.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.errors import HubError, ModelNotFound, RungError
from rung.core.text import size
from rung.models.hub.resume import LARGE, complete_in_cache

#: Called with a file's name, bytes that are here and bytes in all.
Progress = Callable[[str, int, int], None]
_SECONDS = 10.0


@dataclass(frozen=True)
class Listing:
    """The files of a repository with their bytes. ``folder``: the local snapshot, when nobody else was asked."""

    repository: str
    revision: str | None
    files: dict[str, int]
    folder: Path | None = None


def listing(repository: str, revision: str | None, offline: bool) -> tuple[Listing, list[str]]:
    """The files of a repository, and notes. Without a network what was downloaded before is used and said.

    Raises ``ModelNotFound``, or ``HubError`` when it is gated, cannot be reached or nothing of it is here.
    """
    import huggingface_hub
    from huggingface_hub import constants

    if offline or constants.HF_HUB_OFFLINE:
        return _local(repository, revision, "--offline: the hub is not asked"), []
    try:
        with errors_of_the_hub(repository, revision):
            found = huggingface_hub.HfApi().model_info(
                repository, revision=revision, files_metadata=True, timeout=_SECONDS
            )
    except Unreachable as unreachable:
        try:
            local = _local(repository, revision, unreachable.cause)
        except HubError:
            raise unreachable from None
        return local, [f"the model hub cannot be reached: {repository} as it was downloaded before"]
    files = {item.rfilename: int(item.size or 0) for item in found.siblings or []}
    return Listing(repository, revision, files), []


def fetch(listed: Listing, names: Iterable[str], progress: Progress | None = None) -> list[Path]:
    """The local paths of some files, downloaded where they are not here yet; broken downloads go on where they ended.

    Raises ``HubError``.
    """
    names = list(names)
    if listed.folder is not None:
        return [listed.folder / name for name in names]
    _check_room(listed, names)
    with errors_of_the_hub(listed.repository, listed.revision):
        return [_fetch(listed, name, _bar(name, progress)) for name in names]


def _fetch(listed: Listing, name: str, bar: Any) -> Path:
    import huggingface_hub

    if listed.files.get(name, 0) >= LARGE and not _is_here(listed, name):
        complete_in_cache(listed.repository, listed.revision, name, bar)
    found = huggingface_hub.hf_hub_download(listed.repository, name, revision=listed.revision, tqdm_class=bar)
    return Path(found)


def _is_here(listed: Listing, name: str) -> bool:
    import huggingface_hub

    return isinstance(huggingface_hub.try_to_load_from_cache(listed.repository, name, revision=listed.revision), str)


def in_cache(listed: Listing, names: Iterable[str]) -> bool:
    """Tell whether the hub's cache holds all these files."""
    return listed.folder is not None or all(_is_here(listed, name) for name in names)


def is_closed(offline: bool) -> str:
    """Return the reason that keeps rung from asking the hub; empty where there is none."""
    from huggingface_hub import constants

    if offline:
        return "--offline"
    return "HF_HUB_OFFLINE=1" if constants.HF_HUB_OFFLINE else ""


def fetch_part(repository: str, revision: str | None, name: str, part: Path, progress: Progress | None) -> str:
    """Bring ``part`` to the whole of one file, going on from what it has; return the file's ETag.

    Raises ``HubError`` and ``ModelNotFound``.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    with errors_of_the_hub(repository, revision):
        url = hf_hub_url(repository, name, revision=revision)
        found = get_hf_file_metadata(url)
        with part.open("ab") as file:
            if found.size is None or file.tell() > found.size:
                file.truncate(0)
            if file.tell() != found.size:
                http_get(
                    url,
                    file,
                    resume_size=file.tell(),
                    headers=build_hf_headers(),
                    expected_size=found.size,
                    tqdm_class=_bar(name, progress),
                    displayed_filename=name,
                )
    return found.etag or ""


def _local(repository: str, revision: str | None, why: str) -> Listing:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    with errors_of_the_hub(repository, revision):
        try:
            folder = Path(huggingface_hub.snapshot_download(repository, revision=revision, local_files_only=True))
        except LocalEntryNotFoundError as error:
            partly = getattr(error, "snapshot_path", None)  # some files of the repository are here: maybe all we need
            if partly is not None:
                return _snapshot(repository, revision, Path(partly))
            at = f" at revision {revision}" if revision else ""
            way = f"rung run {repository}   # once, with a network"
            raise HubError(f"{repository}{at} is not downloaded.", [why], [way], code="network-closed") from error
    return _snapshot(repository, revision, folder)


def _snapshot(repository: str, revision: str | None, folder: Path) -> Listing:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return Listing(repository, revision, files, folder)


def _check_room(listed: Listing, names: list[str]) -> None:
    """Refuses a download that the disk cannot hold before it begins."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    missing = sum(listed.files.get(name, 0) for name in names if not _is_here(listed, name))
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if missing > free:
        raise _disk_full(listed.repository, [f"{size(missing)} to download, {size(free)} free in {folder}"])


def _disk_full(repository: str, facts: list[str]) -> HubError:
    ways = ["hf cache ls   # what takes room there", "HF_HUB_CACHE=/a/larger/disk   # where downloads go"]
    return HubError(f"{repository} does not fit on the disk.", facts, ways)


class Unreachable(HubError):
    """No network, or no hub at its other end."""

    code = "hub-unreachable"


@contextmanager
def errors_of_the_hub(repository: str, revision: str | None) -> Any:
    """Turns the errors of ``huggingface_hub`` and its transport into rung's: ``HubError`` or ``ModelNotFound``."""
    try:
        yield
    except RungError:
        raise
    except Exception as error:
        translated = _translate(error, repository, revision)
        if translated is None:
            raise
        raise translated from error


def _translate(error: Exception, repository: str, revision: str | None) -> RungError | None:
    """Return rung's error for one of the hub, the disk or the network; None for any other."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return (
        _refused_by_hub(error, repository, revision, status)
        or _refused_by_disk(error, repository)
        or _failed_on_the_way(error, repository, status)
    )


def _refused_by_hub(error: Exception, repository: str, revision: str | None, status: int | None) -> RungError | None:
    """Return the error for a repository that the hub does not have or does not give."""
    from huggingface_hub import errors

    page = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{repository}"
    log_in = "hf auth login   # or HF_TOKEN=... in the environment"
    if isinstance(error, errors.GatedRepoError):
        ways = [f"ask for access at {page}", log_in]
        return HubError(
            f"{repository} is gated: its owners want to be asked first.", [_line(error)], ways, code="hub-gated"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(
            f"{repository} has no revision {revision}.",
            [],
            [f"the revisions: {page}/tree/main"],
            code="hub-revision-unknown",
        )
    if isinstance(error, errors.RepositoryNotFoundError) or (status == 404):
        return ModelNotFound(
            f"There is no model {repository} on the hub, or you may not see it.",
            [f"{page} answers {status or 'not found'}"],
            [f"a private model: {log_in}"],
        )
    if isinstance(error, errors.HFValidationError):
        return ModelNotFound(f"{repository!r} is no name of a model on the hub.", [_line(error)])
    if status in (401, 403):
        return HubError(f"The hub does not give {repository} to you.", [_line(error)], [log_in])
    return None


def _refused_by_disk(error: Exception, repository: str) -> HubError | None:
    """Return the error for a disk that is full or a folder that cannot be written."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _disk_full(repository, [_line(error)])
    if isinstance(error, PermissionError):
        return HubError(
            f"Downloading {repository} failed: a folder cannot be written.",
            [_line(error)],
            ["HF_HOME=/a/folder"],
            code="output-unwritable",
        )
    return None


def _failed_on_the_way(error: Exception, repository: str, status: int | None) -> HubError | None:
    """Return the error for a hub that fails, or that the network does not reach."""
    from huggingface_hub import errors

    again = ["try again: a download goes on where it ended", "--offline   # if it was downloaded before"]
    if status is not None:
        return HubError(f"The hub failed on {repository} with status {status}.", [_line(error)], again)
    transport = type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "requests")
    if transport or isinstance(error, (ConnectionError, TimeoutError, errors.LocalEntryNotFoundError)):
        endpoint = os.environ.get("HF_ENDPOINT")
        where = [f"HF_ENDPOINT={endpoint}: that was asked, not https://huggingface.co"] if endpoint else []
        return Unreachable("The model hub cannot be reached.", [_line(error), *where], again)
    if isinstance(error, (errors.FileMetadataError, OSError)):
        return HubError(f"Downloading {repository} failed.", [_line(error)], again)
    return None


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _bar(name: str, progress: Progress | None) -> Any:
    """A class that ``huggingface_hub`` takes for a progress bar: it draws nothing and tells ``progress``."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})
            self._done = int(options.get("initial") or 0)
            self._tell()

        def update(self, n: float | None = 1) -> None:
            self._done += int(n or 0)
            self._tell()

        def _tell(self) -> None:
            if progress is not None:
                progress(name, self._done, int(self.total or 0))

    return Bar
