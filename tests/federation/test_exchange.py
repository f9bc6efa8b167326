"""What a station answers to others that compare, fetch and store: bounded, in pages, and only what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.errors import InvalidName, NotAllowed, ProtocolError
from heliograph.federation import asking, shelf
from heliograph.federation.comparing import Compare, Fetch, Fetched, Holding, Store, Stored, part_of, set_of
from heliograph.federation.exchange import Exchange
from heliograph.federation.rules import Rules
from heliograph.seen import SeenSet
from tests.arrivals import HOST2, line
from tests.arrivals import lines as made
from tests.federation.stations import lines, payloads

ALL = Rules("host2", ["alerts"], ["alerts"])
BODY_BYTES_MAX = 4 << 20


@pytest.fixture
def station(tmp_path: Path) -> Iterator[hg.Station]:
    with hg.open(tmp_path / "hub", name="hub") as opened:
        yield opened


@pytest.fixture
def exchange(station: hg.Station) -> Exchange:
    return Exchange(station)


def one(*found: tuple[str, int, int, int]) -> SeenSet:
    made = SeenSet()
    for key in found:
        made.add(*key)
    return made


def compare(exchange: Exchange, rules: Rules = ALL, **said: Any) -> Holding:
    body = asking.encode(Compare(**{"channel": "alerts", **said}))
    return asking.decode(exchange.compare(body, rules), Holding)[0]


def fetch(exchange: Exchange, wanted: SeenSet, rules: Rules = ALL, **said: Any) -> tuple[Fetched, list[bytes]]:
    body = asking.encode(Fetch(**{"channel": "alerts", "wanted": wanted.to_json(), **said}))
    answer = exchange.fetch(body, rules, BODY_BYTES_MAX)
    assert len(answer) <= BODY_BYTES_MAX
    head, found = asking.decode(answer, Fetched)
    return head, found.splitlines()


def store(exchange: Exchange, found: list[bytes], rules: Rules = ALL, **said: Any) -> Stored:
    body = asking.encode(Store(**{"channel": "alerts", **said}), b"".join([one + b"\n" for one in found]))
    return exchange.store(body, rules)[0]


# -- comparing ----------------------------------------------------------------------------------------------


def test_what_is_here_and_what_may_be_done_about_it(station: hg.Station, exchange: Exchange) -> None:
    assert compare(exchange) == Holding(), "no such channel holds nothing, and none is made"
    assert station.channels() == []
    station.publish("alerts", 1)
    store(exchange, made(3, 5))
    own = f"hub.{station.engine.incarnation('alerts')}"
    told = compare(exchange, Rules("host1", subscribe=["alerts"], relay=["host2"]))
    assert told.seen == {own: {"0": [[0, 1]]}, HOST2: {"0": [[3, 5]]}}
    assert told.ends[HOST2]["0"][0] == 4 and told.relay == ["host2"]
    assert (told.publish, told.subscribe) == ("host1 is not allowed to publish 'alerts'", "")


def test_whoever_may_neither_fetch_nor_store_is_told_nothing(station: hg.Station, exchange: Exchange) -> None:
    station.publish("alerts", 1)
    nobody = Rules("host2", ["logs"], ["logs"])
    for attempt in (
        lambda: compare(exchange, nobody),
        lambda: fetch(exchange, SeenSet(), nobody),
        lambda: store(exchange, made(0, 1), nobody),
        lambda: store(exchange, [], nobody, channel="../../x"),
        lambda: fetch(exchange, SeenSet(), nobody, channel="../../x"),
    ):
        with pytest.raises(NotAllowed):
            attempt()
    with pytest.raises(InvalidName):
        compare(exchange, channel="../../x")
    assert [info.name for info in station.channels()] == ["alerts"]


def test_whoever_may_not_store_anything_cannot_begin_a_new_life(station: hg.Station, exchange: Exchange) -> None:
    station.publish("alerts", 1)
    life = station.engine.incarnation("alerts")
    ends = {f"hub.{life}": {"0": (0, "another message")}}
    compare(exchange, Rules("host1", subscribe=["alerts"]), ends=ends)
    assert station.engine.incarnation("alerts") == life
    compare(exchange, ends=ends)
    assert station.engine.incarnation("alerts") != life


def test_a_large_set_is_told_in_parts() -> None:
    large = SeenSet()
    for at in range(9_000):
        large.add("a.k" if at % 3 else "b.k", at % 2, 2 * at, 2 * at + 1)
    found, after, parts = SeenSet(), None, 0
    while parts == 0 or after is not None:
        part, after = part_of(large, after)
        found.update(part)
        parts += 1
    assert found == large and parts == 2
    assert part_of(SeenSet(), None) == (SeenSet(), None)


@pytest.mark.parametrize(
    "said",
    [
        {"a.k": {"x": [[0, 1]]}}, {"a.k": {"0": [[5, 3]]}}, {"a.k": {"0": [[0, 1], [1, 2]]}},
        {"a.k": {"1024": [[0, 1]]}}, {"a.k": {"9" * 5000: [[0, 1]]}},
    ],
)  # fmt: skip
def test_a_set_that_is_none_is_refused(exchange: Exchange, said: Any) -> None:
    with pytest.raises(ProtocolError):
        set_of(said)
    for attempt in (
        lambda: store(exchange, [], never=said),
        lambda: exchange.fetch(asking.encode(Fetch(channel="alerts", wanted=said)), ALL, BODY_BYTES_MAX),
    ):
        with pytest.raises(ProtocolError):
            attempt()
    with pytest.raises(ProtocolError):
        exchange.compare(b'{"channel":"alerts","ends":{"hub.k":{"x":[1,"id"]}}}\n', ALL)


# -- fetching -----------------------------------------------------------------------------------------------


def test_lines_come_in_pages_and_only_those_that_were_asked_for(station: hg.Station, exchange: Exchange) -> None:
    host2 = made(0, 100)
    store(exchange, host2)
    left, found, places, life = one((HOST2, 0, 10, 90)), [], [], ""
    for _ in range(100):
        head, some = fetch(exchange, left, bytes=1000, places=places, incarnation=life)
        found += some
        left = left.difference(one((HOST2, 0, 10, 10 + len(found))))
        places, life = head.next, head.incarnation
        if not places:
            break
        assert 0 < sum(map(len, some)) <= 1000
    assert found == host2[10:90]
    assert life == station.engine.incarnation("alerts")


def test_a_new_life_of_the_channel_begins_the_search_anew(station: hg.Station, exchange: Exchange) -> None:
    store(exchange, made(0, 10))
    wanted = one((HOST2, 0, 0, 10))
    assert fetch(exchange, wanted, places=[(0, 8)], incarnation="another")[1] == made(0, 10)
    life = station.engine.incarnation("alerts")
    assert fetch(exchange, wanted, places=[(0, 8)], incarnation=life)[1] == made(8, 10)
    assert fetch(exchange, wanted, places=[(7, 0), (0, 1 << 62)], incarnation=life)[1] == []
    assert fetch(exchange, wanted, Rules("x", subscribe=["logs"]), channel="logs")[1] == [], "no such channel"


def test_only_a_part_of_a_long_log_is_looked_at_for_one_answer(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(0, 1000, 100):
        store(exchange, made(first, first + 100))
    monkeypatch.setattr(shelf, "LOOK_BYTES", 40_000)
    head, found = fetch(exchange, one((HOST2, 0, 999, 1000)))
    assert found == [] and head.next and head.next[0][1] > 100
    for _ in range(20):
        head, found = fetch(exchange, one((HOST2, 0, 999, 1000)), places=head.next, incarnation=head.incarnation)
        if found:
            break
    assert found == made(999, 1000)


def test_sequences_that_were_given_to_no_message_are_told(station: hg.Station, exchange: Exchange) -> None:
    station.publish("alerts", "offset 0")
    store(exchange, made(0, 3))
    receipt = station.publish("alerts", "offset 4")
    station.publish("alerts", "offset 5")
    station.redact(receipt.id)
    own = f"hub.{station.engine.incarnation('alerts')}"
    head, found = fetch(exchange, one((own, 0, 0, 6)))
    assert head.never == {own: {"0": [[1, 4]]}}, "not what was removed: that was a message"
    assert [msgspec.json.decode(some)["data"] for some in found] == ["offset 0", "offset 5"]
    head, found = fetch(exchange, one((own, 0, 0, 6)), look=True)
    assert not found and head.found == {own: {"0": [[0, 1], [5, 6]]}} and head.never == {own: {"0": [[1, 4]]}}


def test_a_line_that_is_too_long_for_the_other_side_is_named(station: hg.Station, exchange: Exchange) -> None:
    station.publish_many("alerts", ["x" * 500_000, "short"])
    own = f"hub.{station.engine.incarnation('alerts')}"
    body = asking.encode(Fetch(channel="alerts", wanted={own: {"0": [[0, 2]]}}))
    head, found = asking.decode(exchange.fetch(body, ALL, 400_000), Fetched)
    assert [refused[:3] for refused in head.refused] == [(own, 0, 0)] and "500" in head.refused[0][3]
    assert found.count(b"\n") == 1


# -- storing ------------------------------------------------------------------------------------------------


def test_each_line_is_stored_once_and_what_is_wrong_with_one_is_said(exchange: Exchange, station: hg.Station) -> None:
    bad = line(7).replace(b'"data":1', b'"data":2')
    stored = store(exchange, [*made(0, 5), bad, line(3), line(8, channel="logs")])
    assert (stored.appended, stored.duplicates) == (5, 1)
    assert [at for at, _ in stored.refused] == [5, 7]
    assert store(exchange, made(0, 6)).appended == 1
    assert lines(station.path, "alerts") == made(0, 6)


def test_nobody_stores_messages_of_others_unless_it_may_relay_them(exchange: Exchange, station: hg.Station) -> None:
    with pytest.raises(NotAllowed, match="relay messages of 'host3'"):
        store(exchange, [*made(0, 5), *made(0, 5, "host3.bbbbbb")])
    assert not (station.path / "channels" / "alerts").exists(), "nothing of it"
    relay = Rules("host2", ["alerts"], relay=["host3"])
    assert store(exchange, [*made(0, 5), *made(0, 5, "host3.bbbbbb")], relay).appended == 10


def test_what_is_said_to_be_no_message_is_believed_only_of_whom_one_may_speak_for(
    exchange: Exchange, station: hg.Station
) -> None:
    station.publish("alerts", 1)
    own = f"hub.{station.engine.incarnation('alerts')}"
    relayed = station.engine.relayed
    before = relayed.seen("alerts")
    claims = {own: {"0": [[5, 9]]}, "host3.bbbbbb": {"0": [[0, 9]]}, "../x.k": {"0": [[0, 9]]}}
    everybody = Rules("host2", ["alerts"], relay=["hub"])
    store(exchange, [], everybody, never=claims, gaps=claims)
    assert relayed.seen("alerts") == before and not len(relayed.gaps("alerts")) and not len(relayed.never("alerts"))
    store(exchange, [], never={HOST2: {"0": [[2, 4]]}}, gaps={HOST2: {"0": [[7, 9]]}})
    assert relayed.never("alerts") == one((HOST2, 0, 2, 4)) and relayed.gaps("alerts") == one((HOST2, 0, 7, 9))
    assert store(exchange, made(0, 10)).appended == 8, "a gap may still come another way"
    assert payloads(station.path, "alerts") == [1] * 9
    station.close()
    with hg.open(station.path) as again:
        assert again.engine.relayed.never("alerts") == one((HOST2, 0, 2, 4)), "remembered"
        wanted, held = one((HOST2, 0, 0, 10)), Exchange(again)
        assert fetch(held, wanted)[0].never == {HOST2: {"0": [[2, 4]]}}, "and passed on"
