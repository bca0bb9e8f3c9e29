"""The model hub, a few bytes at a time: what a repository holds, and the first bytes of its files.

Nothing that a server does can take long or much: every answer is bounded in bytes, all of them together in seconds.
"""

from __future__ import annotations

import _thread
import functools
import re
import time
from typing import Any
from urllib.parse import quote

from rung.core.errors import BadFile, HubError
from rung.core.shield import Outcome
from rung.core.text import size
from rung.models.files.jsonfile import LIMIT, parse_object
from rung.models.hub import Listing, errors_of_the_hub

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_CONTENT_LENGTH = re.compile(r"\d{1,18}")
#: Seconds without a byte after which a server counts as gone.
_SILENCE = 10.0
#: Bytes of a file that may be: a sparse one as long as it is made here, and file systems end at 16 TB.
_LONGEST = 2**43


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

        at = f"/revision/{quote(self.revision, safe='')}" if self.revision else ""
        url = f"{constants.ENDPOINT}/api/models/{self.repository}{at}?blobs=true"
        answer = self._get(url, "the list of its files", 0, LIMIT, None)
        try:
            files = parse_object(answer, "the answer").get("siblings")
        except BadFile as error:  # of a proxy, or of a network that wants to be logged in to
            raise self._no_list(constants.ENDPOINT, error.cause) from error
        if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
            raise self._no_list(constants.ENDPOINT, "it names no files")
        named = {str(file.get("rfilename")): file.get("size") for file in files}
        strange = [name for name, length in named.items() if type(length) is not int or not 0 <= length <= _LONGEST]
        if strange:
            raise self._no_list(constants.ENDPOINT, f"it does not say how long {strange[0][:80]} is")
        return Listing(self.repository, self.revision, named)

    def _no_list(self, endpoint: str, fact: str) -> HubError:
        return HubError(
            f"{endpoint} does not say which files {self.repository} has.",
            [fact],
            ["HF_ENDPOINT=https://...   # another hub", f"hf download {self.repository}   # and name the folder"],
        )

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
        """At most ``count`` bytes; without ``length`` the whole answer, which may be shorter.

        Asked in a thread that is left behind when the time is over: of a server that sends its headers a letter
        at a time, or to another place again and again, nothing else gets away.
        """
        answer: Outcome[bytes] = Outcome()
        asking = functools.partial(self._ask, url, name, offset, count, length)
        _thread.start_new_thread(answer.fill, (asking,))
        try:
            return answer.result(self._left(name))
        except TimeoutError:
            raise self._late(name) from None

    def _ask(self, url: str, name: str, offset: int, count: int, length: int | None) -> bytes:
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
            raise HubError(f"The hub says more than {size(count)} of {self.repository}.")
        return bytes(data[:count])

    def _left(self, name: str) -> float:
        """Seconds that are left. Raises ``HubError`` when there are none."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise self._late(name)
        return left

    def _late(self, name: str) -> HubError:
        return HubError(
            f"The hub did not give {name} of {self.repository} within {self.seconds:.0f} seconds.",
            ways_out=[f"hf download {self.repository} --include '*.json'   # and name the folder"],
        )

    def _check(self, response: Any, name: str, offset: int, length: int) -> None:
        """Raises ``HubError`` where an answer is not the range that was asked for, of the file that was listed."""
        if response.status_code == 206:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if not found or int(found[1]) != offset:
                raise self._lies(
                    name, f"asked for byte {offset:,} on, it gave {found[0] if found else 'another range'}"
                )
            stated = found[3]
        else:
            if offset:
                raise self._lies(name, "it gives whole files only, and rung asked for a part")
            stated = response.headers.get("Content-Length", "*")
        if _CONTENT_LENGTH.fullmatch(stated) and int(stated) != length:
            raise self._lies(name, f"it has {int(stated):,} bytes, and {length:,} in the list of files")

    def _lies(self, name: str, fact: str) -> HubError:
        return HubError(
            f"The hub contradicts itself about {name} of {self.repository}.",
            [fact],
            [f"hf download {self.repository}   # and name the folder"],
        )
