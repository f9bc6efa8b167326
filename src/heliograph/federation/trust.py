"""Whom the CA bundle and the revocation list vouch for, asked at any time: a live link's certificate may have ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from cryptography import x509

from heliograph.errors import CertificateError
from heliograph.federation.certificates import Revoked, label, listed, listed_by, signed_by

_CHAIN_MAX: Final = 8
_KNOWN_MAX: Final = 10_000


class _List(NamedTuple):
    entries: dict[int, Revoked]
    ends: datetime | None

    @classmethod
    def of(cls, crl: x509.CertificateRevocationList) -> _List:
        return cls({entry.serial: entry for entry in listed(crl)}, crl.next_update_utc)


class Trust:
    """CAs and their revocation lists. ``crls`` is None where revocation is not checked."""

    def __init__(
        self, cas: Sequence[x509.Certificate], crls: Sequence[x509.CertificateRevocationList] | None = None
    ) -> None:
        self.cas = list(cas)
        self.crls = None if crls is None else list(crls)
        # Signatures are checked once: whoever has many links asks for each of them, again and again.
        self._issuers: dict[x509.Certificate, list[x509.Certificate]] = {}
        self._lists = {ca: [_List.of(crl) for crl in crls or () if listed_by(crl, ca)] for ca in self.cas}

    def why_invalid(self, certificate: x509.Certificate, now: datetime) -> str | None:
        """Why a station's certificate is not good at this time, in words; None if it is."""
        reason = out_of_time(certificate, now)
        if reason:
            return f"the certificate {reason}"
        issuers = self._issuers_of(certificate)
        if not issuers:
            return (
                f"the certificate was signed by '{label(certificate.issuer)}', which is none of the CAs in the bundle"
            )
        # A renewed CA stands there twice with one key; one good copy is enough.
        reasons = [self._why_issuer(ca, now) or self._why_revoked(certificate, ca, now) for ca in issuers]
        return None if None in reasons else reasons[0]

    def _issuers_of(self, certificate: x509.Certificate) -> list[x509.Certificate]:
        found = self._issuers.get(certificate)
        if found is None:
            found = [ca for ca in self.cas if signed_by(certificate, ca)]
            if len(self._issuers) < _KNOWN_MAX:
                self._issuers[certificate] = found
        return found

    def _why_issuer(self, ca: x509.Certificate, now: datetime, depth: int = 0) -> str | None:
        """A CA is good if it is in its time and was signed by itself or by a good one of the bundle."""
        reason = out_of_time(ca, now)
        if reason:
            return f"its CA '{label(ca.subject)}' {reason}"
        above = self._issuers_of(ca) if depth < _CHAIN_MAX else []
        if ca in above:
            return None
        if not above:
            return f"its CA '{label(ca.subject)}' was signed by none of the CAs in the bundle"
        reasons = [self._why_issuer(other, now, depth + 1) for other in above]
        return None if None in reasons else reasons[0]

    def _why_revoked(self, certificate: x509.Certificate, ca: x509.Certificate, now: datetime) -> str | None:
        if self.crls is None:
            return None
        lists = self._lists[ca]
        if not lists:
            return f"there is no revocation list of its CA '{label(ca.subject)}'"
        for crl in lists:
            entry = crl.entries.get(certificate.serial_number)
            if entry is not None:
                return f"the certificate was revoked on {day(entry.when)} ({entry.reason})"
        if all(crl.ends is not None and crl.ends < now for crl in lists):
            return f"the revocation list of its CA '{label(ca.subject)}' has expired"
        return None

    def oddities(self) -> list[str]:
        """What does no harm by itself but is hardly meant."""
        if self.crls is None:
            return []
        found = [
            f"the revocation list of '{label(crl.issuer)}' was signed by no CA in the bundle, so it is not used"
            for crl in self.crls
            if not any(listed_by(crl, ca) for ca in self.cas)
        ]
        return found + [
            f"there is no revocation list of the CA '{label(ca.subject)}': every certificate it signed is refused. "
            "Append its list to the file"
            for ca in self.cas
            if not self._lists[ca]
        ]


def out_of_time(certificate: x509.Certificate, now: datetime) -> str | None:
    """Whether it has expired or has not begun, in words."""
    if now > certificate.not_valid_after_utc:
        return f"expired on {day(certificate.not_valid_after_utc)}"
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {day(certificate.not_valid_before_utc)}; is a clock wrong?"
    return None


def day(moment: datetime) -> str:
    """A moment as people write it, in UTC."""
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def parse(certificate_der: bytes) -> x509.Certificate:
    """A certificate as it came over the wire."""
    try:
        return x509.load_der_x509_certificate(certificate_der)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"the peer's certificate is damaged: {error}") from None
