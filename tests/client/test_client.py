"""Clients without a directory: what they publish and read at a hub over mutual TLS, and what they leave there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.admin import dead
from heliograph.client.many import Many
from heliograph.federation import sockets
from tests.client.conftest import TOOL, Hub
from tests.federation.chaos import Proxy
from tests.federation.pki import Pki
from tests.federation.stations import audited, lines, payloads, wait_for


class Alert(msgspec.Struct):
    level: int


def test_what_a_client_publishes_is_in_the_hubs_log_and_says_who_it_was(hub: Hub) -> None:
    with hub.open("hub"), hub.connect(service="probe") as client:
        receipt = client.publish(
            "alerts", {"n": 1}, key="cpu", headers={"region": "eu"}, subject="s", correlation_id="c", type="x.y.v1"
        )
        assert (receipt.channel, receipt.partition, receipt.offset, receipt.duplicate) == ("alerts", 0, 0, False)
        assert (client.name, client.hub, client.connected) == ("tool", "hub", True)
        found = list(client.read("alerts"))
    stored = [msgspec.json.decode(line) for line in lines(hub.path("hub"), "alerts")]
    assert [message.raw for message in found] == lines(hub.path("hub"), "alerts"), "byte for byte"
    assert stored[0]["id"] == receipt.id
    assert stored[0]["source"] == "tool/probe"
    assert stored[0]["origin"].startswith("hub."), "the hub published it, for the client"
    assert found[0].headers == {"region": "eu"}
    assert (found[0].key, found[0].subject, found[0].correlationid, found[0].type) == ("cpu", "s", "c", "x.y.v1")


def test_what_was_answered_survives_a_hub_that_is_killed_right_after(hub: Hub) -> None:
    process = hub.run("hub")
    with hub.connect() as client:
        client.publish_many("alerts", ["one", "two"])
        client.publish("alerts", "three")
        process.kill()
    assert payloads(hub.path("hub"), "alerts") == ["one", "two", "three"]


def test_nothing_is_allowed_unless_the_rules_say_so(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect("nobody") as client:
        station.publish("alerts", "secret")
        for attempt in (
            lambda: client.publish("alerts", "x"),
            lambda: list(client.read("alerts")),
            lambda: client.subscribe("alerts", print),
            lambda: list(client.read("alerts.dead-letter")),
            lambda: client.publish("never.made", "x"),
        ):
            with pytest.raises(hg.NotAllowed, match="nobody is not allowed to"):
                attempt()
        assert client.channels() == []
    assert payloads(hub.path("hub"), "alerts") == ["secret"]
    assert not (hub.path("hub") / "channels" / "never.made").exists()


def test_whom_the_hub_does_not_know_is_told_at_once(hub: Hub) -> None:
    with hub.open("hub"), pytest.raises(hg.NotAllowed, match="'stranger' is not among the hub's peers"):
        hub.connect("stranger", timeout=60)
    assert audited(hub.path("hub"), "link-refused")


@pytest.mark.parametrize("name", ["../../x", "", "a b", "alerts.dead-letter", "_reply.x"])
def test_names_that_are_none_reach_no_disk(hub: Hub, name: str) -> None:
    with hub.open("hub"), hub.connect() as client, pytest.raises(hg.InvalidName):
        client.publish(name, "x")


def test_a_start_beyond_the_end_is_waited_for(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        station.publish_many("alerts", ["zero", "one", "two"])
        got: list[int] = []
        gaps: list[hg.Gap] = []
        client.subscribe("alerts", lambda message: got.append(message.offset), start=5, on_gap=gaps.append)
        station.publish("alerts", "three")
        time.sleep(0.3)
        station.publish_many("alerts", ["four", "five", "six"])
        wait_for(lambda: len(got) >= 2)
        assert (got, gaps) == ([5, 6], [])


def test_errors_of_the_hub_are_ours(hub: Hub) -> None:
    hub.station("hub", peers=[TOOL], messages={"max_bytes": "16KiB"}, storage={"auto_create": False})
    with hub.open("hub") as station, hub.connect() as client:
        with pytest.raises(hg.NotFound, match="alerts"):
            client.publish("alerts", "x")
        with pytest.raises(hg.NotFound):
            list(client.read("alerts"))
        station.create_channel("alerts")
        with pytest.raises(hg.MessageTooLarge, match=r"messages\.max_bytes is 16384"):
            client.publish("alerts", "x" * 20_000)
        with pytest.raises(hg.ConfigError, match="is not a start"):
            list(client.read("alerts", start="yesterday-ish"))
        client.publish("alerts", "fits")
    assert payloads(hub.path("hub"), "alerts") == ["fits"]


def test_payloads_large_of_bytes_and_of_a_type(hub: Hub) -> None:
    with hub.open("hub"), hub.connect() as client:
        client.register("com.example.alert.v1", Alert)
        client.publish("alerts", "x" * 900_000)
        client.publish("alerts", b"\x00\xff" * 1000)
        client.publish("alerts", Alert(level=3))
        with pytest.raises(hg.PayloadMismatch):
            client.publish("alerts", {"level": "high"}, type="com.example.alert.v1")
        with pytest.raises(hg.MessageTooLarge):
            client.publish("alerts", "x" * 17_000_000)
        with pytest.raises(hg.MessageTooLarge):
            client.publish("alerts", "x" * 50_000_000)
        large, raw, typed = client.read("alerts")
    assert (len(large.data), raw.data, typed.data) == (900_000, b"\x00\xff" * 1000, Alert(level=3))
    assert typed.type == "com.example.alert.v1"


def test_a_type_that_the_hub_knows_is_checked_there(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        station.register("com.example.alert.v1", Alert)
        with pytest.raises(hg.PayloadMismatch):
            client.publish("alerts", {"level": "high"}, type="com.example.alert.v1")
        client.publish("alerts", {"level": 4}, type="com.example.alert.v1")
        assert [message.data for message in station.read("alerts")] == [Alert(level=4)]


def test_a_batch_over_several_partitions_is_all_or_nothing_and_read_in_order_of_time(hub: Hub) -> None:
    hub.station("hub", peers=[TOOL], storage={"partitions": 3})
    with hub.open("hub") as station, hub.connect() as client:
        receipts = client.publish_many("alerts", [hg.Draft(data=n, key=f"k{n}") for n in range(30)])
        assert {receipt.partition for receipt in receipts} == {0, 1, 2}
        for n in range(30, 60):
            client.publish("alerts", n, key=f"k{n}")
        assert sorted(message.data for message in client.read("alerts")) == list(range(60))
        assert [message.data for message in client.read("alerts")][30:] == list(range(30, 60))
        for number in range(3):
            own = [message.raw for message in client.read("alerts", partition=number)]
            assert own == [message.raw for message in station.read("alerts", partition=number)]
        with pytest.raises(hg.InvalidMessage):
            client.publish_many("alerts", [hg.Draft(data=1), hg.Draft(data=2, id="has space")])
        assert len(list(client.read("alerts"))) == 60


def test_reading_a_range(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        station.publish_many("alerts", list(range(1000)))
        middle = datetime.now(UTC)
        time.sleep(0.002)
        station.publish_many("alerts", list(range(1000, 5000)))
        assert [message.data for message in client.read("alerts")] == list(range(5000))
        assert [message.data for message in client.read("alerts", start=4990, end=4995)] == list(range(4990, 4995))
        assert [message.data for message in client.read("alerts", start=middle)] == list(range(1000, 5000))
        assert [message.data for message in client.read("alerts", end=middle)] == list(range(1000))
        assert list(client.read("alerts", start="new")) == []
        assert [message.offset for message in client.read("alerts", start=4999)] == [4999]
        assert client.channels() == ["alerts"]


@pytest.mark.parametrize("far", [10**20, "9" * 20, "0" * 5000 + "7", "9" * 5000])
def test_an_offset_of_any_number_of_digits_is_one(hub: Hub, far: str | int) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        station.publish("alerts", 1)
        for one in (station, client):
            assert list(one.read("alerts", start=far)) == []
            assert [message.data for message in one.read("alerts", end=far)] == [1]
            one.queue("alerts", type(one).__name__, start=far).close()


@pytest.mark.parametrize("age", ["-" + "9" * 400 + "d", "-" + "9" * 5000 + "s", "-" + "9" * 400 + ".5s"])
def test_an_age_that_is_no_number_any_more_is_no_start(hub: Hub, age: str) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        station.publish("alerts", 1)
        for one in (station, client):
            with pytest.raises(hg.ConfigError):
                list(one.read("alerts", start=age))


def test_pages_are_bounded_however_much_there_is(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.federation.questions import Questions

    sizes: list[int] = []
    answered = Questions.answered

    def measured(self: Questions, event: Any) -> None:
        sizes.append(len(event.body))
        answered(self, event)

    monkeypatch.setattr(Questions, "answered", measured)
    with hub.open("hub") as station, hub.connect() as client:
        station.publish_many("alerts", ["x" * 1000] * 3000)
        assert sum(1 for _ in client.read("alerts")) == 3000
    assert max(sizes) < 300 * 1024
    assert len(sizes) > 10


def test_new_messages_reach_the_handlers_of_two_clients_of_one_name(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as one, hub.connect() as two:
        station.publish("alerts", "before")
        got: dict[str, list[Any]] = {"one": [], "two": []}
        subscriptions = [
            client.subscribe("alerts", lambda message, name=name: got[name].append(message.data))
            for name, client in (("one", one), ("two", two))
        ]
        for n in range(20):
            (one, two)[n % 2].publish("alerts", n)
        wait_for(lambda: got["one"] == got["two"] == list(range(20)))
        wait_for(lambda: [link.kind for link in station.links() if link.state == "up"] == ["client", "client"])
        subscriptions[0].close()
        two.publish("alerts", "last")
        wait_for(lambda: got["two"][-1] == "last")
        assert "last" not in got["one"]
        assert [one.live for one in subscriptions] == [False, True]
    assert [subscription.delivered for subscription in subscriptions] == [20, 21]


def test_a_channel_that_is_made_after_it_was_subscribed_is_delivered_from_its_first_message(hub: Hub) -> None:
    hub.station("hub", peers=[TOOL], storage={"partitions": 2})
    got: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        client.subscribe("sensors.new", lambda message: got.append(message.data))
        for n in range(10):
            station.publish("sensors.new", n)
        wait_for(lambda: sorted(got) == list(range(10)))


@pytest.mark.parametrize("wanted", ["alerts", "*"])
def test_a_channel_that_is_made_anew_is_delivered_from_its_first_message(hub: Hub, wanted: str) -> None:
    hub.station("hub", peers=[{**TOOL, "subscribe": [">"]}])
    got: list[Any] = []
    gaps: list[hg.Gap] = []
    with hub.open("hub") as station, hub.connect() as client:
        station.publish("alerts", "old")
        client.subscribe(wanted, lambda message: got.append(message.data), start="first", on_gap=gaps.append)
        wait_for(lambda: got == ["old"])
        station.delete_channel("alerts")
        station.create_channel("alerts")
        wait_for(lambda: gaps)
        station.publish("alerts", "new")
        station.publish("alerts", "newer")
        wait_for(lambda: got == ["old", "new", "newer"])
    assert len(gaps) == 1


def test_a_pattern_that_is_not_allowed_any_more_leaves_no_request_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet:
        async def next(self) -> list[hg.Message]:
            await asyncio.Event().wait()
            return []

    answers = [["sensors.a", "sensors.b"], ["sensors.a"]]

    async def channels(_: str) -> list[str]:
        if not answers:
            raise hg.NotAllowed("not yours")
        return answers.pop(0)

    async def pages(*_: object) -> Any:
        return Quiet()

    async def story() -> None:
        many = Many("sensors.*", channels, pages)
        await many.begin()
        assert await many.next() == []
        assert len(asyncio.all_tasks()) == 3
        with pytest.raises(hg.NotAllowed):
            await many.next()
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    monkeypatch.setattr("heliograph.client.many.LOOK_S", 0.0)
    asyncio.run(story())


def test_a_handler_that_fails_is_counted_and_the_next_message_comes(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    got: list[Any] = []

    def handler(message: hg.Message) -> None:
        if message.data == "bad":
            raise ValueError("no")
        got.append(message.data)

    with hub.open("hub"), hub.connect() as client:
        subscription = client.subscribe("alerts", handler)
        client.publish_many("alerts", ["good", "bad", "good again"])
        wait_for(lambda: got == ["good", "good again"])
        assert (subscription.delivered, subscription.failed) == (2, 1)
    assert "the handler of 'alerts' failed with offset 1" in caplog.text


def test_what_has_expired_is_not_delivered(hub: Hub) -> None:
    got: list[Any] = []
    with hub.open("hub"), hub.connect() as client:
        client.subscribe("alerts", lambda message: got.append(message.data), start="first")
        client.publish("alerts", "stale", ttl=timedelta(seconds=-1))
        client.publish("alerts", "fresh", ttl=3600)
        wait_for(lambda: got == ["fresh"])


def test_no_trace_is_left(hub: Hub) -> None:
    def everything() -> dict[str, bytes]:
        root = hub.path("hub")
        found = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
        known = ("audit/", "links/state", "links/lock")
        return {
            name: path.read_bytes() if path.is_file() else b""
            for name, path in found.items()
            if not name.startswith(known)
        }

    with hub.open("hub") as station:
        station.publish("alerts", "there before")
        station.sync()
        before = everything()
        with hub.connect() as client:
            client.subscribe("alerts", print)
            client.subscribe("sensors.none", print)
            assert len(list(client.read("alerts"))) == 1
            wait_for(lambda: any(link.kind == "client" for link in station.links()))
        wait_for(lambda: audited(hub.path("hub"), "client-down"))
        after = everything()
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert {name for name in changed if not name.endswith(("/head", "/news"))} == set()
        wait_for(lambda: not any(link.kind == "client" for link in station.links()))
        wait_for(lambda: b'"client"' not in (hub.path("hub") / "links" / "state.json").read_bytes())
    assert not (hub.path("hub") / "links" / "peer").exists()
    (up,) = audited(hub.path("hub"), "client-up")
    (down,) = audited(hub.path("hub"), "client-down")
    assert up["peer"] == down["peer"] == "tool"
    assert up["address"] == down["address"]


def test_a_hub_that_nobody_believes(hub: Hub, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other", "other")
    with hub.open("hub"), pytest.raises(hg.CertificateError, match="localhost"):
        hg.connect(hub.url, tls={**hub.tls(), "ca": other.ca, "crl": other.crl}, timeout=60)


def test_a_client_that_the_hub_does_not_believe(hub: Hub, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other", "other")
    other.issue("tool")
    cert = other.directory / "tool.crt"
    with hub.open("hub"), pytest.raises((hg.CertificateError, hg.Unreachable)):
        hg.connect(hub.url, tls={**hub.tls(), "cert": cert, "key": cert.with_suffix(".key")}, timeout=2)
    assert audited(hub.path("hub"), "link-refused")
    assert not audited(hub.path("hub"), "client-up")


def test_a_hub_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(hg.Unreachable, match="was not reached"):
        hub.connect(timeout=0.2)
    with hub.open("hub"):
        client = hub.connect(timeout=0.3)
    with client:
        with pytest.raises(hg.Unreachable):
            client.publish("alerts", "x")
        with pytest.raises(hg.Unreachable):
            list(client.read("alerts"))
    with pytest.raises(hg.StationClosed):
        client.publish("alerts", "x")
    client.close()


def test_a_hub_that_hangs_up_at_once_is_told_without_a_stack_trace(
    hub: Hub, proxy: Callable[..., Proxy], capfd: pytest.CaptureFixture[str]
) -> None:
    there = f"wss://localhost:{proxy().port}"  # nobody is behind it
    with pytest.raises(hg.Unreachable, match="hung up"):
        hub.connect(url=there, timeout=1)

    async def alike() -> list[str]:
        heard: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: heard.append(context["message"]))
        with pytest.raises(hg.Unreachable, match="hung up"):
            await hg.connect_async(there, tls=hub.tls(), timeout=1)
        loop.call_exception_handler({"message": "of somebody else"})
        return heard

    assert asyncio.run(alike()) == ["of somebody else"]
    assert not capfd.readouterr().err


def test_an_event_loop_is_hushed_once_however_often_a_hub_is_dialled() -> None:
    loop = asyncio.new_event_loop()
    try:
        for _ in range(2):
            sockets.Hushed.make(loop)
        handler = loop.get_exception_handler()
        assert isinstance(handler, sockets.Hushed)
        assert handler._before is None
    finally:
        loop.close()


LATE = """
import logging
import heliograph.federation.sockets
log = logging.getLogger("aiofastnet")
log.warning("socket.send() raised exception.")
logging.basicConfig(format="%(message)s")
log.warning("wanted")
"""


def test_what_is_written_too_late_is_told_only_to_who_wants_to_hear_it() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    assert done.stderr == "wanted\n"


def test_a_hub_whose_name_is_none_is_told_of_as_any_other_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(hg.Unreachable, match="is no address"):
        hub.connect(url="wss://hub..example:7740", timeout=0.5)


def test_where_certificates_come_from(hub: Hub) -> None:
    config = hub.station("tool")
    with hub.open("hub"):
        for tls in (config, hg.Config().with_settings(), {"cert": "x"}):
            if tls == config:
                with hg.connect(hub.url, tls=tls) as client:
                    assert client.name == "tool"
            else:
                with pytest.raises(hg.ConfigError, match="tls lacks"):
                    hg.connect(hub.url, tls=tls)  # type: ignore[arg-type]
    with pytest.raises(hg.ConfigError, match=r"tls\.certificate is unknown"):
        hg.connect(hub.url, tls={"certificate": "x"})


def test_quotas_slow_a_client_down_and_are_shared_by_those_of_one_name(hub: Hub) -> None:
    hub.station("hub", peers=[{**TOOL, "messages_per_s": 20}])
    with hub.open("hub"), hub.connect() as one, hub.connect() as two:
        one.publish_many("alerts", range(20))
        started = time.monotonic()
        two.publish_many("alerts", range(20))
        assert time.monotonic() - started > 0.5, "the other one used up this second"
    assert len(payloads(hub.path("hub"), "alerts")) == 40


def test_rules_that_change_end_a_subscription_with_the_reason(hub: Hub) -> None:
    got: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        subscription = client.subscribe("alerts", lambda message: got.append(message.data))
        client.publish("alerts", "one")
        wait_for(lambda: got == ["one"])
        hub.station("hub", peers=[{"name": "tool", "publish": ["alerts"]}])
        wait_for(lambda: audited(hub.path("hub"), "links-reloaded"))
        station.publish("alerts", "secret")
        wait_for(lambda: not subscription.live)
        assert isinstance(subscription.error, hg.NotAllowed)
    assert got == ["one"]


def test_the_same_for_asyncio(hub: Hub) -> None:
    async def story() -> None:
        got: list[Any] = []

        async def handler(message: hg.Message) -> None:
            got.append(message.data)

        async with hg.connect_async(hub.url, tls=hub.tls()) as client:
            subscription = await client.subscribe("alerts", handler)
            receipts = await asyncio.gather(*[client.publish("alerts", n) for n in range(300)])
            assert [receipt.offset for receipt in receipts] == list(range(300)), "in order"
            await client.publish_many("alerts", [300, 301])
            assert [message.data async for message in client.read("alerts", start=290)] == list(range(290, 302))
            assert await client.channels() == ["alerts"]
            with pytest.raises(hg.NotAllowed):
                await client.publish("secrets", 1)
            await asyncio.to_thread(wait_for, lambda: len(got) == 302)
            assert got == list(range(302))
            await subscription.close()
            assert not subscription.live
        with pytest.raises(hg.StationClosed):
            await client.publish("alerts", "late")

    with hub.open("hub"):
        asyncio.run(story())


def test_a_client_and_a_station_of_one_name_do_not_disturb_each_other(hub: Hub) -> None:
    hub.station("tool", links=[{"hub": "hub", "publish": ["alerts"]}])
    with hub.open("hub") as station, hub.connect() as client, hub.open("tool") as edge:
        edge.publish("alerts", "by link")
        wait_for(lambda: payloads(hub.path("hub"), "alerts") == ["by link"])
        client.publish("alerts", "by request")
        wait_for(lambda: {link.kind for link in station.links() if link.state == "up"} == {"peer", "client"})
    assert payloads(hub.path("hub"), "alerts") == ["by link", "by request"]


@pytest.mark.parametrize("size", [500, 1_700, 9_000])
def test_what_is_damaged_is_told_once_wherever_a_page_ends(hub: Hub, size: int) -> None:
    count = 900_000 // size
    with hub.open("hub") as station:
        station.publish_many("alerts", [f"{number:05d}" + "x" * size for number in range(count)])
    (segment,) = (hub.path("hub") / "channels" / "alerts" / "0").glob("*.jsonl")
    stored = segment.read_bytes().split(b"\n")
    damaged = list(range(3, count, 7))
    for at in damaged:
        stored[at] = stored[at].replace(b"xxxx", b"yyyy", 1)
    segment.write_bytes(b"\n".join(stored))
    gaps: list[hg.Gap] = []
    with hub.open("hub"), hub.connect() as client:
        found = [message.offset for message in client.read("alerts", on_gap=gaps.append)]
    assert found == [offset for offset in range(count) if offset not in damaged]
    assert [(gap.first, gap.next) for gap in gaps] == [(at, at + 1) for at in damaged]


def test_what_is_redriven_for_one_subscription_is_none_of_a_listening_client_s(hub: Hub) -> None:
    broken = True
    heard: list[Any] = []

    def pager(message: hg.Message) -> None:
        if broken:
            raise ValueError("no")

    with hub.open("hub") as station, hub.connect() as client:
        station.create_channel("alerts")
        station.subscribe("alerts", pager, name="pager", retry=hg.Retry(max_retries=0))
        client.subscribe("alerts", lambda message: heard.append(message.data))
        station.publish("alerts", "one")
        wait_for(lambda: list(dead.letters(station, "alerts")))
        broken = False
        assert dead.replay(station, "alerts").redriven == {"pager": 1}
        station.publish("alerts", "two")
        wait_for(lambda: heard and heard[-1] == "two")
        assert heard == ["one", "two"], "it had this one"
        assert [message.data for message in client.read("alerts")] == ["one", "one", "two"], "reading shows it"

    async def awaited() -> None:
        done = asyncio.Event()

        def hear(message: hg.Message) -> None:
            heard.append(message.data)
            if message.data == "two":
                done.set()

        async with hg.connect_async(hub.url, tls=hub.tls()) as client:
            await client.subscribe("alerts", hear, start="first")
            await done.wait()

    heard.clear()
    with hub.open("hub"):
        asyncio.run(asyncio.wait_for(awaited(), 30))
    assert heard == ["one", "two"]
