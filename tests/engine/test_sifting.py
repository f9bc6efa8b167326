"""Reading through a filter: the right messages, nothing else decoded, and positions that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.engine.batches import to_batch
from heliograph.engine.sifting import sift
from heliograph.filters import Filter, Sieve
from heliograph.log.cursor import Chunk, Missing
from heliograph.message import PayloadDecoder
from tests.proof.tools import eventually

KEYS = ["a", "b", "c", None]


def stored(n: int, key: str | None, **fields: Any) -> bytes:
    envelope = {"id": f"id-{n}", "source": "s", "type": "t", "time": "2026-11-15T20:30:01Z", "channel": "c"}
    if key is not None:
        envelope["partitionkey"] = key
    return msgspec.json.encode({**envelope, **fields, "data": n})


def chunk(lines: list[bytes], first: int = 100, numbered: bool = False) -> Chunk:
    data = b"".join(line + b"\n" for line in lines)
    pairs = list(enumerate(lines, first)) if numbered else None
    return Chunk(first, first + len(lines), data, pairs, [], 0, (0, 0, 0))


@given(st.lists(st.one_of(st.sampled_from(KEYS), st.just("blank"), st.just("broken")), max_size=40), st.booleans())
def test_it_finds_what_filtering_afterwards_would(kinds: list[str | None], numbered: bool) -> None:
    lines = [
        b"   " if kind == "blank" else b'{"id":' if kind == "broken" else stored(n, kind)
        for n, kind in enumerate(kinds)
    ]
    if not lines:
        return
    wanted = Filter(key="[ab]")
    piece = chunk(lines, numbered=numbered)
    whole, found = to_batch(piece, 0, None), sift(piece, 0, None, Sieve(wanted))
    assert [m.data for m in found.messages] == [m.data for m in whole.messages if wanted(m)]
    assert [m.raw for m in found.messages] == [m.raw for m in whole.messages if wanted(m)]
    assert [m.offset for m in found.messages] == [m.offset for m in whole.messages if wanted(m)]
    assert found.problems == whole.problems
    assert found.filtered == len(whole.messages) - len(found.messages)
    assert (found.first, found.next, found.place) == (whole.first, whole.next, whole.place)


def test_missing_ranges_are_told_whatever_the_filter() -> None:
    piece = chunk([stored(0, "a"), stored(1, "b")])._replace(missing=[Missing(102, 105, "damaged")], next=105)
    found = sift(piece, 0, None, Sieve(Filter(key="a")))
    assert [problem.kind for problem in found.problems] == ["missing"]
    assert [message.data for message in found.messages] == [0]


def test_payloads_nobody_wants_are_not_decoded() -> None:
    decoded: list[bytes] = []

    def decoder(type_name: str) -> Any:
        def decode(data: bytes) -> Any:
            decoded.append(data)
            if data == b"3":
                raise hg.PayloadMismatch("not a 3")
            return msgspec.json.decode(data)

        return decode

    payloads: PayloadDecoder = decoder
    lines = [stored(n, KEYS[n % 3]) for n in range(6)]
    found = sift(chunk(lines), 0, payloads, Sieve(Filter(key="b")))
    assert [message.data for message in found.messages] == [1, 4]
    assert decoded == [b"1", b"4"]
    found = sift(chunk(lines), 0, payloads, Sieve(Filter(key="a")))
    assert [(problem.offset, problem.kind) for problem in found.problems] == [(103, "mismatch")]
    assert [message.data for message in found.messages] == [0]


def test_a_subscription_counts_what_it_skips_and_its_position_moves_on(opened: Any, root: Path) -> None:
    station: hg.Station = opened()
    heard: list[int] = []
    for n in range(200):
        station.publish("c", n, key=KEYS[n % 4], headers={"region": "eu" if n % 2 else "us"})
    wanted = hg.Filter(key="b", headers={"region": "eu"})
    with station.subscribe("c", lambda m: heard.append(m.data), name="worker", start="first", where=wanted) as one:
        eventually(lambda: one.position == 200)
        stats = one.stats()
    assert heard == list(range(1, 200, 4))
    assert (stats.delivered, stats.filtered, stats.lag) == (50, 150, 0)
    position = station.engine.load_position("c", "worker", 0)
    last = station.engine.cursor("c", 0, 199).pull()
    assert position is not None and last is not None
    assert (position.offset, position.id) == (200, last.messages[0].id), "the log could not be recognised by that"
    station.publish("c", "more", key="b", headers={"region": "eu"})
    heard.clear()
    with station.subscribe("c", lambda m: heard.append(m.data), name="worker", where=wanted):
        eventually(lambda: heard)
    assert heard == ["more"]


def test_a_filter_that_fits_nothing_still_moves_the_position(opened: Any) -> None:
    station: hg.Station = opened()
    station.publish_many("c", range(1000))
    with station.subscribe("c", print, name="worker", start="first", where=hg.Filter(type="nothing.*")):
        eventually(lambda: station.subscriptions("c")[0].offset == 1000)


def test_lanes_and_batches_and_patterns_take_filters(opened: Any) -> None:
    station: hg.Station = opened()
    for n in range(60):
        station.publish(f"c.{n % 3}", n, key=KEYS[n % 4])
    wanted = hg.Filter(key="a")
    expected = list(range(0, 60, 4))
    heard: list[int] = []
    with station.subscribe("c.*", lambda m: heard.append(m.data), start="first", where=wanted) as one:
        eventually(lambda: len(heard) == 15)
        eventually(lambda: one.stats().filtered == 45)
    assert sorted(heard) == expected
    batches: list[int] = []
    with station.subscribe(
        "c.*", lambda ms: batches.extend(m.data for m in ms), start="first", where=wanted, batch=True, concurrency=3
    ):
        eventually(lambda: sorted(batches) == expected)
    assert [message.data for message in station.read("c.*", where=wanted)] == expected
    assert [message.data for message in station.read("c.1", where=wanted)] == [n for n in expected if n % 3 == 1]


def test_subscribers_without_a_filter_still_share_their_batches(opened: Any) -> None:
    station: hg.Station = opened()
    station.publish_many("c", range(10))
    engine = station.engine
    first, second = engine.cursor("c", 0, 0), engine.cursor("c", 0, 0)
    sifting = engine.cursor("c", 0, 0, Sieve(Filter(type="*")))
    one, filtered, other = first.pull(), sifting.pull(), second.pull()
    assert one is other
    assert filtered is not one
    for cursor in (first, second, sifting):
        cursor.close()


def test_what_is_no_filter_is_refused_at_both_doors(opened: Any) -> None:
    station: hg.Station = opened()
    with pytest.raises(hg.ConfigError, match="where is 'type=x'"):
        station.subscribe("c", print, where="type=x")  # type: ignore[arg-type]
    with pytest.raises(hg.ConfigError, match="use a Filter"):
        station.read("c", where={"type": "x"})  # type: ignore[arg-type]
