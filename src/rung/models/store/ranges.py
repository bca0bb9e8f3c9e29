"""A file from an address into a part on disk: what an earlier call had of it is kept, and the rest asked for."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rung.core.errors import DownloadError

_SECONDS = 30.0
_PIECE = 2**18
#: How often a transfer that broke off is taken up again while each time brings something.
_TIMES = 5


def download(
    address: str, part: Path, headers: Mapping[str, str], progress: Callable[[int], None] = lambda done: None
) -> None:
    """Bring ``part`` to the whole of what is at ``address``; ``progress`` is called with the bytes that are here.

    Raises ``DownloadError`` (what came stays in ``part``), and ``OSError`` where ``part`` cannot be written.
    """
    for attempt in range(_TIMES):
        before = part.stat().st_size if part.exists() else 0
        try:
            if _transfer(address, part, headers, progress):
                return
            reason = "it broke off"
        except _Refused as error:
            raise DownloadError(f"{_shown(address)} answers {error}.") from error
        except _DiskError as error:
            raise error.error from error
        except _TRANSPORT as error:
            reason = _words(error)
        here = part.stat().st_size if part.exists() else 0
        if here <= before or attempt == _TIMES - 1:
            break
    raise DownloadError(f"{_shown(address)} could not be fetched: {reason}.")


def read(address: str, headers: Mapping[str, str], most: int) -> tuple[bytes, str, str]:
    """Return at most ``most`` bytes of a page, its type and its address. Raises ``DownloadError``."""
    try:
        with _opened(address, headers) as answer:
            return answer.read(most), answer.headers.get("Content-Type") or "", answer.geturl()
    except (_Refused, *_TRANSPORT) as error:
        raise DownloadError(f"{_shown(address)}: {_words(error)}.") from error


class _Refused(Exception):
    """A status of the server that another attempt does not change."""


_TRANSPORT = (OSError, http.client.HTTPException, ValueError)


def _transfer(address: str, part: Path, headers: Mapping[str, str], progress: Callable[[int], None]) -> bool:
    """Add to ``part``; return whether it is whole now."""
    here = part.stat().st_size if part.exists() else 0
    request_headers = {**headers, "Range": f"bytes={here}-"} if here else dict(headers)
    with _opened(address, request_headers) as answer:
        status = getattr(answer, "status", None)
        if status == 416:  # nothing is left to send, or the part is longer than the file
            whole = re.fullmatch(r"bytes \*/(\d+)", answer.headers.get("Content-Range") or "")
            if whole and int(whole[1]) == here:
                return True
            part.unlink()
            return False
        begins, total = _range_of(answer, status, here)
        if begins > here:
            raise _Refused(f"with bytes from {begins}, asked for {here}")
        return _copy(answer, part, begins, total, progress)


def _copy(answer: Any, part: Path, begins: int, total: int, progress: Callable[[int], None]) -> bool:
    """Write what comes into ``part`` from byte ``begins``; return whether it is whole."""
    done = begins
    with _of_the_disk():
        file = _open_part(part, begins)
    with contextlib.closing(file):
        while piece := answer.read(_PIECE):
            with _of_the_disk():
                file.write(piece)
                file.flush()
            done += len(piece)
            progress(done)
    return total < 0 or done == total


def _range_of(answer: Any, status: int | None, here: int) -> tuple[int, int]:
    """Return where in the file an answer begins, and the file's length, -1 if nobody says."""
    length = int(answer.headers.get("Content-Length") or -1)
    if status != 206:  # all of it: a server without ranges, a file
        return 0, length
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range") or "")
    if not found:
        return here, here + length if length >= 0 else -1
    return int(found[1]), -1 if found[2] == "*" else int(found[2])


class _DiskError(Exception):
    """Carries an ``OSError`` of the disk past the handler of the network's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def _of_the_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _DiskError(error) from error


def _open_part(part: Path, begins: int) -> IO[bytes]:
    file = open(part, "r+b" if part.exists() else "w+b")  # noqa: SIM115 - the caller closes it
    file.truncate(begins)
    file.seek(begins)
    return file


def _opened(address: str, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(address, headers={"User-Agent": "rung", **headers})
    try:
        return urllib.request.urlopen(request, timeout=_SECONDS, context=_certificates())
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error
        raise _Refused(f"{error.code} {error.reason}") from error


def _certificates() -> ssl.SSLContext:
    """Return the authorities that pip and requests are told to trust, else the system's."""
    configured = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=configured if configured and Path(configured).is_file() else None)


def _shown(address: str) -> str:
    """Return an address without the name and password that may stand in it."""
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _words(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return " ".join(str(getattr(reason, "strerror", None) or reason).split())[:200] or type(error).__name__
