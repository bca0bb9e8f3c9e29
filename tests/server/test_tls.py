"""``--tls-cert`` and ``--tls-key``: HTTPS, and files that are no certificate."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import urllib.request

import pytest

from rung.core.errors import UsageError
from rung.server.serve import check_tls
from tests.server.conftest import serving


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A certificate of this machine that signs itself, and its key."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = [openssl, "req", "-x509", *kind, *names, "-out", str(cert), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return str(cert), str(key)


def test_https_is_served_and_http_is_not(tmp_path, files):
    cert, key = files
    with serving(tmp_path, "demo", "--tls-cert", cert, "--tls-key", key, ready=False) as server:
        assert re.match("https://127.0.0.1:", server.url)
        trusted = ssl.create_default_context(cafile=cert)
        with urllib.request.urlopen(f"{server.url}/v1/models", context=trusted, timeout=60) as answer:
            assert answer.status == 200
        with pytest.raises(OSError, match="certificate verify failed"):
            urllib.request.urlopen(f"{server.url}/health", timeout=60)
        found = b""
        with socket.create_connection(("127.0.0.1", server.port), 60) as plain, contextlib.suppress(ConnectionError):
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            found = plain.recv(100)
        assert not found.startswith(b"HTTP")


def test_files_that_are_no_certificate_are_refused(tmp_path, files, rung):
    cert, key = files
    check_tls(None, None)
    check_tls(cert, key)
    (tmp_path / "none.pem").write_text("no certificate")
    for wrong in ((str(tmp_path / "none.pem"), key), (cert, None), (cert, str(tmp_path / "missing.pem")), (None, key)):
        with pytest.raises(UsageError):
            check_tls(*wrong)
    said = rung("serve", "demo", "--port", "0", "--tls-cert", str(tmp_path / "none.pem"))
    assert said.code == 2
    assert "none.pem" in said.err
