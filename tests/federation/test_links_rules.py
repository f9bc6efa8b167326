"""What a peer may not do: refused, audited, bounded; and everything else goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import picows
import pytest

import heliograph as hg
from heliograph import message
from heliograph.admin import dead
from heliograph.admin.transfer import import_messages
from heliograph.federation import frames, sockets
from heliograph.federation.conversation import Conversation
from heliograph.federation.frames import Header
from heliograph.federation.hub import Hub
from heliograph.federation.tlsfiles import TlsFiles
from heliograph.log.lines import stamp
from tests.federation.pki import Pki
from tests.federation.stations import Net, audited, check_log, free_port, lines, payloads, up, wait_for


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


# -- stations that are configured wrongly -------------------------------------------------------------------


def test_a_channel_that_is_not_allowed_is_parked_and_others_go_on(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"], "subscribe": ["commands"]}])
    net.station(
        "host1", links=[{"hub": "hub", "publish": ["alerts", "secrets"], "subscribe": ["commands", "payroll"]}]
    )  # fmt: skip
    with net.open("hub") as hub, net.open("host1") as host1:
        hub.publish("payroll", "much")
        host1.publish("secrets", "mine")
        host1.publish("alerts", "one")
        hub.publish("commands", "go")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["one"])
        wait_for(lambda: payloads(net.path("host1"), "commands") == ["go"])
        wait_for(lambda: host1.links() and set(host1.links()[0].parked) == {"secrets", "payroll"})
        assert lines(net.path("hub"), "secrets") == lines(net.path("host1"), "payroll") == []
        parked = wait_for(lambda: [it for it in [audited(net.path("hub"), "link-parked")] if len(it) > 1])[0]
        assert {record["channel"] for record in parked} == {"secrets", "payroll"}

        net.station("hub", peers=[{"name": "host1", "publish": ["alerts", "secrets"], "subscribe": [">"]}])
        wait_for(lambda: payloads(net.path("hub"), "secrets") == ["mine"])
        wait_for(lambda: payloads(net.path("host1"), "payroll") == ["much"])
        wait_for(lambda: not host1.links()[0].parked and host1.links()[0].reconnects == 0)
        wait_for(lambda: not hub.links()[0].parked)


def test_what_a_link_asks_for_no_more_is_parked_at_neither_end(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts", "secrets"], "subscribe": ["payroll"]}])
    with net.open("hub") as hub, net.open("host1") as host1:

        def parked() -> list[set[str]]:
            return [set(link.parked) for link in (*hub.links(), *host1.links())]

        host1.publish("secrets", "mine")
        wait_for(lambda: parked() == [{"secrets", "payroll"}, {"secrets", "payroll"}])
        net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
        wait_for(lambda: parked() == [set(), set()])
        assert host1.links()[0].reconnects == 0


def test_a_parked_channel_that_is_deleted_is_parked_at_neither_end(net: Net) -> None:
    """A slip of the pen made it: whoever takes it back has mended what the alarm was about."""
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": [">"]}])
    with net.open("hub") as hub, net.open("host1") as host1:

        def parked() -> list[set[str]]:
            return [set(link.parked) for link in (*hub.links(), *host1.links())]

        host1.publish("allerts", "mine")
        wait_for(lambda: parked() == [{"allerts"}, {"allerts"}])
        host1.delete_channel("allerts")
        wait_for(lambda: parked() == [set(), set()])
        host1.publish("allerts", "again")
        wait_for(lambda: parked() == [{"allerts"}, {"allerts"}])
        with net.open("host1", federate=False) as other_process:
            other_process.delete_channel("allerts")
        wait_for(lambda: parked() == [set(), set()])
        assert host1.links()[0].reconnects == 0


def test_a_subscription_that_is_given_up_is_no_alarm(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "subscribe": ["alerts", "news"]}])
    net.station("host1", links=[{"hub": "hub", "subscribe": ["alerts", "news"]}])
    with net.open("hub") as hub, net.open("host1") as host1:
        hub.publish("alerts", 1)
        hub.publish("news", 1)
        wait_for(lambda: payloads(net.path("host1"), "alerts") == payloads(net.path("host1"), "news") == [1])
        net.station("host1", links=[{"hub": "hub", "subscribe": ["news"]}])
        wait_for(lambda: hub.links()[0].channels == host1.links()[0].channels == ["news"])
        hub.publish("alerts", 2)
        hub.publish("news", 2)
        wait_for(lambda: payloads(net.path("host1"), "news") == [1, 2])
        assert payloads(net.path("host1"), "alerts") == [1]
        net.station("host1", links=[{"hub": "hub", "subscribe": ["alerts", "news"]}])
        wait_for(lambda: payloads(net.path("host1"), "alerts") == [1, 2])
        assert host1.links()[0].reconnects == 0
    assert [audited(net.path(name), "link-parked") for name in ("hub", "host1")] == [[], []]


def test_a_channel_that_the_hub_does_not_make_goes_on_when_somebody_makes_it(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}], storage={"auto_create": False})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("host1") as host1:
        for number in (1, 2):
            host1.publish("alerts", number)
            wait_for(lambda: host1.links() and "alerts" in host1.links()[0].parked)
            assert "create it there" in (why := host1.links()[0].parked["alerts"]) and str(net.path("hub")) not in why
            hub.create_channel("alerts")
            wait_for(lambda: number in payloads(net.path("hub"), "alerts"))  # noqa: B023 - waited for in this turn
            wait_for(lambda: not host1.links()[0].parked and not hub.links()[0].parked)
            hub.delete_channel("alerts")
        assert host1.links()[0].reconnects == 0
        assert len(audited(net.path("hub"), "link-parked")) >= 2


def test_rules_that_are_loaded_while_a_link_is_made_count_for_it(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    admit, asked, may = Hub.admit, threading.Event(), threading.Event()

    async def late(self: Hub, conversation: Conversation) -> tuple[str, str] | None:
        asked.set()
        while not may.is_set():  # noqa: ASYNC110 - another thread says so
            await asyncio.sleep(0.01)
        return await admit(self, conversation)

    monkeypatch.setattr(Hub, "admit", late)
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts", "logs"], "subscribe": ["commands"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("host1") as host1:
        hub.publish("commands", "go")
        host1.publish("logs", "said")
        assert asked.wait(10)
        net.station("host1", links=[{"hub": "hub", "publish": ["logs"], "subscribe": ["commands"]}])
        wait_for(lambda: audited(net.path("host1"), "links-reloaded"))
        may.set()
        wait_for(lambda: payloads(net.path("hub"), "logs") == ["said"], 10)
        wait_for(lambda: payloads(net.path("host1"), "commands") == ["go"], 10)


@pytest.mark.parametrize("host", ["hub..example", f"{'x' * 70}.example"])
def test_a_hub_whose_name_is_none_is_said_to_be_so(net: Net, host: str) -> None:
    net.station("host1", links=[{"hub": f"{host}:7740", "publish": ["alerts"]}])
    with net.open("host1") as host1:
        wait_for(lambda: host1.links() and "is no address" in host1.links()[0].error, 10)
        assert host1.links()[0].state in ("waiting", "connecting")


def test_a_link_is_not_given_up_whatever_goes_wrong(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    dial, wrong = sockets.dial, [True]

    async def dialled(*arguments: Any) -> Any:
        if wrong:
            wrong.clear()
            raise RuntimeError("nobody thought of that")
        return await dial(*arguments)

    monkeypatch.setattr(sockets, "dial", dialled)
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", "there")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["there"], 15)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[" * 100_000, b"a: &a [*a]", None])
def test_whatever_the_configuration_file_becomes_the_links_go_on(net: Net, text: bytes | None) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    file = net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        wait_for(lambda: up(host1, "hub"))
        file.unlink() if text is None else file.write_bytes(text)
        time.sleep(2.5)
        host1.publish("alerts", "goes on")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["goes on"], 10)
        net.station("host1", links=[{"hub": "hub", "publish": []}])
        wait_for(lambda: audited(net.path("host1"), "links-reloaded"))


def test_settings_that_count_after_a_restart_only_are_named(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    said: dict[str, Any] = {"hub": {"listen": f"127.0.0.1:{free_port()}"}, "tls": {**net.settings["hub"]["tls"]}}
    del said["tls"]["crl"]
    with net.open("hub") as hub:
        net.station("hub", peers=[{"name": "host1", "publish": [">"]}], **said)
        wait_for(lambda: audited(net.path("hub"), "links-reloaded"))
        (told,) = [record.message for record in caplog.records if "restart" in record.message]
        assert "hub.listen and tls " in told
        net.station("hub", peers=[{"name": "host1", "publish": []}])
        wait_for(lambda: len(audited(net.path("hub"), "links-reloaded")) == 2)
        assert len([record for record in caplog.records if "restart" in record.message]) == 1, "as it was"
        assert hub.links()


def test_a_failure_that_nobody_thought_of_does_not_end_the_links(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    look, wrong = Hub.look, [True]

    def looked(self: Hub) -> None:
        if wrong:
            wrong.clear()
            raise RuntimeError("nobody thought of that")
        look(self)

    monkeypatch.setattr(Hub, "look", looked)
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        wait_for(lambda: not wrong)
        host1.publish("alerts", "goes on")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["goes on"], 15)


def test_a_bound_on_lives_that_is_raised_counts_at_once(net: Net) -> None:
    peer = {"name": "host1", "publish": ["alerts"]}
    net.station("hub", peers=[peer], hub={"origins_max": 2})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        for life in range(2):
            host1.publish("alerts", life)
            wait_for(lambda: payloads(net.path("hub"), "alerts")[-1:] == [life])  # noqa: B023 - waited for in this turn
            host1.delete_channel("alerts")
        host1.publish("alerts", 2)
        wait_for(lambda: "hub.origins_max" in host1.links()[0].parked.get("alerts", ""))
        net.station("hub", peers=[peer], hub={"origins_max": 9})
        wait_for(lambda: payloads(net.path("hub"), "alerts") == [0, 1, 2])


def test_rules_that_are_taken_back_end_a_channel_without_dropping_the_link(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts", "other"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts", "other"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", 1)
        wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 1)
        net.station("hub", peers=[{"name": "host1", "publish": ["other"]}])
        wait_for(lambda: "alerts" in host1.links()[0].parked)
        host1.publish("alerts", 2)
        host1.publish("other", 1)
        wait_for(lambda: len(lines(net.path("hub"), "other")) == 1)
        assert len(lines(net.path("hub"), "alerts")) == 1
        assert host1.links()[0].reconnects == 0


def test_a_station_that_the_hub_does_not_know_is_refused_and_says_why(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("stranger", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("stranger") as stranger:
        stranger.publish("alerts", "let me in")
        link = wait_for(lambda: stranger.links() and stranger.links()[0].state == "refused" and stranger.links()[0])
        assert "hub.peers" in link.error
        assert wait_for(lambda: audited(net.path("hub"), "link-refused"))[0]["peer"] == "stranger"
    assert lines(net.path("hub"), "alerts") == []


def test_another_ca_is_refused_and_audited(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    other = Pki(net.directory / "other", "other")
    other.issue("host1")
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    settings = net.settings["host1"]
    cert = other.directory / "host1.crt"
    settings["tls"] = {**settings["tls"], "cert": str(cert), "key": str(cert.with_suffix(".key"))}
    (net.directory / "host1.yaml").write_text(msgspec.json.encode(settings).decode())
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", "let me in")
        wait_for(lambda: "not in the bundle" in str(audited(net.path("hub"), "link-refused")))
        wait_for(lambda: host1.links()[0].error)
    assert lines(net.path("hub"), "alerts") == []


def test_a_certificate_of_another_name_is_said_at_once(net: Net) -> None:
    net.pki.issue("somebody")
    net.station("host1", links=[{"hub": "localhost:1", "publish": ["alerts"]}])
    with pytest.raises(hg.ConfigError, match="one name"):
        net.open("host1", cert=str(net.pki.directory / "somebody.crt"), key=str(net.pki.directory / "somebody.key"))
    net.open("host1", federate=False).close()


def test_a_revoked_peer_is_sent_away_and_others_stay(net: Net) -> None:
    net.station("hub", peers=[{"name": name, "publish": ["alerts"]} for name in ("host1", "host2")])
    for name in ("host1", "host2"):
        net.station(name, links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("host1") as host1, net.open("host2") as host2:
        wait_for(lambda: up(hub, "host1") and up(hub, "host2"))
        net.pki.revoke("host1")
        wait_for(lambda: not up(hub, "host1") and not up(host1, "hub"))
        host2.publish("alerts", "still here")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["still here"])
        wait_for(lambda: up(host2, "hub") and host2.links()[0].reconnects == 0)


def test_the_second_of_two_with_one_name_is_refused(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        wait_for(lambda: up(host1, "hub"))
        with net.open("host1", data_dir=str(net.directory / "twin")) as twin:
            link = wait_for(lambda: twin.links() and twin.links()[0].state == "refused" and twin.links()[0])
            assert "connected already" in link.error
        host1.publish("alerts", "it is me")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["it is me"])


def test_the_second_of_two_hubs_with_one_name_is_refused(net: Net) -> None:
    """What is known of a hub is known by its name: what one of them has, the other would be taken to have."""
    net.station("hub", peers=[{"name": "host1", "publish": [">"]}])
    port = free_port()
    other = {**net.settings["hub"], "storage": {"data_dir": str(net.path("other"))}}
    other["hub"] = {**other["hub"], "listen": f"127.0.0.1:{port}"}
    (net.directory / "other.yaml").write_text(json.dumps(other))
    both = [{"hub": "hub", "publish": ["alerts"]}, {"hub": f"localhost:{port}", "publish": ["alerts"]}]
    net.station("host1", links=both[:1])
    with net.open("host1") as host1, net.open("hub"), net.open("other"):
        host1.publish("alerts", 1)
        wait_for(lambda: up(host1, "hub") and payloads(net.path("hub"), "alerts") == [1])
        net.station("host1", links=both)
        first, second = wait_for(lambda: host1.links()[1:] and host1.links()[1].error and host1.links())
        assert (first.state, second.state) == ("up", "refused")
        assert "a station 'hub' already" in second.error and net.address("hub") in second.error
        assert payloads(net.path("other"), "alerts") == []
        net.station("host1", links=both[1:])
        wait_for(lambda: payloads(net.path("other"), "alerts") == [1])


def test_a_quota_slows_a_link_down_and_loses_nothing(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"], "messages_per_s": 200}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        began = time.monotonic()
        for _ in range(6):
            host1.publish_many("alerts", list(range(100)))
        wait_for(lambda: host1.links()[0].channels and host1.links()[0].lag_messages == 0)
        assert time.monotonic() - began > 1.5, "600 messages at 200 a second, of which a second's worth is free"
    assert len(check_log(net.path("hub"), "alerts")) == 600


def test_a_quota_that_is_lifted_counts_for_what_waits_already(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"], "messages_per_s": 1}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish_many("alerts", list(range(1_000)))
        wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 1_000)
        wait_for(lambda: host1.links()[0].lag_messages == 1_000)
        net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
        wait_for(lambda: host1.links()[0].lag_messages == 0)


def test_peers_that_are_absent_for_too_long_are_forgotten_with_a_word(net: Net) -> None:
    from heliograph.federation.service import Federation

    net.station("hub", peers=[{"name": "host1", "subscribe": ["alerts"]}], hub={"forget_after_s": 3600})
    net.station("host1", links=[{"hub": "hub", "subscribe": ["alerts"]}])
    with net.open("hub", federate=False) as hub:
        federation = Federation(hub)
        federation.start()
        hub.publish("alerts", 1)
        with net.open("host1"):
            wait_for(lambda: len(lines(net.path("host1"), "alerts")) == 1)
        state = net.path("hub") / "links" / "peer" / "host1" / "alerts.json"
        wait_for(lambda: msgspec.json.decode(state.read_bytes())["positions"] == {"0": 1})
        assert federation._hub is not None
        wait_for(lambda: not federation._hub.note_here())
        federation._hub.forget_absent([])
        assert state.exists(), "not yet"

        def forgotten() -> list[str]:
            assert federation._hub is not None
            with contextlib.suppress(FileNotFoundError):  # that it was here is still being written down
                for file in state.parent.iterdir():
                    os.utime(file, (time.time() - 3700,) * 2)
            federation._hub.forget_absent([])
            return [record["peer"] for record in audited(net.path("hub"), "link-forgotten")]

        assert wait_for(forgotten) == ["host1"]
        assert not state.exists()


# -- a peer that is not one of ours -------------------------------------------------------------------------


class Attacker(picows.WSListener):
    """Has a good certificate, and says whatever it likes."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Header | None] = asyncio.Queue()

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.BINARY:
            self.heard.put_nowait(frames.decode(frame.get_payload_as_bytes(), 1 << 30)[0])

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self.heard.put_nowait(None)

    def say(self, header: Header, body: bytes = b"") -> None:
        self.raw(b"".join(frames.encode(header, body)))

    def raw(self, data: bytes) -> None:
        self.transport.send(picows.WSMsgType.BINARY, data)

    async def hear(self, kind: type[Header] | None) -> Any:
        """The next of a kind; None: the end."""
        async with asyncio.timeout(20):
            while True:
                found = await self.heard.get()
                if found is None:
                    self.heard.put_nowait(None)  # it stays the end
                if found is None or (kind is not None and isinstance(found, kind)):
                    assert found is not None or kind is None, "hung up"
                    return found

    async def greet(self, name: str = "host1") -> Attacker:
        self.say(frames.Hello(protocol=(1, 1), name=name, station="x", instance="y", frame=1 << 21))
        await self.hear(frames.Welcome)
        self.say(frames.Welcome(protocol=1, relay=[">"]))
        return self


async def attack(net: Net, files: TlsFiles) -> Attacker:
    _, listener = await picows.ws_connect(
        Attacker, f"wss://localhost:{net.port('hub')}/", ssl_context=files.client_context
    )  # fmt: skip
    assert isinstance(listener, Attacker)
    return listener


@pytest.fixture
def hub(net: Net) -> Any:
    net.station(
        "hub",
        peers=[
            {"name": "host1", "publish": [">"], "subscribe": [">"]},
            {"name": "good", "publish": ["alerts"]},
        ],
        hub={"connections_max": 20},
    )
    net.station("good", links=[{"hub": "hub", "publish": ["alerts"]}])
    net.pki.issue("host1")
    with net.open("hub") as hub, net.open("good") as good:
        wait_for(lambda: up(hub, "good"))
        yield hub
        good.publish("alerts", "all the same")
        wait_for(lambda: "all the same" in payloads(net.path("hub"), "alerts"))
        assert up(hub, "good") and hub.links()[0].reconnects == 0
    assert not list(net.directory.parent.glob("x")) and not list(net.directory.glob("x*"))


def line(channel: str, origin: str, sequence: int, **more: Any) -> bytes:
    envelope = {
        "specversion": "1.0", "id": f"id-{origin}-{sequence}", "source": "x", "type": "t",
        "time": "2026-11-16T00:00:00Z", "channel": channel, "data": sequence, **more,
    }  # fmt: skip
    import google_crc32c

    body = msgspec.json.encode(envelope)[:-1]
    place = f',"origin":"{origin}","originseq":"0/'.encode()
    return stamp([body], [google_crc32c.value(body)], place, sequence)


@pytest.mark.parametrize(
    "said",
    [b"", b"\x00", b"garbage", b"\x13\xff\xff\xff\xff", bytes(100_000), b"\x11\x02\x00\x00\x00{}", b"GET / HTTP/1.1"],
)
def test_garbage_ends_that_connection_alone(net: Net, hub: hg.Station, said: bytes) -> None:
    async def main() -> None:
        attacker = await (await attack(net, net.pki.files("host1"))).greet()
        attacker.raw(said)
        assert (await attacker.hear(frames.Refused)).code == "protocol"
        await attacker.hear(None)

    asyncio.run(main())


def test_a_gigantic_frame_ends_that_connection_alone(net: Net, hub: hg.Station) -> None:
    async def main() -> None:
        attacker = await attack(net, net.pki.files("host1"))
        attacker.raw(bytes(100 << 20))
        await attacker.hear(None)

    asyncio.run(main())


@pytest.mark.parametrize("channel", ["../../x", "/etc/x", "a/../../x", "", ".", "x\x00", "x" * 256])
def test_names_that_lead_elsewhere_are_not_even_looked_at(net: Net, hub: hg.Station, channel: str) -> None:
    async def main() -> None:
        attacker = await (await attack(net, net.pki.files("host1"))).greet()
        attacker.say(frames.Open(stream=1, channel=channel, partitions=1))
        with contextlib.suppress(AssertionError):  # an impossible name is no OPEN at all
            await attacker.hear(frames.Park)
        attacker.say(frames.Want(subscribe=[frames.Wanted(channel)]))
        with contextlib.suppress(AssertionError):
            await attacker.hear(frames.Park)
        attacker.transport.disconnect()

    asyncio.run(main())
    assert {info.name for info in hub.channels()} <= {"alerts"}


def test_a_peer_cannot_use_up_the_sequences_of_another(net: Net, hub: hg.Station) -> None:
    async def main() -> None:
        attacker = await (await attack(net, net.pki.files("host1"))).greet()
        attacker.say(frames.Open(stream=1, channel="alerts", partitions=1))
        await attacker.hear(frames.Resume)
        body = line("alerts", "host1.aaaaaa", 0) + line("alerts", "good.k3f9q2", 7)
        attacker.say(frames.Batch(stream=1, partition=0, first=0, count=2, size=len(body)), body)
        assert "relay" in (await attacker.hear(frames.Park)).reason
        attacker.say(frames.Shut(stream=1))
        attacker.say(frames.Open(stream=2, channel="other", partitions=1))
        await attacker.hear(frames.Resume)
        body = line("other", "host1.aaaaaa", 0)
        attacker.say(frames.Batch(stream=2, partition=0, first=0, count=1, size=len(body)), body)
        assert (await attacker.hear(frames.Ack)).next == 1, "what it may do goes on"
        attacker.transport.disconnect()

    asyncio.run(main())
    assert lines(net.path("hub"), "alerts") == [], "nothing of that batch"
    assert len(lines(net.path("hub"), "other")) == 1
    assert "relay" in wait_for(lambda: audited(net.path("hub"), "link-parked"))[0]["why"]


def test_lines_that_cannot_be_stored_are_refused_one_by_one(net: Net, hub: hg.Station) -> None:
    bad = [
        b'{"not":"a message"}\n',
        line("elsewhere", "host1.aaaaaa", 1),
        line("alerts", "host1.aaaaaa", 2).replace(b'"data":2', b'"data":3'),
    ]

    async def main() -> None:
        attacker = await (await attack(net, net.pki.files("host1"))).greet()
        attacker.say(frames.Open(stream=1, channel="alerts", partitions=1))
        await attacker.hear(frames.Resume)
        body = b"".join([line("alerts", "host1.aaaaaa", 0), *bad, b"\n", line("alerts", "host1.aaaaaa", 5)])
        attacker.say(frames.Batch(stream=1, partition=0, first=0, count=6, size=len(body)), body)
        ack = await attacker.hear(frames.Ack)
        assert (ack.next, [offset for offset, _ in ack.refused]) == (6, [1, 2, 3])
        attacker.transport.disconnect()

    asyncio.run(main())
    assert [found for found in payloads(net.path("hub"), "alerts") if found in (0, 5)] == [0, 5]


def test_who_hangs_up_at_once_is_worth_a_line_and_no_stack_trace(
    net: Net, hub: hg.Station, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", net.port("hub"))):
        pass
    wait_for(lambda: audited(net.path("hub"), "link-refused"))
    assert not [record for record in caplog.records if record.exc_info]
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "an alarm that anybody can raise"


def test_who_stalls_or_says_nothing_is_hung_up_on_and_bounded(net: Net, hub: hg.Station) -> None:
    open_ones = [socket.create_connection(("127.0.0.1", net.port("hub"))) for _ in range(60)]
    try:
        wait_for(lambda: "connections_max" in str(audited(net.path("hub"), "link-refused")))
        for one in open_ones:
            one.settimeout(20)
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b"", "hung up"
    finally:
        for one in open_ones:
            one.close()
    assert len(audited(net.path("hub"), "link-refused")) <= 100


# -- messages that the hub does not take --------------------------------------------------------------------


def test_a_message_that_is_too_large_for_the_hub_goes_to_the_senders_dead_letters(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}], messages={"max_bytes": 5_000})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", "before")
        host1.publish("alerts", "x" * 6_000)
        host1.publish("alerts", "after")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["before", "after"])
        (letter,) = wait_for(lambda: list(dead.letters(host1, "alerts")))
        assert (letter.reason, letter.subscription) == ("refused", "link to hub")
        assert "max_bytes" in letter.error and letter.original["data"] == "x" * 6_000
        wait_for(lambda: host1.links()[0].refused == 1)
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", "again")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["before", "after", "again"])
        assert len(list(dead.letters(host1, "alerts"))) == 1
        assert len(audited(net.path("host1"), "link-refused-message")) == 1, "it is not sent again"


def test_what_a_peer_refused_is_counted_also_when_it_has_left(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "subscribe": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "subscribe": ["alerts"]}], messages={"max_bytes": 5_000})
    with net.open("hub") as hub:
        with net.open("host1"):
            hub.publish("alerts", "x" * 6_000)
            wait_for(lambda: hub.links()[0].refused == 1)
        wait_for(lambda: hub.links()[0].state == "absent")
        assert hub.links()[0].refused == 1
        with net.open("host1"):
            wait_for(lambda: hub.links()[0].state == "up")
            assert hub.links()[0].refused == 1


def test_a_message_that_is_too_large_for_any_frame_goes_to_the_dead_letters(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}], messages={"max_bytes": 5_000})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", "x" * 4_000_000)
        host1.publish("alerts", "after")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["after"])
        assert len(wait_for(lambda: list(dead.letters(host1, "alerts")))) == 1


def test_replaying_such_a_letter_sends_the_original_line(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}], messages={"max_bytes": 5_000})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("host1") as host1:
        with net.open("hub"):
            host1.publish_many("alerts", ["before", "x" * 6_000, "after"])
            wait_for(lambda: payloads(net.path("hub"), "alerts") == ["before", "after"])
            wait_for(lambda: list(dead.letters(host1, "alerts")))
            report = dead.replay(host1, "alerts")
            assert (report.replayed, report.removed) == (1, 1)
            (letter,) = wait_for(lambda: list(dead.letters(host1, "alerts")))
            assert letter.reason == "refused", "nothing has changed at the hub: refused again"
        net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
        with net.open("hub"), net.open("host1", federate=False) as other_process:
            wait_for(lambda: up(host1, "hub"))
            assert len(lines(net.path("hub"), "alerts")) == 2
            assert dead.replay(other_process, "alerts").replayed == 1
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 3)
    assert set(lines(net.path("hub"), "alerts")) == set(lines(net.path("host1"), "alerts")), "byte for byte"
    with hg.open(net.path("host1"), read_only=True) as host1:
        assert list(dead.letters(host1, "alerts")) == []


@pytest.mark.parametrize("publish", [None, ["else"]])
def test_such_a_letter_stays_when_the_link_does_not_send_its_channel_any_more(
    net: Net, publish: list[str] | None
) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": [">"]}], messages={"max_bytes": 5_000})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("host1") as host1, net.open("hub"):
        host1.publish("alerts", "x" * 6_000)
        wait_for(lambda: list(dead.letters(host1, "alerts")))
    with hg.open(net.path("host1")) as host1:  # without a word of links: as they were last
        assert dead.replay(host1, "alerts", dry_run=True).replayed == 1
    net.station("host1", links=[] if publish is None else [{"hub": "hub", "publish": publish}])
    with net.open("host1") as host1:
        (skipped,) = dead.replay(host1, "alerts").skipped
        assert "no such link" in skipped.reason and "--to-all" in skipped.reason
        assert len(list(dead.letters(host1, "alerts"))) == 1
    net.station("hub", peers=[{"name": "host1", "publish": [">"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("host1") as host1, net.open("hub"):
        assert dead.replay(host1, "alerts").replayed == 1
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["x" * 6_000])


def test_a_letter_of_a_peer_stays_when_it_may_not_be_sent_the_channel_any_more(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "subscribe": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "subscribe": ["alerts"]}], messages={"max_bytes": 5_000})
    with net.open("host1"), net.open("hub") as hub:
        hub.publish("alerts", "x" * 6_000)
        wait_for(lambda: list(dead.letters(hub, "alerts")))
        assert dead.replay(hub, "alerts", dry_run=True).replayed == 1
    net.station("hub", peers=[{"name": "host1", "subscribe": ["else"]}])
    with net.open("hub") as hub:
        assert "no such link" in dead.replay(hub, "alerts").skipped[0].reason


def test_such_a_letter_whose_original_is_gone_says_so_when_it_is_replayed(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}], messages={"max_bytes": 5_000})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("host1") as host1, net.open("hub"):
        gone = host1.publish("alerts", "x" * 6_000)
        wait_for(lambda: list(dead.letters(host1, "alerts")))
        host1.redact(gone.id)
        (skipped,) = dead.replay(host1, "alerts").skipped
        assert "what hub refused is not in the log any more" in skipped.reason
        assert "--to-all" in skipped.reason
    (net.path("host1") / "links" / "hub" / "hub" / "alerts.json").unlink()
    with net.open("host1", federate=False) as host1:
        host1.publish("alerts", "small")
        (skipped,) = dead.replay(host1, "alerts").skipped
        assert "--to-all" in skipped.reason
        assert dead.replay(host1, "alerts", to_all=True).replayed == 1


def test_a_key_that_is_too_long_goes_to_the_senders_dead_letters_and_the_rest_goes_on(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("host1") as host1:
        with monkeypatch.context() as older:
            older.setattr(message, "KEY_BYTES_MAX", 1 << 20)  # a log may hold longer ones than are published today
            for text in ("before", "long", "after"):
                host1.publish("alerts", text, key="k" * (70_000 if text == "long" else 1))
        with net.open("hub"):
            wait_for(lambda: payloads(net.path("hub"), "alerts") == ["before", "after"])
            (letter,) = wait_for(lambda: list(dead.letters(host1, "alerts")))
            assert "partitionkey" in letter.error and letter.original["data"] == "long"
            state = net.path("host1") / "links" / "hub" / "hub" / "alerts.json"
            wait_for(lambda: msgspec.json.decode(state.read_bytes())["positions"] == {"0": 3})


def test_ids_longer_than_a_frame_may_name_do_not_end_the_link(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": [">"], "subscribe": [">"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"], "subscribe": ["commands"]}])
    event = b'{"specversion":"1.0","id":"%b","source":"x","type":"t","data":1}' % (b"i" * 300)
    with net.open("host1") as host1, net.open("hub") as hub:
        for station, channel in ((host1, "alerts"), (hub, "commands")):
            assert import_messages(station, [event], channel=channel).imported == 1
        wait_for(lambda: payloads(net.path("hub"), "alerts") == payloads(net.path("host1"), "commands") == [1])
    with net.open("host1") as host1, net.open("hub") as hub:  # now both have it, and say so
        wait_for(lambda: up(host1, "hub"))
        host1.publish("alerts", 2)
        hub.publish("commands", 2)
        wait_for(lambda: payloads(net.path("hub"), "alerts") == payloads(net.path("host1"), "commands") == [1, 2])
        assert host1.links()[0].reconnects == 0
