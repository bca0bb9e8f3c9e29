"""Certificates and join tokens: who gets in, judged by Python's own TLS."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")

from rung.core.errors import UsageError
from rung.fleet.keys import certificates
from rung.fleet.keys.folder import JoinTokens, fingerprint_of


@pytest.fixture
def authority():
    key = certificates.new_key()
    return certificates.new_authority(key), key


def _files(folder, authority, address: str, signer=None):
    key = certificates.new_key()
    certificate = certificates.sign(*(signer or authority), certificates.request(key, "n"), "n", address)
    for name, data in {"ca": authority[0], "cert": certificate, "key": key}.items():
        (folder / name).write_bytes(data)
    return certificate


def _handshake(folder, client: ssl.SSLContext) -> bytes:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "cert", folder / "key")
    ours, theirs = socket.socketpair()

    def accept() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True):
                pass
        except OSError:
            theirs.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname="10.1.2.3") as wrapped:
            return wrapped.getpeercert(binary_form=True)
    finally:
        ours.close()
        thread.join()


def test_a_signed_node_is_known_by_its_address_and_its_fingerprint(tmp_path, authority):
    certificate = _files(tmp_path, authority, "10.1.2.3")
    shown = _handshake(tmp_path, ssl.create_default_context(cafile=tmp_path / "ca"))
    assert certificates.fingerprint(shown) == certificates.fingerprint(certificate)


def test_another_address_and_another_authority_are_refused(tmp_path, authority):
    _files(tmp_path, authority, "10.9.9.9")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(tmp_path, ssl.create_default_context(cafile=tmp_path / "ca"))
    key = certificates.new_key()
    _files(tmp_path, authority, "10.1.2.3", signer=(certificates.new_authority(key), key))
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(tmp_path, ssl.create_default_context(cafile=tmp_path / "ca"))


def test_nonsense_is_not_signed(authority):
    for request in (b"", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever the library says
            certificates.sign(*authority, request, "n", "10.1.2.3")
    with pytest.raises(ValueError, match="address"):
        certificates.sign(*authority, certificates.request(certificates.new_key(), "n"), "n", "no address")


def test_a_token_lets_one_machine_in_for_a_while():
    now = [0.0]
    tokens = JoinTokens("print", lambda: now[0])
    first, second = tokens.new(60), tokens.new(60)
    assert fingerprint_of(first) == "print"
    assert not tokens.use("guess.print")
    assert tokens.use(first)
    assert not tokens.use(first)  # replayed
    now[0] = 61.0
    assert not tokens.use(second)  # too old
    assert not tokens.use("")


@pytest.mark.parametrize("text", ["", "abc", ".print", "abc."])
def test_what_is_no_token_is_refused(text):
    with pytest.raises(UsageError, match="join token"):
        fingerprint_of(text)
