"""The certificate authority of a fleet, and the certificates of its nodes, all of elliptic curve P-256."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: How long certificates hold, and how far the clock of a node may be behind.
_DAYS, _BEHIND = 3650, datetime.timedelta(days=1)


def new_key() -> bytes:
    """Return a private key as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8
    pem: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return pem


def _load(key: bytes) -> ec.EllipticCurvePrivateKey:
    found = serialization.load_pem_private_key(key, None)
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    return found


def _pem(signed: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    found: bytes = signed.public_bytes(serialization.Encoding.PEM)
    return found


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEHIND)
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def new_authority(key: bytes) -> bytes:
    """Return the certificate of an authority with a private key, as PEM."""
    private, name = _load(key), _name("rung fleet")
    builder = _builder(name, name, private.public_key())
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _pem(signed.sign(private, hashes.SHA256()))


def request(key: bytes, name: str) -> bytes:
    """Return the request for a certificate of a private key, as PEM."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    return _pem(builder.sign(_load(key), hashes.SHA256()))


def sign(authority: bytes, authority_key: bytes, request_pem: bytes, name: str, address: str) -> bytes:
    """Return the certificate that a request wants, as PEM, for a name and an IP address that the authority decides.

    Nothing but the public key is taken from the request. Raises ``ValueError`` for one that is none or that its key has
    not signed.
    """
    found = x509.load_pem_x509_csr(request_pem)
    key = found.public_key()
    if not found.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the request for a certificate is not signed by its key")
    issuer = x509.load_pem_x509_certificate(authority).subject
    addresses = {ipaddress.ip_address(address), ipaddress.ip_address("127.0.0.1")}
    names = x509.SubjectAlternativeName([x509.IPAddress(each) for each in addresses])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = _builder(_name(name), issuer, key)
    builder = builder.add_extension(names, critical=False).add_extension(usage, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return _pem(builder.sign(_load(authority_key), hashes.SHA256()))


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate (PEM, or DER) in URL-safe base64 without padding."""
    der = ssl.PEM_cert_to_DER_cert(certificate.decode()) if certificate.startswith(b"-----") else certificate
    return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).decode().rstrip("=")
