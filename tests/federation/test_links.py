"""Links between real stations: mutual TLS on loopback, both ends durable."""

from __future__ import annotations

import contextlib
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.federation import peerfile
from heliograph.federation.outlet import Beginning, Outlet
from heliograph.station import links as states
from tests.federation.stations import Net, audited, check_log, lines, payloads, up, wait_for


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def test_a_client_publishes_a_channel_to_a_hub(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("host1") as host1:
        host1.publish("alerts", "one")
        host1.publish_many("alerts", ["two", "three"])
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["one", "two", "three"])
        assert lines(net.path("hub"), "alerts") == lines(net.path("host1"), "alerts"), "byte for byte"
        host1.publish("alerts", "four")
        wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 4)
        wait_for(lambda: up(host1, "hub") and up(hub, "host1"))
        wait_for(lambda: host1.links()[0].channels == ["alerts"] and host1.links()[0].lag_messages == 0)
        assert [link.kind for link in (*host1.links(), *hub.links())] == ["hub", "peer"]
        assert host1.links()[0].certificate_days_left > 300  # type: ignore[operator]
    assert [record["peer"] for record in audited(net.path("hub"), "link-up")] == ["host1"]
    assert [record["peer"] for record in audited(net.path("host1"), "link-down")] == ["hub"]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1:"), ("[::1]", "[::1]:")])
def test_a_hub_of_both_families_shows_addresses_as_they_are_written(net: Net, host: str, shown: str) -> None:
    port = net.port("hub")
    net.pki.issue("hub", "127.0.0.1", "::1")
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}], hub={"listen": f":{port}"})
    net.station("host1", links=[{"hub": f"{host}:{port}", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("host1"):
        wait_for(lambda: up(hub, "host1"))
        assert hub.links()[0].address.startswith(shown)
        with socket.create_connection((host.strip("[]"), port)):
            pass
        wait_for(lambda: audited(net.path("hub"), "link-refused"))
    told = [*audited(net.path("hub"), "link-up"), *audited(net.path("hub"), "link-refused")]
    assert [record["address"].rpartition(":")[0] + ":" for record in told] == [shown, shown]


def test_messages_from_before_the_link_and_of_many_partitions_arrive_in_order(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": [">"]}], storage={"partitions": 3})
    net.station("host1", links=[{"hub": "hub", "publish": ["sensors.>"]}], storage={"partitions": 2})
    with net.open("host1", federate=False) as host1:
        for number in range(300):
            host1.publish("sensors.kitchen", number, key=f"k{number % 7}")
        host1.publish("private", "not for anybody")
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("sensors.cellar", "a channel that is new", key="k")
        wait_for(lambda: len(set(lines(net.path("hub"), "sensors.kitchen"))) == 300)
        wait_for(lambda: payloads(net.path("hub"), "sensors.cellar") == ["a channel that is new"])
    assert lines(net.path("hub"), "private") == []
    with hg.open(net.path("hub"), read_only=True) as hub:
        for key in range(7):
            found = [message.data for message in hub.read("sensors.kitchen") if message.key == f"k{key}"]
            assert found == sorted(found)


@pytest.mark.parametrize("size", [600_000, 900_000, 3_000_000])
def test_after_catching_up_with_several_batches_a_link_goes_on(net: Net, size: int) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("host1", federate=False) as host1:
        host1.publish_many("alerts", ["x" * 1000] * (size // 1000))
    with net.open("hub"), net.open("host1") as host1:
        wait_for(lambda: len(lines(net.path("hub"), "alerts")) == size // 1000)
        for number in range(3):
            host1.publish("alerts", f"live {number}")
            wait_for(lambda number=number: payloads(net.path("hub"), "alerts")[-1] == f"live {number}")


def test_star(net: Net) -> None:
    hosts = ["host1", "host2", "host3"]
    peers = [{"name": name, "publish": ["alerts"], "subscribe": [f"commands.{name}"]} for name in hosts]
    net.station("hub", peers=[*peers, {"name": "dashboard", "subscribe": ["alerts"]}])
    for name in hosts:
        net.station(name, links=[{"hub": "hub", "publish": ["alerts"], "subscribe": [f"commands.{name}"]}])
    net.station("dashboard", links=[{"hub": "hub", "subscribe": ["alerts"]}])
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(net.open("hub"))
        stations = {name: stack.enter_context(net.open(name)) for name in (*hosts, "dashboard")}
        for name in hosts:
            stations[name].publish_many("alerts", [f"{name}-{number}" for number in range(50)])
            hub.publish(f"commands.{name}", f"do it, {name}")
        wait_for(lambda: len(check_log(net.path("dashboard"), "alerts")) == 150)
        for name in hosts:
            wait_for(lambda name=name: payloads(net.path(name), f"commands.{name}") == [f"do it, {name}"])
            assert len(lines(net.path(name), "alerts")) == 50, "what others published is nobody's concern"
        assert check_log(net.path("hub"), "alerts") == check_log(net.path("dashboard"), "alerts")


def test_chain(net: Net) -> None:
    net.station("c", peers=[{"name": "b", "publish": ["alerts"], "relay": ["a"]}])
    net.station(
        "b", peers=[{"name": "a", "publish": ["alerts"]}], links=[{"hub": "c", "publish": ["alerts"]}]
    )  # fmt: skip
    net.station("a", links=[{"hub": "b", "publish": ["alerts"]}])
    with net.open("c"), net.open("b") as b, net.open("a") as a:
        for number in range(20):
            a.publish("alerts", f"a{number}")
            b.publish("alerts", f"b{number}")
        wait_for(lambda: len(check_log(net.path("c"), "alerts")) == 40)
    assert check_log(net.path("c"), "alerts") == check_log(net.path("b"), "alerts")


def test_a_chain_passes_on_only_what_may_be_relayed(net: Net) -> None:
    net.station("c", peers=[{"name": "b", "publish": ["alerts"]}])
    net.station(
        "b", peers=[{"name": "a", "publish": ["alerts"]}], links=[{"hub": "c", "publish": ["alerts"]}]
    )  # fmt: skip
    net.station("a", links=[{"hub": "b", "publish": ["alerts"]}])
    with net.open("c"), net.open("b") as b, net.open("a") as a:
        a.publish("alerts", "of a")
        wait_for(lambda: payloads(net.path("b"), "alerts") == ["of a"])
        b.publish("alerts", "of b")
        wait_for(lambda: payloads(net.path("c"), "alerts") == ["of b"])
        wait_for(lambda: up(b, "c") and not b.links()[0].parked)


def test_diamond(net: Net) -> None:
    for hub in ("hub1", "hub2"):
        net.station(
            hub, peers=[{"name": "client", "publish": ["alerts"]}, {"name": "reader", "subscribe": ["alerts"]}]
        )  # fmt: skip
    both = ("hub1", "hub2")
    net.station("client", links=[{"hub": hub, "publish": ["alerts"]} for hub in both])
    net.station("reader", links=[{"hub": hub, "subscribe": ["alerts"]} for hub in both])
    with net.open("hub1"), net.open("hub2") as hub2, net.open("client") as client, net.open("reader"):
        client.publish_many("alerts", list(range(200)))
        hub2.publish("alerts", "of hub2")
        wait_for(lambda: len(lines(net.path("reader"), "alerts")) == 201)
        for number in range(20):
            client.publish("alerts", number)
        wait_for(lambda: len(lines(net.path("reader"), "alerts")) == 221)
    found = lines(net.path("reader"), "alerts")
    assert len(set(found)) == len(found) == 221, "each message once, though it came twice"


def test_ring(net: Net) -> None:
    names = ["a", "b", "c"]
    for at, name in enumerate(names):
        before, after = names[at - 1], names[(at + 1) % 3]
        net.station(
            name,
            peers=[{"name": before, "publish": ["news"], "relay": [">"]}],
            links=[{"hub": after, "publish": ["news"]}],
        )
    with contextlib.ExitStack() as stack:
        stations = {name: stack.enter_context(net.open(name)) for name in names}
        for number in range(10):
            for name in names:
                stations[name].publish("news", f"{name}{number}")
        for name in names:
            wait_for(lambda name=name: len(lines(net.path(name), "news")) >= 30)
    logs = [set(lines(net.path(name), "news")) for name in names]
    assert [len(lines(net.path(name), "news")) for name in names] == [30, 30, 30]
    assert logs[0] == logs[1] == logs[2]


def test_a_client_publishes_and_subscribes_the_same_channel(net: Net) -> None:
    net.station("hub", peers=[{"name": name, "publish": ["chat"], "subscribe": ["chat"]} for name in ("ann", "bob")])
    for name in ("ann", "bob"):
        net.station(name, links=[{"hub": "hub", "publish": ["chat"], "subscribe": ["chat"]}])
    with net.open("hub") as hub, net.open("ann") as ann, net.open("bob") as bob:
        for number in range(10):
            ann.publish("chat", f"ann {number}")
            bob.publish("chat", f"bob {number}")
            hub.publish("chat", f"hub {number}")
        for name in ("hub", "ann", "bob"):
            wait_for(lambda name=name: len(check_log(net.path(name), "chat")) == 30)
    assert check_log(net.path("ann"), "chat") == check_log(net.path("bob"), "chat")


def test_what_both_sides_publish_is_not_sent_again_with_every_connection(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences of a station are its offsets; those that hold messages of others are lacking nowhere."""
    net.station("hub", peers=[{"name": "ann", "publish": ["chat"], "subscribe": ["chat"]}])
    net.station("ann", links=[{"hub": "hub", "publish": ["chat"], "subscribe": ["chat"]}])
    begun: list[Beginning] = []
    begin = Outlet.begin

    def spy(*arguments: Any) -> Beginning:
        begun.append(begin(*arguments))
        return begun[-1]

    monkeypatch.setattr(Outlet, "begin", spy)
    with net.open("hub") as hub:
        with net.open("ann") as ann:
            for number in range(10):
                ann.publish("chat", f"ann {number}")
                wait_for(lambda number=number: len(lines(net.path("hub"), "chat")) == 2 * number + 1)
                hub.publish("chat", f"hub {number}")
                wait_for(lambda number=number: len(lines(net.path("ann"), "chat")) == 2 * number + 2)
            for station, peer in ((ann, "hub"), (hub, "ann")):
                wait_for(lambda one=station, peer=peer: peerfile.acknowledged(one, peer, "chat") == {0: 20})
        for told in (True, False):
            begun.clear()
            with net.open("ann") as ann:
                wait_for(lambda: len(begun) == 2)
                assert all(one.starts == one.ends for one in begun), "nothing is sent once more"
                assert any(len(one.never) for one in begun) == told, "and what is known is not told again"
                wait_for(lambda: ann.engine.relayed.seen("chat") == hub.engine.relayed.seen("chat"))
    assert len(check_log(net.path("hub"), "chat")) == len(check_log(net.path("ann"), "chat")) == 20


def test_a_station_works_while_its_hub_is_down_and_catches_up(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("host1") as host1:
        host1.publish("alerts", "nobody is there")
        wait_for(lambda: host1.links()[0].state == "waiting" and host1.links()[0].error)
        with net.open("hub"):
            wait_for(lambda: payloads(net.path("hub"), "alerts") == ["nobody is there"])
        wait_for(lambda: not up(host1, "hub"))
        host1.publish("alerts", "gone again")
        with net.open("hub"):
            wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 2)
            wait_for(lambda: up(host1, "hub") and host1.links()[0].reconnects == 1)


def test_a_subscription_that_begins_with_new_messages(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "subscribe": ["commands"]}])
    net.station("host1", links=[{"hub": "hub", "subscribe": ["commands"], "start": "new"}])
    with net.open("hub") as hub:
        hub.publish("commands", "old")
        with net.open("host1") as host1:
            wait_for(lambda: up(host1, "hub") and host1.links()[0].channels == ["commands"])
            hub.publish("commands", "new")
            wait_for(lambda: payloads(net.path("host1"), "commands") == ["new"])
        hub.publish("commands", "while it was away")
        with net.open("host1"):
            wait_for(lambda: payloads(net.path("host1"), "commands") == ["new", "while it was away"])


def test_lines_that_were_redacted_are_passed_over(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("host1") as host1:
        receipts = host1.publish_many("alerts", list(range(10)))
        host1.redact(receipts[0].id)
        host1.redact(receipts[4].id)
        with net.open("hub"):
            wait_for(lambda: payloads(net.path("hub"), "alerts") == [1, 2, 3, 5, 6, 7, 8, 9])
            host1.publish("alerts", 10)
            wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 9)


def test_a_payload_that_speaks_of_origins_changes_nothing(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", {"a": 1, "origin": "other.k3f9q2", "originseq": "0/0", "crc": "00000000"})
        host1.publish("alerts", "plain")
        wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 2)


def test_durability_interval_is_synced_before_it_is_sent(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}], storage={"durability": "interval"})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], storage={"durability": "os"})
    with net.open("hub"), net.open("host1") as host1:
        for number in range(100):
            host1.publish("alerts", number)
        wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 100)
        limit = host1.engine.limit("alerts", 0, synced=True)
        assert limit.next == 100


def test_a_channel_that_is_deleted_and_made_again(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        there: list[str] = []
        for life in range(6):  # as long as before, longer, shorter
            there = there + [f"{life}-{number}" for number in range((3, 3, 5, 1, 1, 2)[life])]
            host1.publish_many("alerts", [text for text in there if text.startswith(f"{life}-")])
            wait_for(lambda now=tuple(there): payloads(net.path("hub"), "alerts") == list(now))
            host1.delete_channel("alerts")


def test_a_channel_that_another_process_deletes_and_makes_again(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1"), net.open("host1", federate=False) as other:
        for life in range(3):
            other.publish("alerts", life)
            wait_for(lambda life=life: payloads(net.path("hub"), "alerts") == list(range(life + 1)))
            other.delete_channel("alerts")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["there", "by another process"])
def test_a_channel_that_the_receiver_deletes_comes_again_from_its_beginning(net: Net, elsewhere: bool) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("hub", federate=False) as other, net.open("host1") as host1:
        for first, last in ((0, 10), (10, 13), (13, 14)):
            host1.publish_many("alerts", list(range(first, last)))
            wait_for(lambda last=last: payloads(net.path("hub"), "alerts") == list(range(last)))
            (other if elsewhere else hub).delete_channel("alerts")
        host1.publish("alerts", 14)
        wait_for(lambda: payloads(net.path("hub"), "alerts") == list(range(15)))
        wait_for(lambda: not host1.links()[0].parked and not hub.links()[0].parked)
        assert host1.links()[0].reconnects == 0


def test_other_processes_see_the_links_and_stand_by(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"):
        process = net.run("host1")
        with net.open("host1") as host1:
            wait_for(lambda: up(host1, "hub"))
            host1.publish("alerts", "published here, sent by the other process")
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 1)
            assert states.running(net.path("host1"), host1.engine.disk)
            process.kill()
            host1.publish("alerts", "and now by this one")
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 2)
            wait_for(lambda: up(host1, "hub"))
    with hg.open(net.path("host1"), read_only=True) as host1:
        assert [link.state for link in host1.links()] == ["stopped"]


def test_a_channel_that_is_made_while_a_subscriber_of_new_messages_is_away_is_new_to_it(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "subscribe": ["commands.>"]}])
    net.station("host1", links=[{"hub": "hub", "subscribe": ["commands.>"], "start": "new"}])
    with net.open("hub") as hub:
        hub.publish("commands.all", "old")
        with net.open("host1") as host1:
            wait_for(lambda: host1.links()[0].channels == ["commands.all"])
        hub.publish("commands.host1", "the first command")
        with net.open("host1"):
            wait_for(lambda: payloads(net.path("host1"), "commands.host1") == ["the first command"])
    assert lines(net.path("host1"), "commands.all") == []


def test_retention_waits_for_links_as_it_does_for_subscriptions(net: Net) -> None:
    small = {"segment_bytes": 4096, "retention_once_read": True}
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], storage=small)
    with net.open("host1") as host1:
        for number in range(100):
            host1.publish("alerts", number)
        host1.trim()
        assert len(lines(net.path("host1"), "alerts")) == 100, "a hub that was never reached holds everything"
        with net.open("hub"):
            wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 100)
            wait_for(lambda: states.positions(host1.engine, "alerts", 0, 0) == {"link to hub": 100})
        host1.publish("alerts", "while it was away")
        host1.trim()
        assert len(lines(net.path("host1"), "alerts")) < 100
        assert "while it was away" in payloads(net.path("host1"), "alerts")
        with net.open("hub"):
            wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 101)
        assert set(states.positions(host1.engine, "alerts", 0, 0)) == {"link to hub"}
    net.station("host1", storage=small)
    with net.open("host1") as host1:
        assert states.positions(host1.engine, "alerts", 0, 0) == {}, "not configured any more: nobody waits for it"


def test_a_hub_that_gets_a_full_disk_acknowledges_nothing_and_goes_on_later(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("host1") as host1:
        append = hub.engine.relayed.append
        full = [True]

        def refusing(*arguments: object, **more: object) -> object:
            if full[0]:
                raise hg.DiskFull("no space left on device")
            return append(*arguments, **more)  # type: ignore[arg-type]

        hub.engine.relayed.append = refusing  # type: ignore[assignment,method-assign]
        host1.publish("alerts", "patience")
        wait_for(lambda: any("no space" in link.error for link in hub.links()))
        wait_for(lambda: host1.links()[0].lag_messages == 1)
        assert lines(net.path("hub"), "alerts") == []
        full[0] = False
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["patience"])
        wait_for(lambda: host1.links()[0].lag_messages == 0 and not any(link.error for link in hub.links()))


def test_hearts_beat_as_soon_as_a_link_is_up(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when the time for the handshake would have been over."""
    monkeypatch.setattr("heliograph.federation.session.LINK_HANDSHAKE_S", 1_000.0)
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("host1") as host1:
        for station in (hub, host1):
            wait_for(lambda station=station: station.links()[0].round_trip_ms > 0)


def test_a_channel_that_cannot_be_read_and_is_taken_away_is_no_trouble_any_more(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": [">"]}])
    net.station("host1", links=[{"hub": "hub", "publish": [">"]}])
    with net.open("host1", federate=False) as host1:
        host1.publish("bad", 1)
    made = net.path("host1") / "channels" / "bad"
    (made / "channel.json").write_bytes(b"garbage")
    with net.open("hub"), net.open("host1") as host1:
        wait_for(lambda: host1.links() and "'bad' cannot be looked at" in host1.links()[0].error)
        shutil.rmtree(made)
        wait_for(lambda: not host1.links()[0].error)
