"""A CA on disk: ``ca.crt``, ``ca.key``, its revocation list ``ca.crl`` and its history beside them.

Whatever is signed is in the history before its certificate is on disk, so that it can be revoked by name. Revoking
holds a lock: of two at once neither may be forgotten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from heliograph.clock import SYSTEM_CLOCK, Clock, from_us
from heliograph.disk import SYSTEM_DISK, Disk
from heliograph.errors import CertificateError, NotFound
from heliograph.federation import pem
from heliograph.federation.certificates import (
    BACKDATED,
    Revoked,
    Signer,
    alternative_names,
    check_common_name,
    fingerprint,
    general_name,
    general_names,
    is_ca,
    issue,
    key_id,
    label,
    listed,
    listed_by,
    make_ca,
    make_crl,
    name_of,
    new_key,
    number_of,
    renew_ca,
    serial_text,
    signed_by,
)
from heliograph.federation.history import Entry, History
from heliograph.federation.keyfiles import PRIVATE, PUBLIC, CaFiles, place, refuse_existing
from heliograph.limits import CA_LOCK_S
from heliograph.log.locks import FileLock


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What was made or renewed, and where it is."""

    name: str
    cert: str
    key: str | None
    """None if the key that was there stays."""
    crl: str | None
    """None unless it is a CA."""
    serial: str
    fingerprint: str
    """SHA-256 of the certificate."""
    names: list[str]
    not_before: datetime
    not_after: datetime
    shortened: bool
    """Whether it ends earlier than asked for, because its CA does."""


class Withdrawn(msgspec.Struct, frozen=True, kw_only=True):
    """What was revoked, and the list that says so."""

    crl: str
    number: int
    revoked: list[str]
    """Serial numbers that are on the list since now."""
    already: list[str]
    """Serial numbers that were on it before."""
    total: int


def now_of(clock: Clock) -> datetime:
    """The wall clock's time, without fractions: certificates know whole seconds."""
    return from_us(clock.time_ns() // 1000).replace(microsecond=0)


def create_ca(
    directory: Path, name: str = "ca", *, days: float = 3650, passphrase: bytes | None = None, force: bool = False,
    clock: Clock = SYSTEM_CLOCK, disk: Disk = SYSTEM_DISK,
) -> Made:  # fmt: skip
    """Make a CA: certificate, key, and an empty revocation list."""
    base = directory / check_common_name(name)
    files = CaFiles(base.with_name(f"{base.name}.crt"))
    if not force:
        refuse_existing(files.cert, files.key, files.crl)
    now = now_of(clock)
    signer = make_ca(name, days=days, now=now)
    _place_key(files.key, signer.key, passphrase, force, disk)
    with _without(files.key, not force):
        place(files.cert, _pem(signer.certificate), mode=PUBLIC, replace=force, disk=disk)
    place(files.crl, _pem(make_crl(signer, [], number=1, now=now)), mode=PUBLIC, replace=True, disk=disk)
    return _made(name, signer.certificate, files.cert, key=files.key, crl=files.crl)


def key_is_encrypted(cert: Path, key: Path | None = None) -> bool:
    """Whether a CA's key asks for a passphrase."""
    path = key or CaFiles(cert).key
    return path.exists() and pem.is_encrypted(pem.read(path, "CA key"))


class Authority:
    """A CA that is there, with its key."""

    def __init__(
        self, cert: Path, key: Path | None = None, *, passphrase: bytes | None = None,
        clock: Clock = SYSTEM_CLOCK, disk: Disk = SYSTEM_DISK,
    ) -> None:  # fmt: skip
        self._files = files = CaFiles(cert)
        files.key = key or files.key
        self._clock = clock
        self._disk = disk
        certificate = load_one(cert, "CA certificate")
        if not is_ca(certificate):
            raise CertificateError(f"{cert} is the certificate of '{label(certificate.subject)}', not of a CA")
        found = pem.private_key(pem.read(files.key, "CA key"), files.key, passphrase)
        if not pem.same_key(found.public_key(), certificate.public_key()):
            raise CertificateError(f"the key {files.key} does not belong to the CA certificate {cert}")
        self.signer = Signer(certificate, _signing(found, files.key))
        self._history = History(files.history, disk)

    # -- certificates ---------------------------------------------------------------------------------------

    def issue(
        self, directory: Path, name: str, names: Sequence[str] = (), *, days: float = 365, force: bool = False
    ) -> Made:
        """Make a station's key and certificate, ``NAME.key`` and ``NAME.crt``."""
        check_common_name(name)
        cert, key = directory / f"{name}.crt", directory / f"{name}.key"
        if not force:
            refuse_existing(cert, key)
        if not self._files.all().isdisjoint({cert.resolve(), key.resolve()}):
            raise CertificateError(f"{cert} is the CA itself; give the station another name, or another --out")
        private = new_key()
        now = now_of(self._clock)
        certificate = issue(self.signer, name, map(general_name, names), private.public_key(), days=days, now=now)
        self._note(certificate, name, now)
        _place_key(key, private, None, force, self._disk)
        with _without(key, not force):
            place(cert, _pem(certificate), mode=PUBLIC, replace=force, disk=self._disk)
        return _made(name, certificate, cert, key=key, shortened=_is_shortened(certificate, now, days))

    def renew(
        self, cert: Path, *, days: float | None = None, key: Path | None = None, old_ca: Path | None = None
    ) -> Made:
        """The same station for longer: its name, its other names and, unless ``key`` is given, its key.

        ``key`` is where a new key is written. ``old_ca`` is the certificate of the CA that signed it, if that was
        another.
        """
        old = load_one(cert, "certificate")
        if is_ca(old):
            return self._renew_ca(old, cert, days, key)
        name = name_of(old)
        self._refuse_stranger(old, cert, name, old_ca)
        self._refuse_taken(cert, key, old_ca)
        if key is None and not {one.serial for one in self.revoked()}.isdisjoint(self._serials_of_key(old)):
            raise CertificateError(f"{cert} was revoked, and its key with it: renew it with a new one (--new-key)")
        private = new_key() if key else None
        public = private.public_key() if private else old.public_key()
        now = now_of(self._clock)
        days = _length(old) if days is None else days
        renewed = issue(self.signer, name, general_names(old), public, days=days, now=now)
        self._note(renewed, name, now)
        if private and key:
            _place_key(key, private, None, True, self._disk)
        place(cert, _pem(renewed), mode=PUBLIC, replace=True, disk=self._disk)
        return _made(name, renewed, cert, key=key, shortened=_is_shortened(renewed, now, days))

    def _renew_ca(self, old: x509.Certificate, cert: Path, days: float | None, key: Path | None) -> Made:
        if key is not None:
            raise CertificateError(
                "a CA with a new key is a new CA: make one with 'helio keygen ca', and put both into the bundle"
            )
        if not pem.same_key(old.public_key(), self.signer.certificate.public_key()):
            raise CertificateError(f"{cert} is another CA's certificate; name it with --ca to renew it")
        renewed = renew_ca(self.signer, days=_length(old) if days is None else days, now=now_of(self._clock))
        place(cert, _pem(renewed), mode=PUBLIC, replace=True, disk=self._disk)
        self.signer = Signer(renewed, self.signer.key)
        self.revoke([])  # the list holds as long as the CA
        return _made(label(renewed.subject), renewed, cert, crl=self._files.crl)

    def _refuse_taken(self, cert: Path, key: Path | None, old_ca: Path | None) -> None:
        """A new key takes the place of the old one, and of nothing that cannot be had again."""
        taken = self._files.all() | {cert.resolve()} | (set() if old_ca is None else CaFiles(old_ca).all())
        if key is not None and key.resolve() in taken:
            raise CertificateError(f"the new key cannot be written to {key}, which is another file of {cert} or its CA")

    def _refuse_stranger(self, old: x509.Certificate, cert: Path, name: str, old_ca: Path | None) -> None:
        """Whoever hands in a certificate must not get one for any name they like."""
        issuers = [self.signer.certificate]
        if old_ca is not None:
            issuers += pem.certificates(pem.read(old_ca, "CA certificate"), old_ca, "CA certificate")
        if not any(signed_by(old, issuer) for issuer in issuers):
            raise CertificateError(
                f"{cert} ('{name}') was not signed by '{label(self.signer.certificate.subject)}'; "
                "if it was by the CA before it, name that with --old-ca"
            )

    def _note(self, certificate: x509.Certificate, name: str, now: datetime) -> None:
        self._history.add(
            Entry(
                time=now, event="issued", ca=self._identity, serial=serial_text(certificate.serial_number), name=name,
                names=alternative_names(certificate), not_after=certificate.not_valid_after_utc,
                fingerprint=fingerprint(certificate), key=key_id(certificate.public_key()),
            )
        )  # fmt: skip

    @property
    def _identity(self) -> str:
        return key_id(self.signer.key.public_key())

    # -- revocation -----------------------------------------------------------------------------------------

    def serials_of(self, name: str) -> list[int]:
        """Every certificate of a station that has not expired, from the history; NotFound if there is none."""
        check_common_name(name)
        found = [int(entry.serial, 16) for entry in self._live() if entry.name == name]
        if not found:
            raise NotFound(
                f"{self._history.path} knows no live certificate of '{name}'; name the file, or its --serial"
            )
        return found

    def serials_of_file(self, cert: Path) -> list[int]:
        """A certificate, which this CA must have signed, and every live one with its key.

        Renewing keeps the key: with only the newest revoked, whoever stole the key would show the one before.
        """
        certificate = load_one(cert, "certificate")
        if is_ca(certificate):
            raise CertificateError(f"{cert} is a CA: take it out of the bundles instead, nobody can revoke it")
        if not signed_by(certificate, self.signer.certificate):
            raise CertificateError(
                f"{cert} was not signed by '{label(self.signer.certificate.subject)}'; only its own CA can revoke it"
            )
        return self._serials_of_key(certificate)

    def _serials_of_key(self, certificate: x509.Certificate) -> list[int]:
        key = key_id(certificate.public_key())
        return [certificate.serial_number, *(int(entry.serial, 16) for entry in self._live() if entry.key == key)]

    def _live(self) -> list[Entry]:
        now = now_of(self._clock)
        return [
            entry
            for entry in self._history.entries(self._identity)
            if entry.event == "issued" and (entry.not_after is None or entry.not_after > now)
        ]

    def revoked(self) -> list[Revoked]:
        """Everything that is revoked: on the list, or in the history if the list was lost."""
        return list(self._revoked(self._list()).values())

    def revoke(self, serials: Sequence[int], reason: str = "unspecified") -> Withdrawn:
        """Add certificates to the revocation list and sign it anew."""
        with self._locked():
            current = self._list()
            known = self._revoked(current)
            now = now_of(self._clock)
            fresh = [serial for serial in dict.fromkeys(serials) if serial not in known]
            self._history_of_revoking(fresh, reason, now)
            entries = [*known.values(), *(Revoked(serial, now, reason) for serial in fresh)]
            number = 1 + (number_of(current) if current is not None else len(known))
            new = make_crl(self.signer, entries, number=number, now=now)
            place(self._files.crl, _pem(new), mode=PUBLIC, replace=True, disk=self._disk)
        return Withdrawn(
            crl=str(self._files.crl), number=number, revoked=[serial_text(one) for one in fresh],
            already=[serial_text(one) for one in dict.fromkeys(serials) if one in known], total=len(entries),
        )  # fmt: skip

    def _history_of_revoking(self, serials: Sequence[int], reason: str, now: datetime) -> None:
        if serials:
            self._history.add(
                *(
                    Entry(time=now, event="revoked", ca=self._identity, serial=serial_text(serial), reason=reason)
                    for serial in serials
                )
            )

    def _list(self) -> x509.CertificateRevocationList | None:
        path = self._files.crl
        if not path.exists():
            return None
        found = pem.revocation_lists(pem.read(path, "revocation list"), path)
        own = [crl for crl in found if listed_by(crl, self.signer.certificate)]
        if len(found) != 1 or not own:
            raise CertificateError(
                f"{path} is not the list of '{label(self.signer.certificate.subject)}' alone; move it away, and a "
                "new one is made from the history"
            )
        return own[0]

    def _revoked(self, current: x509.CertificateRevocationList | None) -> dict[int, Revoked]:
        found = {
            int(entry.serial, 16): Revoked(int(entry.serial, 16), entry.time, entry.reason or "unspecified")
            for entry in self._history.entries(self._identity)
            if entry.event == "revoked"
        }
        found |= {entry.serial: entry for entry in (listed(current) if current is not None else [])}
        return dict(sorted(found.items(), key=lambda item: item[1].when))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self._files.lock, self._disk)
        try:
            lock.exclusive(self._clock, CA_LOCK_S)
            yield
        finally:
            lock.release()


# -- files --------------------------------------------------------------------------------------------------


def load_one(path: Path, what: str) -> x509.Certificate:
    """The first certificate of a file: that of the station or CA; what follows are those above it."""
    return pem.certificates(pem.read(path, what), path, what)[0]


def _signing(key: object, path: Path) -> CertificateIssuerPrivateKeyTypes:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise CertificateError(f"the key {path} is neither ECDSA nor RSA, so Heliograph does not sign with it")
    return key


def _place_key(
    path: Path, key: CertificateIssuerPrivateKeyTypes, passphrase: bytes | None, replace: bool, disk: Disk
) -> None:  # fmt: skip
    protection: KeySerializationEncryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
    place(path, data, mode=PRIVATE, replace=replace, disk=disk)


@contextlib.contextmanager
def _without(key: Path, new: bool) -> Iterator[None]:
    """If the certificate cannot be written, its new key goes as well: half a pair is in the way of the next try."""
    try:
        yield
    except BaseException:
        if new:
            key.unlink(missing_ok=True)
        raise


def _pem(thing: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return thing.public_bytes(Encoding.PEM)


def _length(certificate: x509.Certificate) -> float:
    """For how many days it was made."""
    return (certificate.not_valid_after_utc - certificate.not_valid_before_utc - BACKDATED) / timedelta(days=1)


def _is_shortened(certificate: x509.Certificate, now: datetime, days: float) -> bool:
    return certificate.not_valid_after_utc < now + timedelta(days=days) - timedelta(seconds=1)


def _made(
    name: str, certificate: x509.Certificate, cert: Path, *, key: Path | None = None, crl: Path | None = None,
    shortened: bool = False,
) -> Made:  # fmt: skip
    return Made(
        name=name, cert=str(cert), key=str(key) if key else None, crl=str(crl) if crl else None,
        serial=serial_text(certificate.serial_number), fingerprint=fingerprint(certificate),
        names=alternative_names(certificate), not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc, shortened=shortened,
    )  # fmt: skip
