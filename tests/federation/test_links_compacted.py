"""Latest per key and deleted segments on either side of a link, in any order: nothing comes back, nothing is missed."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.engine.known import KnownChannels
from tests.federation.chaos import Proxy
from tests.federation.stations import Net, check_log, lines, wait_for

CHANNEL = "prices"
SMALL = {"segment_bytes": 4096}


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def pair(net: Net, hub: str = "hub") -> None:
    net.station("hub", peers=[{"name": "host1", "publish": [CHANNEL]}], storage=SMALL)
    net.station("host1", links=[{"hub": hub, "publish": [CHANNEL]}], storage=SMALL)


def put(station: hg.Station, count: int, keys: int = 5, first: int = 0) -> None:
    for number in range(first, first + count):
        station.publish(CHANNEL, f"{number} {'x' * 150}", key=f"k{number % keys}")


def latest(path: Path, channel: str = CHANNEL) -> dict[str, Any]:
    """What a reader of the log takes for the state of each key; what was deleted is None."""
    found: dict[str, Any] = {}
    for line in lines(path, channel):
        envelope = msgspec.json.decode(line)
        found[envelope["partitionkey"]] = envelope.get("data")
    return found


def forget_positions(net: Net, name: str = "host1", kind: str = "hub", peer: str = "hub") -> None:
    """So that everything is sent once more."""
    (net.path(name) / "links" / kind / peer / f"{CHANNEL}.json").unlink()


def test_what_was_compacted_before_the_peer_read_it_is_a_gap_and_the_rest_comes(net: Net) -> None:
    pair(net)
    with net.open("host1") as host1:
        host1.create_channel(CHANNEL, retention_compact=True)
        put(host1, 100)
        host1.publish(CHANNEL, None, key="k0")
        put(host1, 40, keys=4, first=101)
        host1.trim()
        left = lines(net.path("host1"), CHANNEL)
        assert len(left) < 80
        with net.open("hub") as hub:
            wait_for(lambda: lines(net.path("hub"), CHANNEL) == left)
            gaps = wait_for(lambda: hub.engine.relayed.gaps(CHANNEL).count)
            assert gaps == 141 - len(left)
            put(host1, 10, first=200)
            wait_for(lambda: latest(net.path("hub")) == latest(net.path("host1")))
        assert check_log(net.path("hub"), CHANNEL) >= set(left)


@pytest.mark.parametrize("how", ["compact", "bytes", "redact"])
@pytest.mark.parametrize("restart", [False, True], ids=["running", "killed"])
def test_what_the_receiver_removed_does_not_come_back_when_all_is_sent_again(
    net: Net, how: str, restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnownChannels, "close", lambda _: None)  # as if it were killed: nothing is written down at last
    pair(net)
    with net.open("hub", federate=False) as hub:
        settings: dict[str, Any] = {"retention_compact": True} if how == "compact" else {}
        hub.create_channel(CHANNEL, **settings)
    with net.open("hub") as hub:
        with net.open("host1") as host1:
            put(host1, 100)
            wait_for(lambda: len(lines(net.path("hub"), CHANNEL)) == 100)
        if how == "bytes":
            hub.alter_channel(CHANNEL, retention_bytes=8192)
        if how == "redact":
            for message in list(hub.read(CHANNEL))[:70]:
                hub.redact(message.id)
        hub.trim()
        left = lines(net.path("hub"), CHANNEL)
        assert 0 < len(left) < 80
        with contextlib.ExitStack() as stack:
            if restart:
                hub.close()
                stack.enter_context(net.open("hub"))
            forget_positions(net)
            host1 = stack.enter_context(net.open("host1"))
            put(host1, 5, first=100)
            wait_for(lambda: len(lines(net.path("hub"), CHANNEL)) >= len(left) + 5)
            wait_for(lambda: host1.links()[0].channels and host1.links()[0].lag_messages == 0)
    assert lines(net.path("hub"), CHANNEL)[: len(left)] == left
    assert len(lines(net.path("hub"), CHANNEL)) == len(left) + 5


def test_a_tombstone_reaches_the_peer_and_deletes_there_too(net: Net) -> None:
    pair(net)
    with net.open("hub", federate=False) as hub:
        hub.create_channel(CHANNEL, retention_compact=True, tombstone_grace_s=0.0)
    with net.open("hub") as hub, net.open("host1") as host1:
        put(host1, 40)
        host1.publish(CHANNEL, None, key="k3")
        put(host1, 60, keys=3, first=50)
        wait_for(lambda: len(lines(net.path("hub"), CHANNEL)) == 101)

        def deleted() -> bool:
            hub.trim()
            return "k3" not in latest(net.path("hub"))

        wait_for(deleted)
        host1.publish(CHANNEL, "again", key="k3")
        wait_for(lambda: latest(net.path("hub")).get("k3") == "again")


def test_what_one_way_has_removed_comes_another_way(net: Net) -> None:
    """A gap is no message that was seen: whoever still has it may send it."""
    for hub in ("hub1", "hub2"):
        net.station(
            hub, peers=[{"name": "host1", "publish": [CHANNEL]}, {"name": "reader", "subscribe": [CHANNEL]}],
            storage=SMALL,
        )  # fmt: skip
    net.station("host1", links=[{"hub": hub, "publish": [CHANNEL]} for hub in ("hub1", "hub2")], storage=SMALL)
    with net.open("hub1") as hub1, net.open("hub2"):
        with net.open("host1") as host1:
            put(host1, 50)
            for hub in ("hub1", "hub2"):
                wait_for(lambda hub=hub: len(lines(net.path(hub), CHANNEL)) == 50)
        hub1.alter_channel(CHANNEL, retention_bytes=4096)
        assert hub1.trim()
        net.station("reader", links=[{"hub": "hub1", "subscribe": [CHANNEL]}])
        with net.open("reader") as reader:
            wait_for(lambda: reader.links()[0].channels and lines(net.path("reader"), CHANNEL))
            wait_for(lambda: reader.engine.relayed.gaps(CHANNEL).count)
            assert len(lines(net.path("reader"), CHANNEL)) < 50
        net.station("reader", links=[{"hub": hub, "subscribe": [CHANNEL]} for hub in ("hub1", "hub2")])
        with net.open("reader"):
            wait_for(lambda: len(lines(net.path("reader"), CHANNEL)) == 50)
    assert set(lines(net.path("reader"), CHANNEL)) == set(lines(net.path("host1"), CHANNEL))


def test_anything_in_any_order(net: Net) -> None:
    shuffle(net, seed=1, rounds=25)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(2, 8))
def test_anything_in_any_order_for_long(net: Net, seed: int) -> None:
    shuffle(net, seed, rounds=250)


def shuffle(net: Net, seed: int, rounds: int) -> None:
    """A chain whose stations publish, compact, trim, restart and lose positions by chance; one path, so order holds."""
    chance = random.Random(seed)
    names = ("host1", "middle", "hub")
    proxy = Proxy(net.port("hub"), seed=seed)
    net.station("hub", peers=[{"name": "middle", "publish": [CHANNEL], "relay": ["host1"]}], storage=SMALL)
    net.station(
        "middle", peers=[{"name": "host1", "publish": [CHANNEL]}],
        links=[{"hub": f"localhost:{proxy.port}", "publish": [CHANNEL]}], storage=SMALL,
    )  # fmt: skip
    net.station("host1", links=[{"hub": "middle", "publish": [CHANNEL]}], storage=SMALL)
    for name in names:
        with net.open(name, federate=False) as station:
            station.create_channel(CHANNEL, retention_compact=True, partitions=2)
    stations = {name: net.open(name) for name in names}
    wanted: dict[str, Any] = {}
    number = 0
    try:
        for _ in range(rounds):
            for _ in range(chance.randrange(1, 30)):
                number += 1
                key = f"k{chance.randrange(8)}"
                wanted[key] = None if chance.random() < 0.1 else f"{number} {'x' * chance.randrange(300)}"
                stations["host1"].publish(CHANNEL, wanted[key], key=key)
            name = chance.choice(names)
            match chance.randrange(5):
                case 0:
                    stations[name].trim()
                case 1:
                    stations[name].close()
                    stations[name] = net.open(name)
                case 2:
                    proxy.cut()
                case 3:
                    stations["middle"].close()
                    with contextlib.suppress(FileNotFoundError):
                        forget_positions(net, "middle")
                    stations["middle"] = net.open("middle")
                case 4 if chance.random() < 0.5:
                    (seen := net.path("host1") / "seen" / f"{CHANNEL}.json").unlink(missing_ok=True)
                    assert not seen.exists()
        for name in ("middle", "hub"):
            wait_for(lambda name=name: latest(net.path(name)) == wanted, 60)
    finally:
        for station in stations.values():
            station.close()
        proxy.close()
    for name in ("middle", "hub"):
        check_log(net.path(name), CHANNEL)
