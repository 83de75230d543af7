"""Certificates of workers, for tests."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


def files(folder: Path, name: str = "{name}", trusted: Path | None = None) -> dict[str, str]:
    """Return the options for the certificate of a worker."""
    return {
        "certificate": str(folder / f"{name}.pem"),
        "certificate_key": str(folder / f"{name}.key"),
        "certificate_authority": str((trusted or folder) / "authority.pem"),
    }


def issue(
    folder: Path,
    name: str,
    *,
    seconds: float = 3600,
    uri: str | None = None,
    serial: int = 99,
    bits: int = 0,
    extra: int = 0,
    mode: int = 0o600,
) -> None:
    """Write a certificate with the given end and identity, signed by the authority of the folder.

    :param bits: of a key of RSA; 0 for one of ECDSA.
    :param extra: bytes by which the certificate is longer than it needs to be.
    :param mode: the access rights of the key.
    """
    authority = x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes())
    signs = serialization.load_pem_private_key((folder / "authority.key").read_bytes(), None)
    assert isinstance(signs, ec.EllipticCurvePrivateKey)
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = ec.generate_private_key(ec.SECP256R1())
    if bits:
        key = rsa.generate_private_key(65537, bits)
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [
        x509.DNSName(name) if uri is None else x509.UniformResourceIdentifier(uri)
    ]
    names += [x509.DNSName(f"{'x' * 50}.{number:05}.example.org") for number in range(extra // 70)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(seconds=seconds))
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(signs, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    for suffix, content, rights in (
        (".key", private, mode),
        (".pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644),
    ):
        temporary = folder / f"new{suffix}"
        temporary.touch()
        temporary.chmod(rights)
        temporary.write_bytes(content)
        temporary.replace(folder / f"{name}{suffix}")
