"""Talk to the head over HTTPS: pinned to the certificate that a join token names, or to the fleet's authority."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from rung.core.errors import RungError, UsageError
from rung.fleet.keys import certificates
from rung.fleet.keys import folder as files
from rung.fleet.keys.folder import Folder
from rung.fleet.messages import BatchAnswer, BatchRequest, FleetStatus, Named, NodeReport, Text

#: The port on which the head listens for other machines, where none is named.
PORT = 8470
#: Seconds that the head has to answer; a node that leaves waits for its answers to end.
_SECONDS, LEAVE_SECONDS = 30.0, 120.0
#: Seconds that an answer of a batch may take: it may wait behind others.
ANSWER_SECONDS = 3600.0
#: Seconds after which the head says that the fleet has not ended, and its word where it has.
POLL_SECONDS, ENDED = 10.0, "ended"
#: Bytes of an answer at most.
_MOST_ANSWER = 2**24

T = TypeVar("T", bound=msgspec.Struct)


def split_address(text: str) -> tuple[str, int]:
    """Return the host and port of ``ADDRESS[:PORT]``. Raises ``UsageError``."""
    host, colon, port = text.rpartition(":") if text.count(":") == 1 or text.startswith("[") else (text, "", "")
    if colon and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise UsageError(f"{text} is no address: ADDRESS or ADDRESS:PORT.", code="address-unusable")
    return (host.strip("[]") if colon else text.strip("[]")), int(port) if colon else PORT


class Client:
    """A connection to the head that is known to be the head."""

    def __init__(self, connection: http.client.HTTPSConnection, token: str = "") -> None:
        self._connection, self._token = connection, token

    @property
    def own_address(self) -> str:
        """Return the address by which this machine reaches the head."""
        return str(self._connection.sock.getsockname()[0])

    @property
    def address(self) -> str:
        """Return the address and port of the head, which its certificate names."""
        host, port = self._connection.sock.getpeername()[:2]
        return f"{host}:{port}"

    def call(self, path: str, body: msgspec.Struct | None, kind: type[T], seconds: float = _SECONDS) -> T:
        """Return the answer of the head. Raises ``RungError``, with the head's words where it refuses."""
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        data = None if body is None else msgspec.json.encode(body)
        try:
            if self._connection.sock is None:
                raise OSError("the connection has ended")
            self._connection.sock.settimeout(seconds)
            self._connection.request("GET" if body is None else "POST", path, data, headers)
            answer = self._connection.getresponse()
            content = answer.read(_MOST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(self._connection.host, self._connection.port, error) from error
        if answer.status != 200:
            raise _refusal(content)
        return msgspec.json.decode(content, type=kind)

    def leave(self, name: str) -> None:
        """Have a node drained: return when its answers have ended. Raises ``RungError``."""
        self.call("/leave", Named(name), Text, LEAVE_SECONDS)

    def status(self) -> FleetStatus:
        """Return the state of the fleet. Raises ``RungError``."""
        return self.call("/status", None, FleetStatus)

    def rejoin(self, report: NodeReport) -> str:
        """Have the head know a node that it had, or that one before it had; return Ray's address. Raises
        ``RungError``."""
        return self.call("/rejoin", report, Text).text

    def wait_end(self) -> None:
        """Return when the head ends the fleet. Raises ``RungError`` where it is gone without a word."""
        while self.call("/end", None, Text).text != ENDED:
            pass

    def answer(self, message: BatchRequest) -> BatchAnswer:
        """Return the answer to a request of a batch. Raises ``RungError``."""
        return self.call("/answer", message, BatchAnswer, ANSWER_SECONDS)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _refusal(content: bytes) -> RungError:
    try:
        found: dict[str, Any] = msgspec.json.decode(content)
        return RungError(str(found["error"]), found.get("facts", ()), found.get("ways_out", ()), code=found["code"])
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return RungError("What listens there is no head of a fleet.", code="fleet-unreachable")


def _unreachable(host: str, port: int, error: Exception) -> RungError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return RungError(
        f"The head of the fleet at {host}:{port} does not answer: {reason}.",
        (),
        [f"rung fleet up MODEL --address {host}   # there"],
        code="fleet-unreachable",
    )


@contextmanager
def connected(head: str, fingerprint: str) -> Iterator[Client]:
    """Connect to a head whose certificate has a fingerprint. Raises ``RungError``; nothing is sent to another one."""
    host, port = split_address(head)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the fingerprint says who it is
    connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        shown = connection.sock.getpeercert(binary_form=True)
        if shown is None or certificates.fingerprint(shown) != fingerprint:
            raise RungError(
                f"{host}:{port} is not the head that the token is of: it has another certificate.",
                (),
                ["rung fleet token   # on the head: prints a new one"],
                code="fleet-token",
            )
        yield Client(connection)
    except OSError as error:
        raise _unreachable(host, port, error) from error
    finally:
        connection.close()


def of_member(folder: Folder) -> Client:
    """Return a connection to the head of this machine's fleet. Raises ``RungError``."""
    host, port = split_address(folder.require_member().control)
    context = ssl.create_default_context(cafile=str(folder.path / files.AUTHORITY))
    context.load_cert_chain(folder.path / files.CERTIFICATE, folder.path / files.KEY)
    connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        connection.connect()
    except OSError as error:
        raise _unreachable(host, port, error) from error
    return Client(connection, folder.token)
