"""Files that are replaced while links are up."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from heliograph.errors import CertificateError
from heliograph.federation.certificates import name_of
from heliograph.federation.tlsfiles import TlsFiles
from heliograph.federation.trust import parse
from tests.federation.pki import Live, Pki, SetClock, ago, shake, wait_until


def serial(der: bytes | None) -> int:
    from cryptography import x509

    assert der
    return x509.load_der_x509_certificate(der).serial_number


# -- reload -------------------------------------------------------------------------------------------------


def test_new_connections_use_the_new_certificate_and_live_ones_stay(pki: Pki) -> None:
    hub, host = pki.files("hub"), pki.files("host1")
    with Live(hub.server_context, host.client_context) as live:
        before = shake(hub.server_context, host.client_context)
        pki.authority().renew(pki.directory / "hub.crt", key=pki.directory / "hub.key")
        assert hub.reload()
        after = shake(hub.server_context, host.client_context)
        assert before.ok and after.ok
        assert serial(before.client_peer) != serial(after.client_peer)
        assert live.works()
        assert hub.still_valid(live.server.getpeercert(True) or b"")
        assert hub.state().reloads == 1


def test_half_a_pair_keeps_the_old_one_and_warns(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    hub, host = pki.files("hub", on_warning=told.append), pki.files("host1")
    context = hub.server_context
    old_key = (pki.directory / "hub.key").read_bytes()
    pki.issue("hub", "localhost", force=True)
    new_key = (pki.directory / "hub.key").read_bytes()
    (pki.directory / "hub.key").write_bytes(old_key)  # the certificate is new already
    assert not hub.reload()
    assert "does not fit" in caplog.text
    assert "does not fit" in told[0]
    state = hub.state()
    assert (state.status, state.reloads, state.reload_failures) == ("warn", 0, 1)
    assert "does not fit" in state.problem
    assert hub.server_context is context
    assert shake(hub.server_context, host.client_context).ok
    (pki.directory / "hub.key").write_bytes(new_key)
    assert hub.reload()
    assert hub.state().problem == ""
    assert hub.state().status == "ok"
    assert shake(hub.server_context, host.client_context).ok


@pytest.mark.parametrize("field", ["cert", "key", "ca", "crl"])
@pytest.mark.parametrize("how", ["missing", "cut"])
def test_whatever_is_wrong_with_the_new_files_the_old_ones_stay(pki: Pki, field: str, how: str) -> None:
    hub, host = pki.files("hub"), pki.files("host1")
    path = getattr(hub.paths, field)
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-25])
    assert not hub.reload()
    assert path.name in hub.state().problem
    assert shake(hub.server_context, host.client_context).ok


def test_a_live_link_to_a_revoked_peer_is_found(pki: Pki) -> None:
    pki.issue("host2")
    hub = pki.files("hub")
    with (
        Live(hub.server_context, pki.files("host1").client_context) as bad,
        Live(hub.server_context, pki.files("host2").client_context) as good,
    ):
        peers = [hub.peer(link.server) for link in (bad, good)]
        assert [peer.name for peer in peers] == ["host1", "host2"]
        pki.revoke("host1")
        assert all(hub.still_valid(peer.certificate) for peer in peers), "not before the list is in use"
        assert hub.reload()
        assert [hub.still_valid(peer.certificate) for peer in peers] == [False, True]
        assert "revoked on" in (hub.why_invalid(peers[0].certificate) or "")
        assert bad.works() and good.works(), "ending links is for whoever has them"
        with pytest.raises(CertificateError, match="'host1' is refused: the certificate was revoked"):
            hub.peer(bad.server)


def test_a_live_link_to_a_peer_that_expired_since_is_found(pki: Pki) -> None:
    pki.issue("host2", days=2)
    clock = SetClock(datetime.now(UTC))
    hub = pki.files("hub", clock=clock)
    with Live(hub.server_context, pki.files("host2").client_context) as live:
        peer = hub.peer(live.server)
        assert round(peer.days_left(datetime.now(UTC))) == 2
        assert hub.still_valid(peer.certificate)
        clock.now += timedelta(days=3)
        assert "expired on" in (hub.why_invalid(peer.certificate) or "")


def test_a_ca_that_left_the_bundle_is_not_trusted_any_more(pki: Pki, tmp_path: Path) -> None:
    new = Pki(tmp_path / "new", "ca-2027")
    new.issue("hub", "localhost")
    new.issue("host1")
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(pki.ca.read_bytes() + new.ca.read_bytes())
    hub = TlsFiles(new.directory / "hub.crt", new.directory / "hub.key", bundle)
    old_host = TlsFiles(pki.directory / "host1.crt", pki.directory / "host1.key", bundle)
    new_host = TlsFiles(new.directory / "host1.crt", new.directory / "host1.key", bundle)
    with Live(hub.server_context, old_host.client_context) as live:
        der = live.server.getpeercert(True) or b""
        bundle.write_bytes(new.ca.read_bytes())
        assert hub.reload()
        assert not shake(hub.server_context, old_host.client_context).ok
        assert shake(hub.server_context, new_host.client_context).ok
        assert "none of the CAs" in (hub.why_invalid(der) or "")


def test_who_was_revoked_while_the_handshake_went_on_is_refused_after_it(pki: Pki) -> None:
    hub, host = pki.files("hub"), pki.files("host1")
    before = hub.server_context
    pki.revoke("host1")
    hub.reload()
    outcome = shake(before, host.client_context)
    assert outcome.ok
    assert name_of(parse(outcome.server_peer or b"")) == "host1"
    assert not hub.still_valid(outcome.server_peer or b"")


def test_a_renewed_ca_leaves_everything_good(pki: Pki) -> None:
    hub, host = pki.files("hub"), pki.files("host1")
    pki.revoke("host1")
    pki.issue("host2")
    pki.authority().renew(pki.ca)
    assert hub.reload()
    assert shake(hub.server_context, pki.files("host2").client_context).ok
    assert not shake(hub.server_context, host.client_context).ok


def test_a_file_that_changes_while_it_is_loaded_is_loaded_again(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.federation import tls

    real, calls = tls._load, []

    def meddling(paths: object, signature: tuple[object, ...]) -> tls.TlsMaterial:
        found = real(paths, signature)  # type: ignore[arg-type]
        calls.append(found)
        if len(calls) == 1:
            pki.authority().renew(pki.directory / "hub.crt")
        return found

    monkeypatch.setattr(tls, "_load", meddling)
    material = tls.load(pki.files("hub").paths)
    assert len(calls) == 3  # once by files(), which was meddled with, again, and once here
    assert material.certificate.serial_number == calls[-1].certificate.serial_number


# -- watching -----------------------------------------------------------------------------------------------


def test_a_changed_file_is_noticed_when_it_is_quiet(pki: Pki) -> None:
    hub = pki.files("hub")
    assert not hub.refresh()
    pki.revoke("host1")
    assert not hub.refresh(), "it may still be written to"
    pki.authority().revoke([12345])
    assert not hub.refresh(), "and it was"
    assert hub.refresh()
    assert not hub.refresh()
    assert hub.state().reloads == 1


def test_bad_files_are_warned_of_once_and_forgotten_when_they_are_gone(pki: Pki) -> None:
    hub = pki.files("hub")
    aside = pki.directory / "aside"
    pki.crl.rename(aside)
    for _ in range(5):
        assert not hub.refresh()
    assert hub.state().reload_failures == 1
    aside.rename(pki.crl)
    for _ in range(3):
        hub.refresh()
    assert hub.state().problem == ""
    assert hub.state().reload_failures == 1


def test_a_link_that_leads_elsewhere_is_a_change(pki: Pki, tmp_path: Path) -> None:
    """As Kubernetes and certbot replace files."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(pki.directory, first)
    pki.issue("hub", "localhost", force=True)
    shutil.copytree(pki.directory, second)
    current = tmp_path / "current"
    current.symlink_to(first)
    hub = TlsFiles(current / "hub.crt", current / "hub.key", current / "ca.crt", current / "ca.crl")
    fresh = tmp_path / "fresh"
    fresh.symlink_to(second)
    os.replace(fresh, current)
    assert not hub.refresh()
    assert hub.refresh()
    assert shake(hub.server_context, pki.files("host1").client_context).ok


def test_watching_takes_new_files_into_use_and_tells(pki: Pki) -> None:
    hub, host = pki.files("hub"), pki.files("host1")
    changed = threading.Event()
    with hub.watch(changed.set, interval_s=0.02), Live(hub.server_context, host.client_context) as live:
        pki.revoke("host1")
        assert changed.wait(30)
        assert not hub.still_valid(live.server.getpeercert(True) or b"")
        assert not shake(hub.server_context, host.client_context).ok
        assert live.works()
    assert not [thread for thread in threading.enumerate() if thread.name == "heliograph-tls"]


def test_a_callback_that_fails_does_not_end_the_watch(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    hub = pki.files("hub")
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("no")

    with hub.watch(fail, interval_s=0.02) as watching:
        watching.reload()
        wait_until(lambda: len(calls) == 1)
        watching.reload()
        wait_until(lambda: len(calls) == 2)
    assert "it goes on" in caplog.text


def test_a_watch_may_be_closed_twice_and_from_its_own_thread(pki: Pki) -> None:
    done = threading.Event()

    def end() -> None:
        watching.close()
        done.set()

    watching = pki.files("hub").watch(end, interval_s=0.02)
    watching.reload()
    assert done.wait(30)
    watching.close()
    watching.close()


def test_sighup_reloads_at_once_and_is_given_back(pki: Pki) -> None:
    hub = pki.files("hub")
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
    try:
        with hub.watch(interval_s=3600, hangup=True):
            pki.revoke("host1")
            os.kill(os.getpid(), signal.SIGHUP)
            wait_until(lambda: hub.state().reloads == 1)
            assert heard == [signal.SIGHUP], "whoever listened before hears it, too"
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: len(heard) == 2)
        assert hub.state().reloads == 1
    finally:
        signal.signal(signal.SIGHUP, before)


# -- state --------------------------------------------------------------------------------------------------


def test_the_state_says_how_long_everything_is_good(pki: Pki) -> None:
    state = pki.files("hub").state()
    assert (state.name, state.status) == ("hub", "ok")
    assert [(one.what, one.name, round(one.days_left), one.status) for one in state.lifetimes] == [
        ("certificate", "hub", 365, "ok"),
        ("ca", "ca", 3650, "ok"),
        ("crl", "ca", 3650, "ok"),
    ]


def test_an_expired_certificate_of_ones_own_is_warned_of_and_starts_all_the_same(pki: Pki) -> None:
    pki.issue("late", days=10, clock=ago(11))
    told: list[str] = []
    late = pki.files("late", on_warning=told.append)
    assert late.state().status == "bad"
    assert any("peers will refuse this station" in text for text in told)
    assert any("expired on" in text for text in told)


def test_an_own_certificate_of_another_ca_is_warned_of(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other", "other")
    told: list[str] = []
    state = pki.files("hub", ca=other.ca, crl=False, on_warning=told.append).state()
    assert state.status == "warn"
    assert "none of the CAs" in state.warnings[0]
    assert told


def test_warnings_come_once_at_each_threshold(pki: Pki) -> None:
    clock = SetClock(datetime.now(UTC))
    told: list[str] = []
    hub = pki.files("hub", clock=clock, on_warning=told.append)
    start = clock.now
    days_of_warnings = []
    for hours in range(24 * 364 + 36):
        clock.now = start + timedelta(hours=hours)
        days_of_warnings += [round((start + timedelta(days=365) - clock.now) / timedelta(days=1)) for _ in hub.remind()]
    assert days_of_warnings == [30, 14, 7, 3, 1, 0]
    assert len(told) == 6
    assert "expires in 30 days" in told[0]
    assert "expired on" in told[-1]
