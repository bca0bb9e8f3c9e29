"""The model hub, a few bytes at a time: what a repository holds, and the first bytes of its files.

Nothing that a server does can take long or much: every answer is bounded in bytes, all of them together in seconds.
"""

from __future__ import annotations

import re
import time
from typing import Any

from rung.core.errors import BadFile, HubError
from rung.core.text import size
from rung.models.files.jsonfile import LIMIT, parse_object
from rung.models.hub import Listing, errors_of_the_hub

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_CONTENT_LENGTH = re.compile(r"\d{1,18}")
#: Seconds without a byte after which a server counts as gone.
_SILENCE = 10.0


class Ranges:
    """One repository at one revision, for ``seconds`` from now on; can be used by several threads.

    Every method raises ``HubError`` (late, lying, gated, cannot be reached) or ``ModelNotFound``.
    """

    def __init__(self, repository: str, revision: str | None, seconds: float) -> None:
        import huggingface_hub.utils  # noqa: F401  # its import is no fault of the hub's

        self.repository = repository
        self.revision = revision
        self.seconds = seconds
        self._ends = time.monotonic() + seconds

    def listing(self) -> Listing:
        """The files of the repository with their bytes."""
        from huggingface_hub import constants

        at = f"/revision/{self.revision}" if self.revision else ""
        url = f"{constants.ENDPOINT}/api/models/{self.repository}{at}?blobs=true"
        found = parse_object(
            self._get(url, "the list of its files", 0, LIMIT, None), f"what the hub says of {self.repository}"
        )
        files = found.get("siblings")
        if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
            raise HubError(f"The hub does not say which files {self.repository} has.")
        named = {file.get("rfilename"): file.get("size") for file in files}
        sizes = {name: length if isinstance(length, int) else 0 for name, length in named.items()}
        return Listing(self.repository, self.revision, {str(name): length for name, length in sizes.items()})

    def first(self, name: str, count: int, length: int, offset: int = 0) -> bytes:
        """``count`` bytes of a file of ``length`` bytes from ``offset`` on."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.repository, name, revision=self.revision)
        count = min(count, length - offset)
        data = self._get(url, name, offset, count, length)
        if len(data) < count:
            raise self._lies(name, f"{len(data):,} bytes came, {count:,} were asked for")
        return data

    def _get(self, url: str, name: str, offset: int, count: int, length: int | None) -> bytes:
        """At most ``count`` bytes; without ``length`` the whole answer, which may be shorter."""
        from huggingface_hub import get_session
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if length is not None:
            headers["Range"] = f"bytes={offset}-{offset + count - 1}"
        data = bytearray()
        options: dict[str, Any] = {
            "headers": headers,
            "timeout": min(_SILENCE, self._left(name)),
            "follow_redirects": True,
        }
        with (
            errors_of_the_hub(self.repository, self.revision),
            get_session().stream("GET", url, **options) as response,
        ):
            hf_raise_for_status(response)
            if length is not None:
                self._check(response, name, offset, length)
            for chunk in response.iter_raw():
                data += chunk
                if len(data) >= count:
                    break
                self._left(name)
        if length is None and len(data) >= count:
            raise BadFile(f"the hub says more than {size(count)} of {self.repository}")
        return bytes(data[:count])

    def _left(self, name: str) -> float:
        """Seconds that are left. Raises ``HubError`` when there are none."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise HubError(
                f"The hub did not give {name} of {self.repository} within {self.seconds:.0f} seconds.",
                ways_out=[f"hf download {self.repository} --include '*.json'  and name the folder"],
            )
        return left

    def _check(self, response: Any, name: str, offset: int, length: int) -> None:
        """Raises ``HubError`` where an answer is not the range that was asked for, of the file that was listed."""
        if response.status_code == 206:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if not found or int(found[1]) != offset:
                raise self._lies(
                    name, f"asked for byte {offset:,} on, it gave {found[0] if found else 'another range'}"
                )
            told = found[3]
        else:
            if offset:
                raise self._lies(name, "it gives whole files only, and rung asked for a part")
            told = response.headers.get("Content-Length", "*")
        if _CONTENT_LENGTH.fullmatch(told) and int(told) != length:
            raise self._lies(name, f"it has {int(told):,} bytes, and {length:,} in the list of files")

    def _lies(self, name: str, fact: str) -> HubError:
        return HubError(
            f"The hub contradicts itself about {name} of {self.repository}.",
            [fact],
            [f"hf download {self.repository}  and name the folder"],
        )
