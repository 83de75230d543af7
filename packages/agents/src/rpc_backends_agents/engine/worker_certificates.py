"""A small authority, and a key and a certificate for each worker, for people who have no authority."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: The name of the authority's files; no worker can have it.
AUTHORITY = "authority"
_AUTHORITY_DAYS = 3650
#: Clocks of hosts may differ by this much.
_EARLIER = datetime.timedelta(hours=1)


class FolderError(Exception):
    """The folder has files that cannot be used; the text says which, and why."""


def make(folder: Path, names: list[str], days: int) -> bool:
    """Write ``NAME.pem`` and ``NAME.key`` for each worker, signed by the authority of the folder.

    The authority, ``authority.pem`` and ``authority.key``, is made if the folder has none. Files of a
    worker that are there already are replaced; the earlier certificate stays valid until it expires.

    :param days: how long the certificates are valid.
    :returns: whether an authority was made.
    :raises FolderError: the folder has an authority that cannot be used.
    :raises OSError: a file cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key = (folder / f"{AUTHORITY}{suffix}" for suffix in (".pem", ".key"))
    if certificate.exists() != key.exists():
        lacks = key if certificate.exists() else certificate
        raise FolderError(f"{folder} has half of an authority: {lacks.name} is missing")
    is_new = not certificate.exists()
    if is_new:
        secret_key = ec.generate_private_key(ec.SECP256R1())
        authority = _authority(secret_key)
        _write(key, _pem(secret_key))
        _write(certificate, authority.public_bytes(serialization.Encoding.PEM), mode=0o644)
    else:
        secret_key, authority = _read(certificate, key)
    for name in names:
        key_of_worker = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate(name, key_of_worker, authority, secret_key, days)
        _write(folder / f"{name}.key", _pem(key_of_worker))
        _write(folder / f"{name}.pem", signed.public_bytes(serialization.Encoding.PEM), mode=0o644)
    return is_new


def _read(certificate: Path, key: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        secret_key = serialization.load_pem_private_key(key.read_bytes(), password=None)
        authority = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (ValueError, TypeError) as error:
        raise FolderError(f"{certificate} or {key} cannot be read: {error}") from error
    if not isinstance(secret_key, ec.EllipticCurvePrivateKey):
        raise FolderError(f"{key} is no key that this command has made")
    if secret_key.public_key() != authority.public_key():
        raise FolderError(f"{certificate} does not belong to {key}")
    return secret_key, authority


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rpc-backends workers")])
    usage = _usage(signs_certificates=True)
    return (
        _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _certificate(
    worker: str,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, worker[:64])])
    both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(name, authority.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(worker)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file at once, so that workers never read half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
