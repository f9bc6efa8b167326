"""The CA on disk: what it makes, what it refuses to overwrite, and that nothing revoked is forgotten."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from heliograph.errors import AlreadyExists, CertificateError, InvalidName, NotFound
from heliograph.federation import pem
from heliograph.federation.authority import Authority, create_ca, load_one
from heliograph.federation.certificates import (
    alternative_names,
    check_common_name,
    general_name,
    general_names,
    listed,
    name_of,
    number_of,
    signed_by,
)
from tests.faults import FaultyDisk
from tests.federation.pki import Pki, SetClock, ago, old_ca


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def crl(pki: Pki) -> x509.CertificateRevocationList:
    return pem.revocation_lists(pki.crl.read_bytes(), pki.crl)[0]


# -- making -------------------------------------------------------------------------------------------------


def test_keys_are_p256_and_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        pki = Pki(tmp_path / "pki")
        pki.issue("host1")
    finally:
        os.umask(before)
    for name in ("ca", "host1"):
        path = pki.directory / f"{name}.key"
        assert mode(path) == 0o600
        key = pem.private_key(path.read_bytes(), path)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp256r1"
        assert mode(path.with_suffix(".crt")) == 0o644


def test_a_certificate_says_what_it_should(pki: Pki) -> None:
    found = load_one(pki.directory / "hub.crt", "certificate")
    assert name_of(found) == "hub"
    assert alternative_names(found) == ["hub", "localhost", "127.0.0.1"]
    assert signed_by(found, load_one(pki.ca, "CA"))
    assert isinstance(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value[2], x509.IPAddress)
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {use._name for use in usage} == {"serverAuth", "clientAuth"}
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    authority = load_one(pki.ca, "CA").extensions.get_extension_for_class(x509.BasicConstraints)
    assert authority.critical and authority.value.ca and authority.value.path_length == 0


def test_serial_numbers_are_large_and_never_the_same(pki: Pki) -> None:
    serials = {load_one(pki.issue(f"h{number}"), "certificate").serial_number for number in range(5)}
    assert len(serials) == 5
    assert min(serials) > 1 << 64


def test_openssl_agrees(pki: Pki) -> None:
    command = ["openssl", "verify", "-x509_strict", "-crl_check", "-CRLfile", str(pki.crl), "-CAfile", str(pki.ca)]
    try:
        result = subprocess.run([*command, str(pki.directory / "hub.crt")], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no openssl here")
    assert result.stdout.strip().endswith("OK"), result


@pytest.mark.parametrize("there", ["ca.crt", "ca.key", "ca.crl"])
def test_no_file_of_a_ca_is_overwritten_unasked(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(AlreadyExists, match=there.replace(".", r"\.")):
        create_ca(tmp_path)
    assert (tmp_path / there).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [there]


@pytest.mark.parametrize("there", ["host2.crt", "host2.key"])
@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_no_file_of_a_station_is_overwritten_unasked(pki: Pki, there: str, kind: str) -> None:
    path = pki.directory / there
    path.write_text("mine") if kind == "file" else path.symlink_to("nowhere")
    before = sorted(pki.directory.iterdir())
    with pytest.raises(AlreadyExists):
        pki.issue("host2")
    assert sorted(pki.directory.iterdir()) == before
    pki.issue("host2", force=True)
    assert name_of(load_one(pki.directory / "host2.crt", "certificate")) == "host2"
    assert not path.is_symlink()


def test_a_file_that_appears_in_between_is_not_overwritten(pki: Pki) -> None:
    disk = FaultyDisk()
    authority = Authority(pki.ca, disk=disk)
    real = disk.link

    def late(source: str, target: Path) -> None:
        Path(target).write_text("mine")
        real(source, target)

    disk.link = late  # type: ignore[method-assign, assignment]
    with pytest.raises(AlreadyExists):
        authority.issue(pki.directory, "host2")
    assert (pki.directory / "host2.key").read_text() == "mine"
    assert not list(pki.directory.glob("*.tmp-*"))


def test_where_links_cannot_be_made_it_works_all_the_same(pki: Pki) -> None:
    disk = FaultyDisk()

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    disk.link = refuse  # type: ignore[method-assign, assignment]
    Authority(pki.ca, disk=disk).issue(pki.directory, "host2")
    assert mode(pki.directory / "host2.key") == 0o600
    with pytest.raises(AlreadyExists):
        Authority(pki.ca, disk=disk).issue(pki.directory, "host2")


@pytest.mark.parametrize("kind", ["open", "write", "fdatasync", "link"])
@pytest.mark.parametrize("which", range(1, 5))
def test_a_disk_that_fails_leaves_no_half_file_and_no_half_pair(pki: Pki, kind: str, which: int) -> None:
    disk = FaultyDisk()
    before = {path: path.read_bytes() for path in pki.directory.iterdir() if path.suffix != ".jsonl"}
    authority = Authority(pki.ca, disk=disk)
    calls = 0
    real = getattr(disk, kind)

    def failing(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == which:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    setattr(disk, kind, failing)
    try:
        authority.issue(pki.directory, "host2")
    except OSError:
        after = {path: path.read_bytes() for path in pki.directory.iterdir() if path.suffix != ".jsonl"}
        made = {path.name for path in set(after) - set(before)}
        assert made in (set(), {"host2.crt", "host2.key"}), "half a pair is in the way of the next try"
        assert {path: after[path] for path in before} == before


def test_a_name_must_not_leave_the_directory(pki: Pki) -> None:
    before = sorted(pki.directory.parent.rglob("*"))
    for name in ("../x", "a/b", "/etc/x", "x\0y", "häuschen", "", ".", "..", "-x", "a" * 65, "a" * 300, "x\n"):
        with pytest.raises(InvalidName):
            pki.issue(name)
        with pytest.raises(InvalidName):
            create_ca(pki.directory, name)
        with pytest.raises(InvalidName):
            pki.authority().serials_of(name)
    assert sorted(pki.directory.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "name",
    ["", "a b", "häuschen.example", "*.example", "a..b", ".a", "http://x", "x:7740", "x" * 64, "a." * 127 + "x", "a\n"],
)
def test_what_is_neither_an_address_nor_a_dns_name_is_refused(pki: Pki, name: str) -> None:
    with pytest.raises(InvalidName, match="neither an IP address nor a DNS name"):
        pki.issue("host2", name)
    assert not (pki.directory / "host2.key").exists()


def test_addresses_and_names_are_told_apart() -> None:
    kinds = {text: type(general_name(text)) for text in ("::1", "10.0.0.1", "hub.example", "1.2.3", "xn--hs-wia.de")}
    assert kinds == {
        "::1": x509.IPAddress, "10.0.0.1": x509.IPAddress, "hub.example": x509.DNSName, "1.2.3": x509.DNSName,
        "xn--hs-wia.de": x509.DNSName,
    }  # fmt: skip


def test_a_station_named_like_an_address_has_the_name_and_the_address(pki: Pki) -> None:
    path = pki.issue("10.0.0.5", "10.0.0.5")
    expected = [x509.DNSName("10.0.0.5"), general_name("10.0.0.5")]
    assert general_names(load_one(path, "c")) == expected
    pki.authority().renew(path)
    assert general_names(load_one(path, "c")) == expected
    path = pki.issue("10.0.0.6")
    pki.authority().renew(path)
    assert general_names(load_one(path, "c")) == [x509.DNSName("10.0.0.6")]


def test_there_are_not_too_many_names(pki: Pki) -> None:
    with pytest.raises(InvalidName, match="at most 100"):
        pki.issue("host2", *(f"h{number}.example" for number in range(200)))


def test_the_longest_name_is_that_of_x509() -> None:
    assert check_common_name("a" * 64)
    with pytest.raises(InvalidName, match="at most 64"):
        check_common_name("a" * 65)


def test_a_station_cannot_take_the_place_of_its_ca(pki: Pki) -> None:
    before = pki.ca.read_bytes()
    with pytest.raises(CertificateError, match="is the CA itself"):
        pki.issue("ca", force=True)
    assert pki.ca.read_bytes() == before


def test_a_certificate_does_not_outlive_its_ca(pki: Pki) -> None:
    made = pki.authority().issue(pki.directory, "host2", days=36_500)
    assert made.shortened
    assert made.not_after == load_one(pki.ca, "CA").not_valid_after_utc
    assert not pki.authority().issue(pki.directory, "host3", days=10).shortened


def test_an_expired_ca_signs_nothing(tmp_path: Path) -> None:
    ca = old_ca(tmp_path, "old", days=30, made=datetime.now(UTC) - timedelta(days=31))
    with pytest.raises(CertificateError, match="has expired"):
        Authority(ca).issue(tmp_path, "host1")
    assert not (tmp_path / "host1.key").exists()


# -- the CA's key -------------------------------------------------------------------------------------------


def test_a_ca_s_key_may_have_a_passphrase(tmp_path: Path) -> None:
    made = create_ca(tmp_path, passphrase=b"horse")
    assert b"ENCRYPTED" in Path(made.key).read_bytes()
    Authority(Path(made.cert), passphrase=b"horse").issue(tmp_path, "host1")
    assert b"ENCRYPTED" not in (tmp_path / "host1.key").read_bytes()
    with pytest.raises(CertificateError, match="the passphrase is wrong"):
        Authority(Path(made.cert), passphrase=b"cow")
    with pytest.raises(CertificateError, match="is encrypted"):
        Authority(Path(made.cert))


def test_the_wrong_key_or_no_ca_is_said(pki: Pki) -> None:
    with pytest.raises(CertificateError, match="does not belong to"):
        Authority(pki.ca, pki.directory / "host1.key")
    with pytest.raises(CertificateError, match="of 'host1', not of a CA"):
        Authority(pki.directory / "host1.crt")
    with pytest.raises(NotFound, match="CA certificate"):
        Authority(pki.directory / "nothing.crt")
    (pki.directory / "ca.key").unlink()
    with pytest.raises(NotFound, match="CA key"):
        Authority(pki.ca)


# -- renewing -----------------------------------------------------------------------------------------------


def test_renewing_keeps_names_length_and_key(pki: Pki) -> None:
    path = pki.issue("late", "late.example", "10.0.0.9", days=20, clock=ago(18))
    key = (pki.directory / "late.key").read_bytes()
    old = load_one(path, "certificate")
    made = pki.authority().renew(path)
    new = load_one(path, "certificate")
    assert alternative_names(new) == alternative_names(old) == ["late", "late.example", "10.0.0.9"]
    assert new.serial_number != old.serial_number
    assert pem.same_key(new.public_key(), old.public_key())
    assert (pki.directory / "late.key").read_bytes() == key
    assert made.key is None
    assert abs((new.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1) - 20) < 0.01


def test_renewing_with_a_new_key_replaces_the_pair(pki: Pki) -> None:
    path, key = pki.directory / "host1.crt", pki.directory / "host1.key"
    before = key.read_bytes()
    pki.authority().renew(path, key=key, days=7)
    assert key.read_bytes() != before
    assert mode(key) == 0o600
    assert pem.same_key(pem.private_key(key.read_bytes(), key).public_key(), load_one(path, "c").public_key())


@pytest.mark.parametrize("file", ["ca.key", "ca.crt", "ca.crl", "ca.history.jsonl", "host1.crt"])
def test_a_new_key_replaces_no_file_of_its_ca_and_not_its_own_certificate(pki: Pki, file: str) -> None:
    path, key = pki.directory / "host1.crt", pki.directory / file
    before = {one.name: one.read_bytes() for one in pki.directory.iterdir()}
    with pytest.raises(CertificateError, match=file):
        pki.authority().renew(path, key=key)
    assert {one.name: one.read_bytes() for one in pki.directory.iterdir()} == before


def test_nor_a_file_of_the_ca_before_it(pki: Pki, tmp_path: Path) -> None:
    new = Pki(tmp_path / "new", "ca-2027")
    path, old_key = pki.directory / "host1.crt", pki.ca.with_suffix(".key")
    before = old_key.read_bytes()
    with pytest.raises(CertificateError, match=r"ca\.key"):
        new.authority().renew(path, key=old_key, old_ca=pki.ca)
    assert old_key.read_bytes() == before


def test_a_stranger_s_certificate_is_not_renewed(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other", "other")
    path = other.issue("hub")
    before = path.read_bytes()
    with pytest.raises(CertificateError, match="was not signed by 'ca'"):
        pki.authority().renew(path)
    assert path.read_bytes() == before


def test_a_station_moves_to_a_new_ca(pki: Pki, tmp_path: Path) -> None:
    new = Pki(tmp_path / "new", "ca-2027")
    path = pki.directory / "host1.crt"
    new.authority().renew(path, old_ca=pki.ca)
    assert signed_by(load_one(path, "certificate"), load_one(new.ca, "CA"))


def test_a_certificate_whose_name_leaves_the_directory_is_not_renewed(pki: Pki) -> None:
    path = pki.odd("odd", common_names=["../x"], names=["../x"])
    with pytest.raises(CertificateError, match="must be a station's name"):
        pki.authority().renew(path)


def test_a_renewed_ca_is_the_same_one_for_longer(pki: Pki) -> None:
    old = load_one(pki.ca, "CA")
    pki.revoke("host1")
    later = SetClock(datetime.now(UTC) + timedelta(days=100))
    pki.authority(later).renew(pki.ca)
    new = load_one(pki.ca, "CA")
    assert new.not_valid_after_utc > old.not_valid_after_utc
    assert signed_by(load_one(pki.directory / "hub.crt", "c"), new)
    assert crl(pki).next_update_utc == new.not_valid_after_utc
    assert len(listed(crl(pki))) == 1
    with pytest.raises(CertificateError, match="is a new CA"):
        pki.authority().renew(pki.ca, key=pki.directory / "ca.key")


def test_what_was_revoked_is_not_renewed_with_its_key(pki: Pki) -> None:
    path = pki.directory / "host1.crt"
    older = path.read_bytes()
    pki.authority().renew(path)
    authority = pki.authority()
    authority.revoke(authority.serials_of_file(path))
    for text in (path.read_bytes(), older):
        path.write_bytes(text)
        with pytest.raises(CertificateError, match="--new-key"):
            pki.authority().renew(path)
    pki.authority().renew(path, key=pki.directory / "host1.key")


# -- revoking -----------------------------------------------------------------------------------------------


def test_a_new_ca_has_an_empty_list(pki: Pki) -> None:
    assert listed(crl(pki)) == []
    assert number_of(crl(pki)) == 1


def test_revoking_adds_to_the_list_and_counts_it_up(pki: Pki) -> None:
    authority = pki.authority()
    done = authority.revoke(authority.serials_of("host1"), "key-compromise")
    again = authority.revoke(authority.serials_of("host1"))
    assert (done.number, len(done.revoked), done.already, done.total) == (2, 1, [], 1)
    assert (again.number, again.revoked, len(again.already), again.total) == (3, [], 1, 1)
    assert [entry.reason for entry in listed(crl(pki))] == ["key-compromise"]


def test_a_name_means_all_its_live_certificates(pki: Pki) -> None:
    pki.issue("host1", force=True)
    pki.issue("host1", days=5, clock=ago(9), force=True)
    assert len(pki.authority().serials_of("host1")) == 2
    with pytest.raises(NotFound, match="knows no live certificate of 'host9'"):
        pki.authority().serials_of("host9")


def test_with_a_certificate_go_all_that_share_its_key(pki: Pki) -> None:
    """Whoever has the key of a renewed certificate could show the one before."""
    path = pki.directory / "host1.crt"
    first = load_one(path, "c").serial_number
    pki.authority().renew(path)
    second = load_one(path, "c").serial_number
    pki.authority().renew(path, key=pki.directory / "host1.key")
    third = load_one(path, "c").serial_number
    pki.authority().renew(path)
    fourth = load_one(path, "c").serial_number
    assert set(pki.authority().serials_of_file(path)) == {third, fourth}
    assert not {first, second} & {third, fourth}


def test_only_ones_own_certificates_can_be_revoked(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other", "other")
    with pytest.raises(CertificateError, match="only its own CA can revoke it"):
        pki.authority().serials_of_file(other.issue("host1"))
    with pytest.raises(CertificateError, match="is a CA"):
        pki.authority().serials_of_file(pki.ca)


def test_a_lost_list_is_made_again_from_the_history(pki: Pki) -> None:
    pki.revoke("host1")
    pki.crl.unlink()
    pki.revoke("hub")
    assert len(listed(crl(pki))) == 2


def test_a_lost_history_loses_nothing_of_the_list(pki: Pki) -> None:
    pki.revoke("host1")
    (pki.directory / "ca.history.jsonl").unlink()
    pki.authority().revoke([4711])
    assert len(listed(crl(pki))) == 2


def test_a_line_of_the_history_that_was_cut_short_hides_no_other(pki: Pki) -> None:
    history = pki.directory / "ca.history.jsonl"
    history.write_bytes(history.read_bytes()[:-20])
    pki.issue("host2")
    assert pki.authority().serials_of("hub")
    assert pki.authority().serials_of("host2")
    with pytest.raises(NotFound):
        pki.authority().serials_of("host1")


def test_a_new_ca_of_the_same_name_does_not_take_over_the_old_one_s_history(pki: Pki) -> None:
    pki.revoke("host1")
    create_ca(pki.directory, force=True)
    assert pki.authority().revoked() == []
    with pytest.raises(NotFound):
        pki.authority().serials_of("hub")


def test_a_stranger_s_list_is_not_signed_over(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other", "other")
    pki.crl.write_bytes(other.crl.read_bytes())
    with pytest.raises(CertificateError, match="is not the list of 'ca' alone"):
        pki.authority().revoke([1])


def test_of_two_that_revoke_at_once_neither_is_forgotten(pki: Pki) -> None:
    code = (
        "import sys; from pathlib import Path; from heliograph.federation.authority import Authority\n"
        "[Authority(Path(sys.argv[1])).revoke([int(sys.argv[2]) + n]) for n in range(10)]"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(pki.ca), str(first)]) for first in (1000, 2000)
    ]  # fmt: skip
    thread = threading.Thread(target=lambda: [pki.authority().revoke([3000 + number]) for number in range(10)])
    thread.start()
    assert [process.wait(60) for process in processes] == [0, 0]
    thread.join()
    assert {entry.serial for entry in listed(crl(pki))} == {
        first + number for first in (1000, 2000, 3000) for number in range(10)
    }
    assert number_of(crl(pki)) == 31


def test_who_revokes_in_the_middle_of_another_waits_for_it(pki: Pki) -> None:
    disk = FaultyDisk()
    first, second = Authority(pki.ca, disk=disk), pki.authority()
    real = disk.fdatasync
    other = threading.Thread(target=lambda: second.revoke([2000]), daemon=True)

    def meddle(fd: int) -> None:
        if not other.ident:  # the first has read the list, and has not written it yet
            other.start()
            other.join(0.3)
        real(fd)

    disk.fdatasync = meddle  # type: ignore[method-assign, assignment]
    assert first.revoke([1000]).number == 2
    other.join(30)
    assert {entry.serial for entry in listed(crl(pki))} == {1000, 2000}
    assert number_of(crl(pki)) == 3


def test_root_does_not_take_a_station_s_key_away_from_it(pki: Pki) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    for suffix in (".crt", ".key"):
        os.chown(pki.directory / f"host1{suffix}", 12345, 12345)
    pki.authority().renew(pki.directory / "host1.crt", key=pki.directory / "host1.key")
    assert (pki.directory / "host1.crt").stat().st_uid == 12345
    assert (pki.directory / "host1.key").stat().st_uid == 12345
    assert mode(pki.directory / "host1.key") == 0o600
