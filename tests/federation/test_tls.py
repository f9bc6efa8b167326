"""Who may talk to whom: real handshakes over loopback, and why the refused ones are refused."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from heliograph.errors import CertificateError, NotFound
from heliograph.federation.certificates import name_of
from heliograph.federation.tls import TlsPaths, load, refusal
from heliograph.federation.tlsfiles import TlsFiles
from heliograph.federation.trust import parse
from tests.federation.pki import Pki, ago, lapse, old_ca, shake, write_key


def text(error: BaseException | None) -> str:
    assert error is not None
    return refusal(error)


# -- who gets in --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crl", [True, False])
def test_the_right_pair_talks_and_each_knows_the_others_name(pki: Pki, crl: bool) -> None:
    hub, host = pki.files("hub", crl=crl), pki.files("host1", crl=crl)
    outcome = shake(hub.server_context, host.client_context)
    assert outcome.ok, outcome
    assert name_of(parse(outcome.server_peer or b"")) == "host1"
    assert name_of(parse(outcome.client_peer or b"")) == "hub"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "hub"])
def test_a_hub_is_known_by_every_name_of_its_certificate_and_by_its_own(pki: Pki, name: str) -> None:
    assert shake(pki.files("hub").server_context, pki.files("host1").client_context, name).ok


def test_both_are_called_by_name_and_days_left(pki: Pki) -> None:
    hub = pki.files("hub")
    outcome = shake(hub.server_context, pki.files("host1").client_context)

    class Connection:
        def getpeercert(self, binary_form: bool) -> bytes | None:
            assert binary_form
            return outcome.server_peer

    peer = hub.peer(Connection())
    assert (peer.name, round(peer.days_left(datetime.now(UTC)))) == ("host1", 365)
    assert peer.certificate == outcome.server_peer


def test_every_name_that_may_be_a_stations_can_be_dialled(pki: Pki) -> None:
    for name in ("a_b", "sensors.kitchen-1", "_x", "A" * 63):
        pki.issue(name)
        assert shake(pki.files(name).server_context, pki.files("host1").client_context, name).ok, name


# -- who does not -------------------------------------------------------------------------------------------


def test_a_client_of_another_ca_is_refused(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other")
    other.issue("host1")
    stranger = TlsFiles(other.directory / "host1.crt", other.directory / "host1.key", pki.ca)
    outcome = shake(pki.files("hub").server_context, stranger.client_context)
    assert "signed by a CA that is not in the bundle" in text(outcome.server)
    assert "does not know the CA" in text(outcome.client)


def test_a_hub_of_another_ca_is_refused(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other")
    other.issue("hub", "localhost")
    false_hub = TlsFiles(other.directory / "hub.crt", other.directory / "hub.key", pki.ca)
    outcome = shake(false_hub.server_context, pki.files("host1").client_context)
    assert "signed by a CA that is not in the bundle" in text(outcome.client)
    assert "does not know the CA" in text(outcome.server)


def test_an_expired_client_is_refused(pki: Pki) -> None:
    pki.issue("late", days=10, clock=ago(11))
    outcome = shake(pki.files("hub").server_context, pki.files("late").client_context)
    assert "has expired" in text(outcome.server)
    assert "expired" in text(outcome.client)


def test_an_expired_hub_is_refused(pki: Pki) -> None:
    pki.issue("late", "localhost", days=10, clock=ago(11))
    outcome = shake(pki.files("late").server_context, pki.files("host1").client_context)
    assert "has expired" in text(outcome.client)


def test_a_certificate_of_tomorrow_is_refused(pki: Pki) -> None:
    pki.issue("early", clock=ago(-3))
    outcome = shake(pki.files("hub").server_context, pki.files("early").client_context)
    assert "not valid yet" in text(outcome.server)
    assert "not valid yet" in text(outcome.client)


def test_clocks_some_hours_apart_do_not_matter_to_a_new_certificate(pki: Pki) -> None:
    pki.issue("ahead", clock=ago(-0.5))
    assert shake(pki.files("hub").server_context, pki.files("ahead").client_context).ok


def test_a_revoked_client_is_refused(pki: Pki) -> None:
    pki.revoke("host1")
    outcome = shake(pki.files("hub").server_context, pki.files("host1").client_context)
    assert "was revoked" in text(outcome.server)
    assert "revoked" in text(outcome.client)


def test_a_revoked_hub_is_refused(pki: Pki) -> None:
    pki.revoke("hub")
    outcome = shake(pki.files("hub").server_context, pki.files("host1").client_context)
    assert "was revoked" in text(outcome.client)


def test_the_right_ca_but_another_name_is_refused(pki: Pki) -> None:
    outcome = shake(pki.files("hub").server_context, pki.files("host1").client_context, "elsewhere.example")
    assert "another name" in text(outcome.client)
    assert outcome.server is not None
    outcome = shake(pki.files("hub").server_context, pki.files("host1").client_context, "127.0.0.2")
    assert "another address" in text(outcome.client)


def test_a_station_cannot_pass_for_the_hub(pki: Pki) -> None:
    outcome = shake(pki.files("host1").server_context, pki.files("host1").client_context, "hub")
    assert "another name" in text(outcome.client)


def test_a_client_must_say_whom_it_dials(pki: Pki) -> None:
    with pytest.raises(ValueError, match="server_hostname"):
        shake_client_only(pki.files("host1").client_context)


def shake_client_only(context: ssl.SSLContext) -> None:
    with socket.socket() as raw:
        context.wrap_socket(raw, server_hostname=None)


def test_a_client_without_a_certificate_is_refused(pki: Pki) -> None:
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.load_verify_locations(pki.ca)
    outcome = shake(pki.files("hub").server_context, nobody)
    assert "showed no certificate" in text(outcome.server)
    assert "wants a certificate" in text(outcome.client)


def test_tls_1_2_is_refused(pki: Pki) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(pki.ca)
    old.load_cert_chain(pki.directory / "host1.crt", pki.directory / "host1.key")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    outcome = shake(pki.files("hub").server_context, old)
    assert "before 1.3" in text(outcome.server)
    assert "refused the version of TLS" in text(outcome.client)


def test_a_hub_of_tls_1_2_is_refused(pki: Pki) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(pki.directory / "hub.crt", pki.directory / "hub.key")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    outcome = shake(old, pki.files("host1").client_context)
    assert not outcome.ok
    assert "version of TLS" in text(outcome.client)


def test_a_certificate_of_the_system_s_cas_is_worth_nothing(pki: Pki) -> None:
    assert len(pki.files("hub").server_context.get_ca_certs()) == 1
    assert len(pki.files("hub").client_context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("common_names", "names"),
    [
        (["../x"], ["../x"]),
        (["..", "host1"], ["host1"]),
        (["host1", "hub"], ["host1", "hub"]),
        (["host1\0.evil"], ["host1"]),
        (["häuschen"], ["localhost"]),
        (["host1"], ["host2"]),
        (["host1"], []),
        ([], ["host1"]),
        (["host1/../../etc"], ["host1"]),
        (["a b"], ["a b"]),
    ],
)
def test_a_name_that_must_not_become_a_path_is_nobody(pki: Pki, common_names: list[str], names: list[str]) -> None:
    pki.odd("odd", common_names=common_names, names=names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pki.ca)
    context.load_cert_chain(pki.directory / "odd.crt", pki.directory / "odd.key")
    outcome = shake(pki.files("hub").server_context, context)
    assert outcome.ok, "the CA signed it, so only its name can give it away"
    with pytest.raises(CertificateError, match="common name"):
        name_of(parse(outcome.server_peer or b""))
    with pytest.raises(CertificateError, match="common name"):
        pki.files("odd")


def test_a_certificate_for_servers_only_is_no_clients(pki: Pki) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    from heliograph.federation.certificates import new_key

    signer, key, now = pki.authority().signer, new_key(), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "half")])
    builder = x509.CertificateBuilder(signer.certificate.subject, subject, key.public_key(), 77)
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("half")]), False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    (pki.directory / "half.crt").write_bytes(builder.sign(signer.key, SHA256()).public_bytes(Encoding.PEM))
    write_key(pki.directory / "half.key", key)
    outcome = shake(pki.files("hub").server_context, pki.files("half").client_context)
    assert "not meant for this end" in text(outcome.server)


def test_no_session_is_resumed_past_a_revocation(pki: Pki) -> None:
    hub, host = pki.files("hub"), pki.files("host1")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                with hub.server_context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                    connection.sendall(b"x")
                    connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        session, reused = None, []
        for _ in range(2):
            raw = socket.create_connection(listener.getsockname(), timeout=20)
            with host.client_context.wrap_socket(raw, server_hostname="hub", session=session) as connection:
                connection.recv(1)
                session = connection.session
                reused.append(connection.session_reused)
                assert not session.has_ticket
                connection.sendall(b"x")
        thread.join()
    assert reused == [False, False]


# -- several CAs --------------------------------------------------------------------------------------------


def bundle(path: Path, *parts: Path) -> Path:
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


@pytest.mark.parametrize("second", ["ca", "ca-2027"])
def test_while_cas_change_both_are_good_and_each_revokes_its_own(pki: Pki, tmp_path: Path, second: str) -> None:
    new = Pki(tmp_path / "new", second)
    new.issue("host2")
    new.issue("host3")
    new.revoke("host3")
    cas = bundle(tmp_path / "bundle.crt", pki.ca, new.ca)
    crls = bundle(tmp_path / "bundle.crl", pki.crl, new.crl)
    hub = TlsFiles(pki.directory / "hub.crt", pki.directory / "hub.key", cas, crls)
    assert hub.state().warnings == []
    for station in (pki.files("host1"), new.files("host2", ca=cas, crl=False)):
        outcome = shake(hub.server_context, station.client_context)
        assert outcome.ok, outcome
        assert hub.still_valid(outcome.server_peer or b"")
    outcome = shake(hub.server_context, new.files("host3", ca=cas, crl=False).client_context)
    assert "was revoked" in text(outcome.server)


def test_a_ca_without_a_list_is_warned_of_and_its_stations_are_refused(pki: Pki, tmp_path: Path) -> None:
    new = Pki(tmp_path / "new", "ca-2027")
    new.issue("host2")
    cas = bundle(tmp_path / "bundle.crt", pki.ca, new.ca)
    hub = TlsFiles(pki.directory / "hub.crt", pki.directory / "hub.key", cas, pki.crl)
    assert ["ca-2027" in warning for warning in hub.state().warnings] == [True]
    outcome = shake(hub.server_context, new.files("host2", ca=cas, crl=False).client_context)
    assert "no revocation list" in text(outcome.server)
    assert shake(hub.server_context, pki.files("host1").client_context).ok


def test_a_list_of_a_stranger_is_warned_of_and_revokes_nothing(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other", "other")
    crls = bundle(tmp_path / "bundle.crl", pki.crl, other.crl)
    hub = TlsFiles(pki.directory / "hub.crt", pki.directory / "hub.key", pki.ca, crls)
    assert "'other' was signed by no CA in the bundle" in hub.state().warnings[0]
    assert shake(hub.server_context, pki.files("host1").client_context).ok


def test_an_expired_list_lets_nobody_in(pki: Pki) -> None:
    lapse(pki.authority().signer, pki.crl)
    hub, host = pki.files("hub"), pki.files("host1", crl=False)
    outcome = shake(hub.server_context, host.client_context)
    assert "the revocation list has expired" in text(outcome.server)
    assert "has expired" in (hub.why_invalid(der(pki, "host1")) or "")
    assert [(one.what, one.status) for one in hub.state().lifetimes][-1] == ("crl", "bad")


def der(pki: Pki, name: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert((pki.directory / f"{name}.crt").read_text())


def test_an_expired_ca_lets_nobody_in(tmp_path: Path) -> None:
    ca = old_ca(tmp_path, "old", days=30, made=datetime.now(UTC) - timedelta(days=31))
    from heliograph.federation.authority import Authority

    for name in ("hub", "host1"):
        Authority(ca, clock=ago(31)).issue(tmp_path, name, ["localhost"], days=30)
    hub, host = (TlsFiles(tmp_path / f"{name}.crt", tmp_path / f"{name}.key", ca) for name in ("hub", "host1"))
    outcome = shake(hub.server_context, host.client_context)
    assert not outcome.ok
    assert "expired" in text(outcome.client)
    assert hub.state().status == "bad"


# -- files that cannot be used ------------------------------------------------------------------------------


def paths(pki: Pki, **other: Path) -> TlsPaths:
    return TlsPaths(pki.directory / "hub.crt", pki.directory / "hub.key", pki.ca, pki.crl)._replace(**other)


def test_a_key_of_another_pair_is_named(pki: Pki) -> None:
    with pytest.raises(CertificateError, match=r"host1.key does not fit the certificate .*hub.crt"):
        load(paths(pki, key=pki.directory / "host1.key"))


@pytest.mark.parametrize("field", ["cert", "key", "ca", "crl"])
def test_a_missing_file_is_named(pki: Pki, field: str) -> None:
    with pytest.raises(NotFound, match=r"nowhere\.pem"):
        load(paths(pki, **{field: pki.directory / "nowhere.pem"}))


@pytest.mark.parametrize("field", ["cert", "key", "ca", "crl"])
@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "inside"])
def test_a_damaged_file_is_named(pki: Pki, field: str, damage: str) -> None:
    whole = getattr(paths(pki), field).read_bytes()
    bad = {
        "empty": b"",
        "cut": whole[:-30],
        "garbage": b"\0\xff" * 99,
        "inside": whole.replace(whole[60:80], b"A" * 20),
    }
    file = pki.directory / "bad.pem"
    file.write_bytes(bad[damage])
    with pytest.raises(CertificateError, match=r"bad\.pem"):
        load(paths(pki, **{field: file}))


def test_a_bundle_that_is_cut_off_between_two_cas_is_no_bundle(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other")
    file = tmp_path / "bundle.crt"
    file.write_bytes(pki.ca.read_bytes() + other.ca.read_bytes()[:-40])
    with pytest.raises(CertificateError, match="cut off"):
        load(paths(pki, ca=file))


def test_a_station_s_certificate_is_no_ca(pki: Pki) -> None:
    with pytest.raises(CertificateError, match="'host1' in it is not one"):
        load(paths(pki, ca=pki.directory / "host1.crt"))


def test_a_ca_in_the_file_of_lists_is_not_trusted_by_accident(pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other")
    file = bundle(tmp_path / "bundle.crl", pki.crl, other.ca)
    with pytest.raises(CertificateError, match="holds: CERTIFICATE"):
        load(paths(pki, crl=file))


def test_an_encrypted_key_is_an_error_and_not_a_question(pki: Pki) -> None:
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    from heliograph.federation import pem

    file = pki.directory / "hub.key"
    key = pem.private_key(file.read_bytes(), file)
    for form in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
        file.write_bytes(key.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"secret")))
        with pytest.raises(CertificateError, match="is encrypted"):
            load(paths(pki))


def test_a_key_that_others_can_read_is_warned_of(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    key = pki.directory / "hub.key"
    assert pki.files("hub").state().warnings == []
    key.chmod(0o640)
    told: list[str] = []
    state = pki.files("hub", on_warning=told.append).state()
    assert state.status == "warn"
    assert "chmod 600" in state.warnings[0]
    assert "chmod 600" in caplog.text
    assert told == state.warnings


# -- strangers ----------------------------------------------------------------------------------------------


def test_a_stalled_handshake_leaves_nothing_behind(pki: Pki) -> None:
    """Who connects and says nothing, or half a hello, costs a socket until its time is up, and nobody else waits."""
    hub, host = pki.files("hub"), pki.files("host1")
    before = threading.active_count()
    for said in (b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 60):
        ours, theirs = socket.socketpair()
        ours.settimeout(0.05)
        theirs.sendall(said)
        with pytest.raises(TimeoutError) as caught:
            hub.server_context.wrap_socket(ours, server_side=True)
        assert refusal(caught.value) == "the TLS handshake was not done in time"
        ours.close()
        theirs.settimeout(20)
        assert theirs.recv(100) == b""
        theirs.close()
        assert shake(hub.server_context, host.client_context).ok
    assert threading.active_count() == before


def test_a_stalled_handshake_does_not_stop_an_event_loop(pki: Pki) -> None:
    import asyncio

    hub, host = pki.files("hub"), pki.files("host1")
    served: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(hub.peer(writer.get_extra_info("ssl_object")).name)
        writer.write(await reader.readexactly(1))
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(
            serve, "127.0.0.1", 0, ssl=hub.server_context, ssl_handshake_timeout=0.5
        )  # fmt: skip
        address = server.sockets[0].getsockname()
        silent, silent_writer = await asyncio.open_connection(*address)
        silent_writer.write(b"\x16\x03\x01")
        reader, writer = await asyncio.open_connection(*address, ssl=host.client_context, server_hostname="hub")
        writer.write(b"x")
        assert await reader.read() == b"x"
        writer.close()
        assert await asyncio.wait_for(silent.read(), 20) == b""  # its time is up
        silent_writer.close()
        server.close()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert served == ["host1"]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_hub_that_accepts_by_itself_hears_why_somebody_was_refused(pki: Pki, loop: str) -> None:
    """A server that is given the context only hears of those who got in; one that accepts uses new files at once."""
    import asyncio

    import uvloop

    pki.issue("late", days=10, clock=ago(11))
    hub, late, good = pki.files("hub"), pki.files("late"), pki.files("host1")
    heard: list[str] = []

    async def accept(listener: socket.socket) -> None:
        running = asyncio.get_running_loop()
        raw, _ = await running.sock_accept(listener)
        try:
            transport, _ = await running.connect_accepted_socket(
                asyncio.Protocol, raw, ssl=hub.server_context, ssl_handshake_timeout=0.5
            )
        except OSError as error:
            heard.append(refusal(error))
        else:
            heard.append(hub.peer(transport.get_extra_info("ssl_object")).name)
            transport.close()

    async def dial(port: int, context: ssl.SSLContext | None, said: bytes) -> None:
        name = {"server_hostname": "hub"} if context else {}
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, **name)
            writer.write(said)
            await reader.read()
            writer.close()

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            port = listener.getsockname()[1]
            for context, said in (
                (good.client_context, b""),
                (late.client_context, b""),
                (None, b"GET / HTTP/1.1\r\n"),
            ):
                await asyncio.gather(accept(listener), dial(port, context, said))
            await asyncio.gather(accept(listener), dial(port, None, b""))
            pki.revoke("host1")
            hub.reload()
            await asyncio.gather(accept(listener), dial(port, good.client_context, b""))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(main())
    assert [next(word for word in WHY if word in text) for text in heard] == list(WHY)


WHY = ("host1", "has expired", "plain HTTP", "not done in time", "was revoked")


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\x16\x03\x01\xff\xff" + b"\xff" * 70_000])
def test_garbage_is_refused_with_a_reason(pki: Pki, said: bytes) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(20)

    def send() -> None:
        with contextlib.suppress(OSError):  # the other end may not want all of it
            theirs.sendall(said)
            theirs.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    with pytest.raises(ssl.SSLError) as caught:
        pki.files("hub").server_context.wrap_socket(ours, server_side=True)
    assert refusal(caught.value)
    ours.close()
    sender.join()
    theirs.close()


def test_what_is_not_from_tls_is_described_as_it_is() -> None:
    for error in (ConnectionResetError(), ssl.SSLEOFError(8, "EOF")):
        assert "the other side hung up" in refusal(error)
    assert refusal(ValueError("odd")) == "ValueError: odd"
    assert refusal(CertificateError("why")) == "why"
    assert "SOMETHING" in refusal(ssl.SSLError(1, "[SSL: SOMETHING] text"))


def test_a_damaged_certificate_of_a_peer_is_an_error_of_ours() -> None:
    for der in (b"", b"\x30\x03abc"):
        with pytest.raises(CertificateError):
            name_of(parse(der or b""))
    with pytest.raises(CertificateError):
        name_of(parse(b""))
