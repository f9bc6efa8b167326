"""TLS for links: version 1.3 only, both sides verified, nobody trusted but the CAs in the bundle.

Contexts are made from files and never changed; whoever wants others makes new ones (see ``tlsfiles``). No session is
resumed: a resumed one would not look at the certificate again, nor at the revocation list.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from heliograph.errors import CertificateError, NotFound
from heliograph.federation import pem
from heliograph.federation.certificates import fingerprint, is_ca, label, name_of, number_of
from heliograph.federation.keyfiles import exposed
from heliograph.federation.lifetimes import Lifetime
from heliograph.federation.trust import Trust

_TRIES: Final = 3


class TlsPaths(NamedTuple):
    """Where the files are: certificate, its key, bundle of CAs, and revocation lists if they are to be checked."""

    cert: Path
    key: Path
    ca: Path
    crl: Path | None = None

    def signature(self) -> tuple[object, ...]:
        """Differs when a file was replaced or written to, also through a link that leads elsewhere now."""
        return tuple(_signature(path) for path in self if path is not None)


def _signature(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class TlsMaterial(NamedTuple):
    """Everything that was made from one state of the files."""

    name: str
    certificate: x509.Certificate
    server: ssl.SSLContext
    client: ssl.SSLContext
    trust: Trust
    lifetimes: Sequence[Lifetime]
    warnings: Sequence[str]
    signature: tuple[object, ...]


def load(paths: TlsPaths) -> TlsMaterial:
    """Read the files and make contexts from them; CertificateError or NotFound says what is wrong.

    Files are read twice, by us and by OpenSSL: both must have seen the same.
    """
    for _ in range(_TRIES):
        before = paths.signature()
        found = _load(paths, before)
        if paths.signature() == before:
            return found
    raise CertificateError(f"{paths.cert}, {paths.key} or {paths.ca} change all the time; try again")


def _load(paths: TlsPaths, signature: tuple[object, ...]) -> TlsMaterial:
    chain = pem.certificates(pem.read(paths.cert, "certificate"), paths.cert)
    own = chain[0]
    try:
        name = name_of(own)
    except CertificateError as error:
        raise CertificateError(f"{paths.cert}: {error}") from None
    key = pem.private_key(pem.read(paths.key, "key"), paths.key)
    if not pem.same_key(key.public_key(), own.public_key()):
        raise CertificateError(
            f"the key {paths.key} does not fit the certificate {paths.cert}: they are of two pairs, or one of them is "
            "being replaced"
        )
    trust = Trust(_bundle(paths.ca), _lists(paths.crl))
    return TlsMaterial(
        name=name, certificate=own, server=_context(paths, trust, server=True),
        client=_context(paths, trust, server=False), trust=trust, lifetimes=_lifetimes(paths, own, trust),
        warnings=[text for text in (exposed(paths.key), *trust.oddities()) if text], signature=signature,
    )  # fmt: skip


def _bundle(path: Path) -> list[x509.Certificate]:
    found = pem.certificates(pem.read(path, "CA bundle"), path, "CA certificate")
    for certificate in found:
        if not is_ca(certificate):
            raise CertificateError(f"{path} is no bundle of CAs: '{label(certificate.subject)}' in it is not one")
    return found


def _lists(path: Path | None) -> list[x509.CertificateRevocationList] | None:
    return None if path is None else pem.revocation_lists(pem.read(path, "revocation list"), path)


def _context(paths: TlsPaths, trust: Trust, *, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = not server
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    if server:
        context.num_tickets = 0
    context.load_verify_locations(cadata=b"".join(ca.public_bytes(Encoding.DER) for ca in trust.cas))
    if paths.crl is not None:
        context.load_verify_locations(cafile=paths.crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    try:
        context.load_cert_chain(paths.cert, paths.key, password=_no_passphrase)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise CertificateError(f"cannot use the certificate {paths.cert} with {paths.key}: {error}") from None
    return context


def _no_passphrase() -> str:
    """Without this OpenSSL would ask on the terminal and wait."""
    raise CertificateError("the key is encrypted; a station's key has no passphrase")


def _lifetimes(paths: TlsPaths, own: x509.Certificate, trust: Trust) -> list[Lifetime]:
    found = [_lifetime("certificate", own, paths.cert), *(_lifetime("ca", ca, paths.ca) for ca in trust.cas)]
    return found + [
        Lifetime(
            what="crl", name=label(crl.issuer), path=str(paths.crl), fingerprint=str(number_of(crl)),
            begins=crl.last_update_utc, ends=crl.next_update_utc,
        )
        for crl in trust.crls or []
        if crl.next_update_utc is not None
    ]  # fmt: skip


def _lifetime(what: Literal["certificate", "ca"], certificate: x509.Certificate, path: Path) -> Lifetime:
    return Lifetime(
        what=what, name=label(certificate.subject), path=str(path),
        fingerprint=fingerprint(certificate), begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
    )  # fmt: skip


# -- what a failed handshake means --------------------------------------------------------------------------

_VERIFY: Final = {
    3: "there is no revocation list of the CA that signed the peer's certificate; append it to the file of lists",
    7: "the signature of the peer's certificate is wrong",
    8: "the revocation list's signature is wrong",
    9: "the peer's certificate is not valid yet; is a clock wrong?",
    10: "the peer's certificate has expired; renew it there with 'helio keygen renew'",
    11: "the revocation list is not valid yet; is a clock wrong?",
    12: "the revocation list has expired; its CA has to sign a new one",
    18: "the peer's certificate is signed by itself, not by a CA in the bundle",
    19: "the peer's certificate was signed by a CA that is not in the bundle",
    20: "the peer's certificate was signed by a CA that is not in the bundle",
    21: "the peer's certificate was signed by a CA that is not in the bundle",
    23: "the peer's certificate was revoked",
    26: "the peer's certificate is not meant for this end of a link",
    62: "the hub's certificate is for another name: dial a name or address in it, or add this one with --san",
    64: "the hub's certificate is for another address: dial a name or address in it, or add this one with --san",
}
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer showed no certificate; both sides of a link need one",
    "UNSUPPORTED_PROTOCOL": "the peer speaks a version of TLS before 1.3",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS here",
    "HTTP_REQUEST": "the peer speaks plain HTTP; a hub wants TLS (wss://)",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other side refused the version of TLS; links speak 1.3",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side wants a certificate and got none",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side refused this station's certificate, or its own list: expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the other side refused this station's certificate: revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side refused this station's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side refused this station's certificate: bad, or not valid yet",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the other side refused this station's certificate: not meant for this",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not know the CA that signed this station's certificate",
    "TLSV1_ALERT_DECRYPT_ERROR": "the other side refused this station's certificate: its signature is wrong",
}


def refusal(error: BaseException) -> str:
    """Why a handshake failed, in words that say what to do. Anything else is described as it describes itself."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY.get(error.verify_code, f"the peer's certificate is refused: {error.verify_message}")
    if isinstance(error, TimeoutError | ConnectionAbortedError):  # the latter is how event loops say it
        return "the TLS handshake was not done in time"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError):
        return "the other side hung up; if that was right after the handshake, its log says why it refused"
    if isinstance(error, ssl.SSLError):
        reason = (getattr(error, "reason", None) or "").upper().replace(" ", "_").replace("/", "_")
        return _REASONS.get(reason, f"the TLS handshake failed: {reason or error}")
    if isinstance(error, CertificateError | NotFound):
        return str(error)
    if isinstance(error, OSError) and error.strerror:  # no such host, no route to it
        return error.strerror
    return f"{type(error).__name__}: {error}"
