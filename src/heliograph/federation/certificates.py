"""Making certificates: a private CA, the certificates of its stations, and its list of those it revoked.

Nothing here touches a file. Keys are ECDSA on P-256, signatures SHA-256, serial numbers random. What is made is valid
from a day ago: a host whose clock is some hours behind must not refuse a new certificate.

The one rule of names: a station's certificate has exactly one common name, which is a valid station name of at most
64 characters and is also among its DNS names. That name is who the peer is, whatever else the certificate says.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificateIssuerPrivateKeyTypes,
    CertificatePublicKeyTypes,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from heliograph.errors import CertificateError, InvalidName
from heliograph.limits import COMMON_NAME_CHARS_MAX, SANS_MAX
from heliograph.names import check_name

BACKDATED: Final = timedelta(days=1)
ORGANISATION: Final = "Heliograph"
Key: TypeAlias = ec.EllipticCurvePrivateKey

REASONS: Final = {
    "unspecified": x509.ReasonFlags.unspecified,
    "key-compromise": x509.ReasonFlags.key_compromise,
    "affiliation-changed": x509.ReasonFlags.affiliation_changed,
    "superseded": x509.ReasonFlags.superseded,
    "cessation-of-operation": x509.ReasonFlags.cessation_of_operation,
}
_DNS: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*")


class Signer(NamedTuple):
    """A CA that can sign: its certificate and its private key."""

    certificate: x509.Certificate
    key: CertificateIssuerPrivateKeyTypes


class Revoked(NamedTuple):
    """One entry of a revocation list."""

    serial: int
    when: datetime
    reason: str


# -- names --------------------------------------------------------------------------------------------------


def check_common_name(name: object) -> str:
    """A station's name that fits a certificate, or InvalidName.

    >>> check_common_name("host2")
    'host2'
    >>> check_common_name("../x")
    Traceback (most recent call last):
    heliograph.errors.InvalidName: '../x' is not a station name: use letters, digits, '_' and '-' in words...
    """
    checked = check_name(name, "station")
    if len(checked) > COMMON_NAME_CHARS_MAX:
        raise InvalidName(
            f"'{checked[:20]}…' has {len(checked)} characters: a name in a certificate has at most "
            f"{COMMON_NAME_CHARS_MAX}"
        )
    return checked


def general_name(text: str) -> x509.GeneralName:
    """An IP address or a DNS name, as a certificate has it.

    >>> general_name("10.0.0.7"), general_name("hub.example")
    (<IPAddress(value=10.0.0.7)>, <DNSName(value='hub.example')>)
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not _DNS.fullmatch(text):
        shown = repr(text) if len(text) <= 80 else repr(text[:77]) + "…"
        raise InvalidName(
            f"{shown} is neither an IP address nor a DNS name: use letters, digits, '-', '_' and dots "
            "(an international name in its 'xn--' form), without port or scheme"
        )
    return x509.DNSName(text)


def common_names(name: x509.Name) -> list[str]:
    """All common names of a subject or issuer, as text."""
    return [str(attribute.value) for attribute in name.get_attributes_for_oid(NameOID.COMMON_NAME)]


def label(name: x509.Name) -> str:
    """What people call a subject or issuer."""
    return ", ".join(common_names(name)) or name.rfc4514_string() or "(no name)"


def general_names(certificate: x509.Certificate) -> list[x509.DNSName | x509.IPAddress]:
    """The DNS names and IP addresses of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [name for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def alternative_names(certificate: x509.Certificate) -> list[str]:
    """The same as text."""
    return [str(name.value) for name in general_names(certificate)]


def name_of(certificate: x509.Certificate) -> str:
    """Who a station's certificate says it is, by the one rule; CertificateError if it breaks the rule."""
    names = common_names(certificate.subject)
    if len(names) != 1:
        raise CertificateError(f"a station's certificate has exactly one common name, and this has {len(names)}")
    try:
        name = check_common_name(names[0])
    except InvalidName as error:
        raise CertificateError(f"the common name of a certificate must be a station's name: {error}") from None
    if x509.DNSName(name) not in general_names(certificate):
        raise CertificateError(
            f"the certificate's common name '{name}' is not among its DNS names, so it is not believed; "
            "'helio keygen instance' makes certificates that have it"
        )
    return name


def is_ca(certificate: x509.Certificate) -> bool:
    """Whether it may sign certificates."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def key_id(public: CertificatePublicKeyTypes) -> str:
    """What identifies a key in certificates: the SHA-1 of its bits, in hexadecimal."""
    return x509.SubjectKeyIdentifier.from_public_key(public).digest.hex()


def fingerprint(certificate: x509.Certificate) -> str:
    """Its SHA-256, as ``openssl x509 -fingerprint -sha256`` prints it."""
    return certificate.fingerprint(SHA256()).hex(":").upper()


def serial_text(serial: int) -> str:
    """A serial number as OpenSSL prints it.

    >>> serial_text(0xABC)
    '0ABC'
    """
    digits = f"{serial:X}"
    return digits if len(digits) % 2 == 0 else f"0{digits}"


# -- certificates -------------------------------------------------------------------------------------------


def new_key() -> Key:
    """A private key: ECDSA on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def make_ca(name: str, *, days: float, now: datetime, key: Key | None = None) -> Signer:
    """A CA that signs itself. Two of one name are still two: the subject holds a part of the key's digest."""
    key = key or new_key()
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANISATION),
            x509.NameAttribute(NameOID.COMMON_NAME, check_common_name(name)),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, identity.digest[:8].hex()),
        ]
    )
    return Signer(_sign_ca(subject, key, now=now, until=now + timedelta(days=days)), key)


def renew_ca(signer: Signer, *, days: float, now: datetime) -> x509.Certificate:
    """The same CA with the same key, for longer: whatever it signed stays good."""
    return _sign_ca(signer.certificate.subject, signer.key, now=now, until=now + timedelta(days=days))


def _sign_ca(
    subject: x509.Name, key: CertificateIssuerPrivateKeyTypes, *, now: datetime, until: datetime
) -> x509.Certificate:  # fmt: skip
    public = key.public_key()
    builder = _builder(subject, subject, public, now=now, until=until)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    return builder.sign(key, SHA256())


def issue(
    signer: Signer, name: str, names: Iterable[x509.GeneralName], public: CertificatePublicKeyTypes, *, days: float,
    now: datetime,
) -> x509.Certificate:  # fmt: skip
    """A certificate for a station, good for both ends of a link; it ends with its CA at the latest."""
    name = check_common_name(name)
    all_names = list(dict.fromkeys([x509.DNSName(name), *names]))
    if len(all_names) > SANS_MAX:
        raise InvalidName(f"a certificate has at most {SANS_MAX} names, and these are {len(all_names)}")
    until = min(now + timedelta(days=days), signer.certificate.not_valid_after_utc)
    if until <= now:
        raise CertificateError(
            f"the CA '{label(signer.certificate.subject)}' has expired; 'helio keygen renew' it first"
        )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, signer.certificate.subject, public, now=now, until=until)
    builder = builder.add_extension(x509.SubjectAlternativeName(all_names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    return builder.add_extension(_authority(signer), critical=False).sign(signer.key, SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, public: CertificatePublicKeyTypes, *, now: datetime, until: datetime
) -> x509.CertificateBuilder:  # fmt: skip
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - BACKDATED).not_valid_after(until)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _authority(signer: Signer) -> x509.AuthorityKeyIdentifier:
    try:
        own = signer.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def signed_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    """Whether this CA signed it; that neither has expired is another question."""
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


# -- revocation ---------------------------------------------------------------------------------------------


def make_crl(
    signer: Signer, revoked: Sequence[Revoked], *, number: int, now: datetime
) -> x509.CertificateRevocationList:  # fmt: skip
    """A CA's list of what it revoked. It holds until the CA ends: a list that lapses would stop every link."""
    builder = x509.CertificateRevocationListBuilder().issuer_name(signer.certificate.subject)
    builder = builder.last_update(now - BACKDATED).next_update(signer.certificate.not_valid_after_utc)
    for entry in revoked:
        one = x509.RevokedCertificateBuilder().serial_number(entry.serial).revocation_date(entry.when)
        if entry.reason != "unspecified":  # RFC 5280: then the reason should be left out
            flag = REASONS.get(entry.reason) or x509.ReasonFlags(entry.reason)
            one = one.add_extension(x509.CRLReason(flag), critical=False)
        builder = builder.add_revoked_certificate(one.build())
    builder = builder.add_extension(_authority(signer), critical=False)
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    return builder.sign(signer.key, SHA256())


def listed(crl: x509.CertificateRevocationList) -> list[Revoked]:
    """Everything on a revocation list."""
    return [entry_of(one) for one in crl]


def entry_of(one: x509.RevokedCertificate) -> Revoked:
    """One entry of a revocation list, as plain values."""
    try:
        flag = one.extensions.get_extension_for_class(x509.CRLReason).value.reason
    except x509.ExtensionNotFound:
        flag = x509.ReasonFlags.unspecified
    reason = next((name for name, known in REASONS.items() if known is flag), flag.value)
    return Revoked(one.serial_number, one.revocation_date_utc, reason)


def number_of(crl: x509.CertificateRevocationList) -> int:
    """The list's number, which grows with every new one; 0 if it has none."""
    try:
        return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return 0


def listed_by(crl: x509.CertificateRevocationList, ca: x509.Certificate) -> bool:
    """Whether this CA signed the list."""
    if crl.issuer != ca.subject:
        return False
    try:
        return crl.is_signature_valid(ca.public_key())  # type: ignore[arg-type]  # of another kind: TypeError
    except (TypeError, ValueError):
        return False
