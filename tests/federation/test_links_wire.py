"""Where a link begins, what it packs, and which versions of the protocol it refuses: between real stations."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.federation.identity import Identity
from heliograph.federation.session import Ours
from tests.federation.chaos import Proxy
from tests.federation.stations import Net, audited, check_log, lines, payloads, up, wait_for


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


Changing = Callable[..., None]


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> Changing:
    """Have stations say something else of themselves than they would."""
    ours = Identity.ours

    def change(**changes: dict[str, Any]) -> None:
        def changed(self: Identity, *arguments: Any) -> Ours:
            return msgspec.structs.replace(ours(self, *arguments), **changes.get(self._name, {}))

        monkeypatch.setattr(Identity, "ours", changed)

    return change


# -- where it begins ----------------------------------------------------------------------------------------


def now() -> str:
    time.sleep(0.01)
    found = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    return found


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_subscription_that_begins_at_a_time(net: Net, partitions: int) -> None:
    net.station("hub", peers=[{"name": "host1", "subscribe": ["news.>"]}])
    with net.open("hub") as hub:
        for name in ("news.one", "news.two"):
            hub.create_channel(name, partitions=partitions)
            hub.publish_many(name, [f"old {number}" for number in range(10)])
        start = now()
        hub.publish_many("news.one", [f"new {number}" for number in range(10)])
        net.station("host1", links=[{"hub": "hub", "subscribe": ["news.>"], "start": start}])
        with net.open("host1"):
            wait_for(lambda: len(check_log(net.path("host1"), "news.one")) == 10)
            hub.publish("news.two", "also new")
            hub.publish("news.three", "a channel that is new")
            wait_for(lambda: payloads(net.path("host1"), "news.two") == ["also new"])
            wait_for(lambda: payloads(net.path("host1"), "news.three") == ["a channel that is new"])
        hub.publish("news.one", "while it was away")
        with net.open("host1"):
            wait_for(lambda: len(check_log(net.path("host1"), "news.one")) == 11)
    found = payloads(net.path("host1"), "news.one")
    assert sorted(found) == sorted([f"new {number}" for number in range(10)] + ["while it was away"])


def test_a_time_means_what_was_published_then_by_whomever(net: Net) -> None:
    """Lines of others have their own times, and are not in the order of them."""
    net.station("far", links=[{"hub": "hub", "publish": ["news"]}])
    net.station("hub", peers=[{"name": "far", "publish": ["news"]}, {"name": "host1", "subscribe": ["news"]}])
    with net.open("far", federate=False) as far:
        far.publish("news", "long ago, elsewhere")
    start = now()
    with net.open("hub") as hub:
        hub.publish("news", "after that time")
        with net.open("far"):
            wait_for(lambda: len(lines(net.path("hub"), "news")) == 2)
        hub.publish("news", "later")
        net.station("host1", links=[{"hub": "hub", "subscribe": ["news"], "start": start}])
        with net.open("host1"):
            wait_for(lambda: "later" in payloads(net.path("host1"), "news"))
    assert payloads(net.path("host1"), "news")[0] == "after that time"


@pytest.mark.parametrize(("start", "wanted"), [("first", ["old", "new"]), ("new", ["new"])])
def test_the_beginning_and_the_end(net: Net, start: str, wanted: list[str]) -> None:
    net.station("hub", peers=[{"name": "host1", "subscribe": ["news"]}])
    net.station("host1", links=[{"hub": "hub", "subscribe": ["news"], "start": start}])
    with net.open("hub") as hub:
        hub.publish("news", "old")
        with net.open("host1") as host1:
            wait_for(lambda: up(host1, "hub") and host1.links()[0].channels == ["news"])
            wait_for((net.path("hub") / "links/peer/host1/news.json").exists)
            hub.publish("news", "new")
            wait_for(lambda: payloads(net.path("host1"), "news") == wanted)


def test_a_link_cannot_begin_at_an_offset_which_means_another_place_in_every_channel(net: Net) -> None:
    net.station("host1", links=[{"hub": "localhost:1", "subscribe": [">"], "start": "17"}])
    with pytest.raises(hg.ConfigError, match="first, new, or a time"):
        net.open("host1")


# -- zstd ---------------------------------------------------------------------------------------------------

ALIKE = [f"{number} the kitchen is warm, the cellar is cold, " * 8 for number in range(2_000)]
PRINTABLE = [chr(code) for code in range(35, 127) if chr(code) != "\\"]
NOISE = ["".join(random.Random(number).choices(PRINTABLE, k=10_000)) for number in range(100)]


def carried(net: Net, messages: list[str], compress: str, rate: int = 0) -> float:
    """How many bytes went over the wire for each byte of the log."""
    proxy = Proxy(net.port("hub"), rate=rate)
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station(
        "host1", links=[{"hub": f"localhost:{proxy.port}", "publish": ["alerts"], "compress": compress}]
    )  # fmt: skip
    try:
        with net.open("host1", federate=False) as host1:
            host1.publish_many("alerts", messages)
        with net.open("hub"), net.open("host1"):
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == len(messages))
        assert check_log(net.path("hub"), "alerts") == check_log(net.path("host1"), "alerts")
    finally:
        proxy.close()
    return proxy.passed / sum(map(len, lines(net.path("hub"), "alerts")))


def test_what_is_alike_is_packed_where_bytes_are_dear(net: Net) -> None:
    assert carried(net, ALIKE, "always") < 0.5


def test_nothing_is_packed_where_nobody_wants_it(net: Net) -> None:
    assert carried(net, ALIKE, "never") > 1.0


def test_on_a_fast_line_packing_does_not_help_and_is_not_done(net: Net) -> None:
    assert carried(net, ALIKE[:200], "auto") > 1.0


def test_on_a_slow_line_it_is_packed(net: Net) -> None:
    assert carried(net, ALIKE * 4, "auto", rate=2_000_000) < 0.8


def test_a_message_that_takes_longer_than_three_heartbeats_arrives(net: Net, changing: Changing) -> None:
    changing(hub={"heartbeat_s": 0.8}, host1={"heartbeat_s": 0.8})
    proxy = Proxy(net.port("hub"), rate=200_000)
    link = {"hub": f"localhost:{proxy.port}", "publish": ["alerts"], "subscribe": ["news"], "compress": "never"}
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"], "subscribe": ["news"]}])
    net.station("host1", links=[link])
    long = "".join(NOISE)
    try:
        with net.open("hub") as hub, net.open("host1") as host1:
            wait_for(lambda: up(host1, "hub"))
            host1.publish("alerts", long)
            hub.publish("news", long)
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == len(lines(net.path("host1"), "news")) == 1)
            assert [link.reconnects for link in host1.links()] == [0]
    finally:
        proxy.close()


def test_packing_that_is_asked_for_while_a_link_is_up_begins_then(net: Net) -> None:
    proxy = Proxy(net.port("hub"))
    link = {"hub": f"localhost:{proxy.port}", "publish": ["alerts"], "compress": "never"}
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[link])
    try:
        with net.open("hub"), net.open("host1") as host1:
            wait_for(lambda: up(host1, "hub"))
            net.station("host1", links=[{**link, "compress": "always"}])
            wait_for(lambda: audited(net.path("host1"), "links-reloaded"))
            before = proxy.passed
            host1.publish_many("alerts", ALIKE)
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == len(ALIKE))
            assert proxy.passed - before < sum(map(len, lines(net.path("hub"), "alerts"))) / 2
            assert host1.links()[0].reconnects == 0
    finally:
        proxy.close()


def test_noise_is_not_made_larger(net: Net) -> None:
    assert 0.8 < carried(net, NOISE, "always") < 1.1


@pytest.mark.parametrize("old", ["hub", "host1"])
def test_a_peer_without_zstd_gets_everything_as_it_is(net: Net, changing: Changing, old: str) -> None:
    changing(**{old: {"zstd": False}})
    assert carried(net, ALIKE, "always") > 1.0


# -- versions -----------------------------------------------------------------------------------------------


def _links_of(net: Net, name: str) -> Result:
    return CliRunner().invoke(cli, ["--config", str(net.directory / f"{name}.yaml"), "links", "--json"])


@pytest.mark.parametrize(
    ("newer", "behind"),
    [("hub", "upgrade host1"), ("host1", "upgrade hub")],
)
def test_a_protocol_that_one_side_does_not_speak_is_refused_with_what_to_upgrade(
    net: Net, changing: Changing, newer: str, behind: str
) -> None:
    changing(**{newer: {"protocol": (7, 9)}})
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("host1") as host1:
        host1.publish("alerts", "kept until then")
        for station in (hub, host1):
            link = wait_for(lambda station=station: [one for one in station.links() if one.state == "refused"])[0]
            assert behind in link.error and "version 7" in link.error
            # The command reads what the station writes down every second: a little later than the station knows it.
            shown = wait_for(lambda name=station.name: [it for it in [_links_of(net, name)] if behind in it.output])[0]
            assert shown.exit_code == 1
        assert behind in wait_for(lambda: audited(net.path("hub"), "link-refused"))[0]["why"]
        assert behind in wait_for(lambda: audited(net.path("host1"), "link-failed"))[0]["why"]
        assert lines(net.path("hub"), "alerts") == []


def test_two_versions_that_overlap_speak_the_newest_that_both_know(net: Net, changing: Changing) -> None:
    changing(hub={"protocol": (1, 5)})
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", "understood")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["understood"])
