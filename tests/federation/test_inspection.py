"""What ``inspect`` tells of files, and what it finds wrong with them."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from heliograph.errors import NotFound
from heliograph.federation.authority import create_ca
from heliograph.federation.inspection import Beside, Inspected, inspect
from tests.federation.pki import Pki, SetClock, ago, lapse

BEGIN = b"-----BEGIN CERTIFICATE-----\n"


def one(path: Path, **beside: Path) -> Inspected:
    found = inspect([path], Beside(**beside))
    assert len(found) == 1
    return found[0]


def test_a_certificate_is_told_with_its_key_and_ca_beside_it(pki: Pki) -> None:
    found = one(pki.directory / "hub.crt")
    assert (found.kind, found.name, found.issuer, found.status) == ("certificate", "hub", "ca", "ok")
    assert found.names == ["hub", "localhost", "127.0.0.1"]
    assert found.key_fits is True
    assert found.signed_by_ca is True
    assert found.key_type == "ECDSA P-256"
    assert round(found.days_left or 0) == 365
    assert len(found.fingerprint) == 32 * 3 - 1
    assert found.troubles == found.notes == []


def test_without_key_and_ca_nothing_is_said_of_them(pki: Pki, tmp_path: Path) -> None:
    alone = tmp_path / "hub.crt"
    alone.write_bytes((pki.directory / "hub.crt").read_bytes())
    found = one(alone)
    assert (found.key_fits, found.signed_by_ca, found.status) == (None, None, "ok")
    assert one(alone, ca=pki.ca, key=pki.directory / "hub.key").key_fits is True


def test_what_does_not_fit_is_bad(pki: Pki, tmp_path: Path) -> None:
    found = one(pki.directory / "hub.crt", key=pki.directory / "host1.key")
    assert (found.key_fits, found.status) == (False, "bad")
    other = Pki(tmp_path / "other", "other")
    found = one(pki.directory / "hub.crt", ca=other.ca)
    assert (found.signed_by_ca, found.status) == (False, "bad")
    (pki.directory / "hub.key").write_bytes((pki.directory / "host1.key").read_bytes())
    assert "does not fit the certificate" in one(pki.directory / "hub.key").troubles[0]


def test_time_is_told(pki: Pki) -> None:
    pki.issue("late", days=10, clock=ago(11))
    found = one(pki.directory / "late.crt")
    assert found.status == "bad"
    assert (found.days_left or 0) < 0
    assert "expired on" in found.troubles[0]
    soon = inspect([pki.directory / "hub.crt"], clock=SetClock(datetime.now(UTC) + timedelta(days=355)))[0]
    assert soon.status == "warn"
    assert "expires in" in soon.notes[0]


def test_revoked_is_bad_and_the_list_says_so(pki: Pki) -> None:
    pki.revoke("host1")
    assert "was revoked on" in one(pki.directory / "host1.crt").troubles[0]
    found = one(pki.crl)
    assert (found.kind, found.number, found.signed_by_ca, found.status) == ("crl", 2, True, "ok")
    assert [entry.serial for entry in found.revoked] == [one(pki.directory / "host1.crt").serial]


def test_a_list_of_another_ca_and_a_lapsed_one_are_bad(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other", "other")
    assert one(pki.crl, ca=other.ca).status == "bad"
    lapse(pki.authority().signer, pki.crl)
    assert "has expired" in one(pki.crl).troubles[0]


def test_every_certificate_of_a_bundle_is_told(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other", "ca-2027")
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(b"# old\n" + pki.ca.read_bytes() + b"# new\n" + other.ca.read_bytes())
    found = inspect([bundle])
    assert [(item.kind, item.name, item.status) for item in found] == [("ca", "ca", "ok"), ("ca", "ca-2027", "ok")]
    assert one(pki.directory / "hub.crt", ca=bundle, crl=pki.crl).signed_by_ca is True


def test_a_name_that_breaks_the_rule_is_bad(pki: Pki) -> None:
    assert "must be a station's name" in one(pki.odd("odd", common_names=["../x"], names=["../x"])).troubles[0]


def test_an_encrypted_key_is_said_to_be(tmp_path: Path) -> None:
    create_ca(tmp_path, passphrase=b"horse")
    assert one(tmp_path / "ca.key").encrypted is True
    found = one(tmp_path / "ca.crt")
    assert (found.key_fits, found.key_file, found.status) == (None, str(tmp_path / "ca.key"), "ok")


def test_whoever_may_not_read_the_key_is_told_of_the_certificate_all_the_same(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Monitoring, which is not the station: the key is its owner's alone."""
    opened = Path.open

    def refuse(self: Path, *args: Any, **more: Any) -> Any:
        if self.suffix == ".key":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return opened(self, *args, **more)

    monkeypatch.setattr(Path, "open", refuse)
    found = one(pki.directory / "host1.crt")
    assert (found.kind, found.name, found.status) == ("certificate", "host1", "warn")
    assert (found.key_fits, found.signed_by_ca, round(found.days_left or 0)) == (None, True, 365)
    assert "host1.key: Permission denied" in found.notes[0]
    asked_for = one(pki.directory / "host1.crt", key=pki.directory / "host1.key")
    assert (asked_for.name, asked_for.status) == ("host1", "bad")


def test_a_key_that_is_none_does_not_hide_the_certificate(pki: Pki) -> None:
    (pki.directory / "host1.key").write_text("garbage")
    found = one(pki.directory / "host1.crt")
    assert (found.kind, found.name, found.status) == ("certificate", "host1", "bad")
    assert "host1.key must hold one private key" in found.troubles[0]


def test_a_key_that_others_can_read_is_noted(pki: Pki) -> None:
    (pki.directory / "hub.key").chmod(0o644)
    for name in ("hub.key", "hub.crt"):
        assert "chmod 600" in one(pki.directory / name).notes[0]
        assert one(pki.directory / name).status == "warn"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"-----BEGIN CERTIFICATE-----\nAAAA",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
    ],
)
def test_what_cannot_be_read_is_bad_and_no_exception(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.crt"
    path.write_bytes(content)
    found = one(path)
    assert (found.kind, found.status) == ("unknown", "bad")
    assert found.troubles


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        inspect([tmp_path / "nothing.crt"])
