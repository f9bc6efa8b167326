"""Certificates, keys and revocation lists in PEM files, read strictly: what is cut off or does not belong is an error.

A file that is copied while it is read must not look like a shorter one that is whole, and a certificate that
strays into a revocation list would be trusted as a CA.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from heliograph.errors import CertificateError, NotFound
from heliograph.limits import PEM_BYTES_MAX

CERTIFICATE: Final = "CERTIFICATE"
CRL: Final = "X509 CRL"
_BEGIN: Final = b"-----BEGIN "
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----\r?\n.*?-----END \1-----", re.DOTALL)


def read(path: str | Path, what: str) -> bytes:
    """A file's bytes; ``what`` names it in errors."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no {what} {path}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise CertificateError(f"cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > PEM_BYTES_MAX:
        raise CertificateError(f"{path} is no {what}: it is larger than {PEM_BYTES_MAX} bytes")
    return data


def blocks(data: bytes, path: str | Path) -> list[tuple[str, bytes]]:
    """The kind and the text of everything in a PEM file; what stands between the blocks is commentary."""
    found = [(match[1].decode(), match[0] + b"\n") for match in _BLOCK.finditer(data)]
    if len(found) != data.count(_BEGIN):
        raise CertificateError(f"{path} is cut off or damaged: a PEM block in it has no end")
    return found


def certificates(data: bytes, path: str | Path, what: str = "certificate") -> list[x509.Certificate]:
    """All certificates of a file that holds nothing else."""
    return [_certificate(text, path) for text in _only(CERTIFICATE, data, path, what)]


def revocation_lists(data: bytes, path: str | Path) -> list[x509.CertificateRevocationList]:
    """All revocation lists of a file that holds nothing else."""
    return [_revocation_list(text, path) for text in _only(CRL, data, path, "revocation list")]


def private_key(data: bytes, path: str | Path, passphrase: bytes | None = None) -> PrivateKeyTypes:
    """The private key in a file."""
    texts = [text for kind, text in blocks(data, path) if kind.endswith("PRIVATE KEY")]
    if len(texts) != 1:
        raise CertificateError(f"{path} must hold one private key in PEM, and holds {len(texts)}")
    if is_encrypted(texts[0]) and passphrase is None:
        raise CertificateError(f"the key {path} is encrypted, and there is no passphrase")
    try:
        return load_pem_private_key(texts[0], passphrase if is_encrypted(texts[0]) else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if is_encrypted(texts[0]):
            raise CertificateError(f"cannot decrypt the key {path}: the passphrase is wrong") from None
        raise CertificateError(f"{path} holds no usable private key: {error}") from None


def is_encrypted(text: bytes) -> bool:
    """Whether a private key in PEM asks for a passphrase."""
    return b"-----BEGIN ENCRYPTED" in text or b"Proc-Type: 4,ENCRYPTED" in text


def same_key(first: PublicKeyTypes, second: PublicKeyTypes) -> bool:
    """Whether two public keys are one."""
    return public_bytes(first) == public_bytes(second)


def public_bytes(key: PublicKeyTypes) -> bytes:
    """A public key as certificates hold it."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _only(kind: str, data: bytes, path: str | Path, what: str) -> list[bytes]:
    found = blocks(data, path)
    strangers = {other for other, _ in found} - {kind}
    if strangers:
        raise CertificateError(f"{path} must hold nothing but a {what}, and holds: {', '.join(sorted(strangers))}")
    if not found:
        raise CertificateError(f"{path} holds no {what} in PEM ('-----BEGIN {kind}-----')")
    return [text for _, text in found]


def _certificate(text: bytes, path: str | Path) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificate(text)
        _ = found.public_key(), found.extensions, found.subject, found.issuer, found.not_valid_after_utc
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{path} holds a damaged certificate: {error}") from None
    return found


def _revocation_list(text: bytes, path: str | Path) -> x509.CertificateRevocationList:
    try:
        found = x509.load_pem_x509_crl(text)
        _ = found.issuer, found.extensions, found.last_update_utc, found.next_update_utc
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{path} holds a damaged revocation list: {error}") from None
    return found
