"""Looking at files of certificates, keys and revocation lists: what they are, how long they are good, what fits what.

What is not named is looked for beside the file, where ``helio keygen`` puts it: ``host2.key`` beside ``host2.crt``,
``ca.crt`` and ``ca.crl`` in the same directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from heliograph.clock import SYSTEM_CLOCK, Clock
from heliograph.errors import CertificateError
from heliograph.federation import pem
from heliograph.federation.authority import now_of
from heliograph.federation.certificates import (
    alternative_names,
    fingerprint,
    is_ca,
    label,
    listed,
    listed_by,
    name_of,
    number_of,
    serial_text,
    signed_by,
)
from heliograph.federation.keyfiles import exposed
from heliograph.federation.lifetimes import Lifetime, Status
from heliograph.federation.trust import Trust, out_of_time


class RevokedInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a revocation list."""

    serial: str
    time: datetime
    reason: str


class Inspected(msgspec.Struct, kw_only=True):
    """Everything about one thing in a file. A ``trouble`` makes it useless, a ``note`` does not."""

    path: str
    kind: str
    """``ca``, ``certificate``, ``key``, ``crl``; ``unknown`` if it cannot be read."""
    status: Status = "ok"
    name: str = ""
    names: list[str] = []
    issuer: str = ""
    serial: str = ""
    not_before: datetime | None = None
    not_after: datetime | None = None
    days_left: float | None = None
    key_type: str = ""
    fingerprint: str = ""
    key_file: str = ""
    key_fits: bool | None = None
    """Whether key and certificate belong together; None if one of them is not there or encrypted."""
    ca_file: str = ""
    signed_by_ca: bool | None = None
    """Whether a CA in that file signed it; None if there is no such file."""
    number: int | None = None
    revoked: list[RevokedInfo] = []
    encrypted: bool | None = None
    troubles: list[str] = []
    notes: list[str] = []


class Beside(NamedTuple):
    """Files that were named; None is looked for."""

    ca: Path | None = None
    crl: Path | None = None
    key: Path | None = None


NOTHING_NAMED: Final = Beside()


def inspect(paths: Sequence[Path], beside: Beside = NOTHING_NAMED, *, clock: Clock = SYSTEM_CLOCK) -> list[Inspected]:
    """Everything in these files, in order."""
    return [one for path in paths for one in _file(path, beside, now_of(clock))]


def _file(path: Path, beside: Beside, now: datetime) -> list[Inspected]:
    data = pem.read(path, "file")
    try:
        kinds = pem.blocks(data, path)
    except CertificateError as error:
        return [_judged(Inspected(path=str(path), kind="unknown", troubles=[str(error)]))]
    if not kinds:
        return [_judged(Inspected(path=str(path), kind="unknown", troubles=["there is nothing in PEM in this file"]))]
    return [_judged(_block(kind, text, path, at, beside, now)) for at, (kind, text) in enumerate(kinds)]


def _block(kind: str, text: bytes, path: Path, at: int, beside: Beside, now: datetime) -> Inspected:
    try:
        if kind == pem.CERTIFICATE:
            return _certificate(pem.certificates(text, path)[0], path, at, beside, now)
        if kind == pem.CRL:
            return _list(pem.revocation_lists(text, path)[0], path, beside, now)
        if kind.endswith("PRIVATE KEY"):
            return _key(text, path)
    except CertificateError as error:
        return Inspected(path=str(path), kind="unknown", troubles=[str(error)])
    return Inspected(path=str(path), kind="unknown", notes=[f"'{kind}' means nothing to Heliograph"])


def _judged(one: Inspected) -> Inspected:
    if one.troubles:
        one.status = "bad"
    elif one.notes:
        one.status = "warn"
    return one


# -- certificates -------------------------------------------------------------------------------------------


def _certificate(found: x509.Certificate, path: Path, at: int, beside: Beside, now: datetime) -> Inspected:
    lifetime = Lifetime(
        what="ca" if is_ca(found) else "certificate", name=label(found.subject), path=str(path), fingerprint="",
        begins=found.not_valid_before_utc, ends=found.not_valid_after_utc,
    )  # fmt: skip
    one = Inspected(
        path=str(path), kind=lifetime.what, name=lifetime.name, names=alternative_names(found),
        issuer=label(found.issuer), serial=serial_text(found.serial_number), not_before=lifetime.begins,
        not_after=lifetime.ends, days_left=round(lifetime.days_left(now), 2), key_type=_type_of(found.public_key()),
        fingerprint=fingerprint(found), troubles=[], notes=[],
    )  # fmt: skip
    if reason := out_of_time(found, now):
        one.troubles.append(f"it {reason}")
    elif lifetime.status(now) != "ok":
        one.notes.append(f"it expires in {lifetime.days_left(now):.1f} days")
    if one.kind == "certificate":
        _check_name(one, found)
    _check_ca(one, found, path, beside, now)
    if at == 0:
        _check_key(one, found, path, beside)
    return one


def _check_name(one: Inspected, found: x509.Certificate) -> None:
    try:
        name_of(found)
    except CertificateError as error:
        one.troubles.append(str(error))


def _check_ca(one: Inspected, found: x509.Certificate, path: Path, beside: Beside, now: datetime) -> None:
    if one.kind == "ca" and signed_by(found, found):
        one.signed_by_ca, one.ca_file = True, str(path)
        return
    ca = beside.ca or _there(path.with_name("ca.crt"))
    if ca is None:
        return
    one.ca_file = str(ca)
    cas = pem.certificates(pem.read(ca, "CA bundle"), ca, "CA certificate")
    one.signed_by_ca = any(signed_by(found, other) for other in cas)
    crl = beside.crl or _there(ca.with_suffix(".crl"))
    lists = pem.revocation_lists(pem.read(crl, "revocation list"), crl) if crl else None
    reason = Trust(cas, lists).why_invalid(found, now)
    if reason and not out_of_time(found, now):
        one.troubles.append(reason)


def _check_key(one: Inspected, found: x509.Certificate, path: Path, beside: Beside) -> None:
    key = beside.key or _there(path.with_suffix(".key"))
    if key is None:
        return
    try:
        data = pem.read(key, "key")
    except CertificateError as error:
        # Its owner alone may read it: whoever looks at certificates need not be the station.
        (one.notes if beside.key is None else one.troubles).append(f"{error}; it was not compared")
        return
    one.key_file = str(key)
    if warning := exposed(key):
        one.notes.append(warning)
    if pem.is_encrypted(data):
        return
    try:
        one.key_fits = pem.same_key(pem.private_key(data, key).public_key(), found.public_key())
    except CertificateError as error:
        one.key_fits = False
        one.troubles.append(str(error))
        return
    if not one.key_fits:
        one.troubles.append(f"the key {key} does not fit this certificate")


def _there(path: Path) -> Path | None:
    return path if path.is_file() else None


def _type_of(key: object) -> str:
    match key:
        case ec.EllipticCurvePublicKey() | ec.EllipticCurvePrivateKey():
            return f"ECDSA {'P-256' if key.curve.name == 'secp256r1' else key.curve.name}"
        case rsa.RSAPublicKey() | rsa.RSAPrivateKey():
            return f"RSA {key.key_size}"
        case ed25519.Ed25519PublicKey() | ed25519.Ed25519PrivateKey():
            return "Ed25519"
    return type(key).__name__


# -- keys and lists -----------------------------------------------------------------------------------------


def _key(text: bytes, path: Path) -> Inspected:
    one = Inspected(path=str(path), kind="key", encrypted=pem.is_encrypted(text), troubles=[], notes=[])
    if warning := exposed(path):
        one.notes.append(warning)
    if one.encrypted:
        return one
    key = pem.private_key(text, path)
    one.key_type = _type_of(key)
    cert = _there(path.with_suffix(".crt"))
    if cert is not None:
        found = pem.certificates(pem.read(cert, "certificate"), cert)[0]
        one.name = label(found.subject)
        one.key_fits = pem.same_key(key.public_key(), found.public_key())
        if not one.key_fits:
            one.troubles.append(f"it does not fit the certificate {cert}")
    return one


def _list(found: x509.CertificateRevocationList, path: Path, beside: Beside, now: datetime) -> Inspected:
    one = Inspected(
        path=str(path), kind="crl", name=label(found.issuer), issuer=label(found.issuer), number=number_of(found),
        not_before=found.last_update_utc, not_after=found.next_update_utc, troubles=[], notes=[],
        revoked=[RevokedInfo(serial=serial_text(e.serial), time=e.when, reason=e.reason) for e in listed(found)],
    )  # fmt: skip
    if found.next_update_utc is not None:
        one.days_left = round((found.next_update_utc - now).total_seconds() / 86_400, 2)
        if one.days_left < 0:
            one.troubles.append("it has expired: every link is refused until its CA signs a new one")
    ca = beside.ca or _there(path.with_suffix(".crt")) or _there(path.with_name("ca.crt"))
    if ca is not None:
        one.ca_file = str(ca)
        cas = pem.certificates(pem.read(ca, "CA bundle"), ca, "CA certificate")
        one.signed_by_ca = any(listed_by(found, other) for other in cas)
        if not one.signed_by_ca:
            one.troubles.append(f"no CA in {ca} signed it")
    return one
