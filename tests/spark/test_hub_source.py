"""Channels of a hub as tables: what comes through it is what its directory holds, and the same is said of the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

import heliograph as hg
from heliograph.errors import ConfigError, Incomplete, NotAllowed, NotFound, ProtocolError, Unreachable
from heliograph.federation.librarian import Librarian
from heliograph.log.tickets import Ticket
from heliograph.spark import fetching
from tests.federation.chaos import Proxy, proxies
from tests.spark.hub_reading import ReadHub
from tests.spark.reading_back import comparable, expected, publish_every_kind, rows

BASE = datetime(2026, 11, 15, tzinfo=UTC)
EVERYTHING = (
    "channel STRING, partition INT, offset BIGINT, time TIMESTAMP, id STRING, source STRING, type STRING, key STRING, "
    "subject STRING, correlationid STRING, traceparent STRING, headers MAP<STRING,STRING>, data STRING, bytes BINARY, "
    "expires TIMESTAMP, origin STRING, originseq STRING, raw STRING, region STRING, level INT, producer STRING"
)


pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def hub(tmp_path: Path) -> ReadHub:
    return ReadHub(tmp_path)


@pytest.fixture
def proxy(hub: ReadHub) -> Iterator[Callable[..., Proxy]]:
    with proxies(hub.port("hub")) as make:
        yield make


def fill(station: hg.Station, count: int, channel: str = "alerts", size: int = 200) -> None:
    """Messages a minute apart."""
    for first in range(0, count, 50):
        drafts = [
            hg.Draft(data={"n": n, "text": "x" * size}, key=f"k{n % 7}", time=BASE + timedelta(minutes=n))
            for n in range(first, min(count, first + 50))
        ]
        station.publish_many(channel, drafts)


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in found if row.get("gap") is None]


# -- the same rows ----------------------------------------------------------------------------------------------------


def test_every_kind_of_message_in_every_column(hub: ReadHub) -> None:
    with hub.serve() as station:
        publish_every_kind(station, "alerts")
        lines = [message.raw for message in station.read("alerts")]
        found = hub.both("alerts", EVERYTHING, splitBytes="1kB")
        assert [row["raw"] for row in found] == [line.decode() for line in lines]
        plain = hub.both("alerts")
        assert [comparable(row) for row in plain] == [expected(line, "alerts", 0, at) for at, line in enumerate(lines)]


def plain(station: hg.Station) -> None:
    fill(station, 900)


def partitions(station: hg.Station) -> None:
    station.create_channel("alerts", partitions=3)
    fill(station, 900)


def trimmed(station: hg.Station) -> None:
    fill(station, 900)
    station.alter_channel("alerts", retention_bytes=60_000)
    station.trim()
    assert station.channel("alerts").first > 100


def compressed(station: hg.Station) -> None:
    station.create_channel("alerts", compress=True, retention_compact=True)
    fill(station, 900)
    station.trim()
    assert list((Path(station.path) / "channels/alerts/0").glob("*.zst"))


def odd(station: hg.Station) -> None:
    """Lines that are damaged, and some that are no messages."""
    fill(station, 300)
    for body in (b'{"id":7', b"null", b'"text"'):
        station.engine.append("alerts", 0, Ticket((body,), (google_crc32c.value(body),), 1), 1.0)
    fill(station, 600)
    files = sorted((Path(station.path) / "channels/alerts/0").glob("*.jsonl"))
    for file in files[1:-1:3]:
        data = bytearray(file.read_bytes())
        for part in (3, 2):
            data[data.index(b"\n", len(data) // part) + 150] ^= 1
        file.write_bytes(data)


def unindexed(station: hg.Station) -> None:
    fill(station, 900)
    first, second, *_ = sorted((Path(station.path) / "channels/alerts/0").glob("*.index"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-80] + b"\0" * 80)


def large(station: hg.Station) -> None:
    fill(station, 100)
    station.publish("alerts", {"large": "x" * 9_990_000})
    fill(station, 100)
    station.publish_many("alerts", [{"n": n, "text": "y" * 50_000} for n in range(60)])


def empty(station: hg.Station) -> None:
    station.create_channel("alerts", partitions=2)


@pytest.mark.parametrize("situation", [plain, partitions, trimmed, compressed, odd, unindexed, large, empty])
def test_through_the_hub_comes_what_the_directory_holds(
    tmp_path: Path, situation: Callable[[hg.Station], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = ReadHub(tmp_path, segment_bytes=30_000)
    draw = random.Random(situation.__name__)
    with hub.serve() as station:
        situation(station)
        several = station.channel("alerts").partitions > 1
        starts = ["first", "new", "2026-11-15T03:20:00Z", "-1h", '{"alerts": {"0": 333}}', '{"alerts": {"0": -2}}']
        starts += [] if several else ["0", "17", "450", "100000"]
        for _ in range(12):
            monkeypatch.setattr(fetching, "PAGE_BYTES_MAX", draw.choice([1, 1_000, 40_000, 4 << 20]))
            monkeypatch.setattr(fetching, "PAGE_BYTES", draw.choice([1, 1_000, 40_000, 4 << 20]))
            low, high = sorted((draw.randrange(900), draw.randrange(900)))
            filters: list[Any] = draw.choice(
                [
                    [],
                    [GreaterThanOrEqual(("offset",), low), LessThan(("offset",), high)],
                    [GreaterThanOrEqual(("time",), BASE + timedelta(minutes=low))],
                    [
                        GreaterThanOrEqual(("time",), BASE + timedelta(minutes=low)),
                        LessThan(("time",), BASE + timedelta(minutes=high)),
                    ],
                    [EqualTo(("partition",), 1)],
                ]
            )
            hub_options = {
                "startingOffsets": draw.choice(starts), "endingOffsets": draw.choice(starts),
                "failOnGap": draw.choice(["false", "false", "true"]), "splitBytes": draw.choice(["1", "20kB", "1MB"]),
            }  # fmt: skip
            try:
                hub.both("alerts", None, filters, **hub_options)
            except AssertionError as error:
                raise AssertionError(f"{hub_options} {filters}") from error
        assert hub.both("alerts", failOnGap="false") or situation is empty


def test_words_and_places_mean_the_same(hub: ReadHub) -> None:
    with hub.serve() as station:
        station.create_channel("sensors.many", partitions=2)
        for n in range(10):
            station.publish_many("alerts", [hg.Draft(data=n, time=BASE + timedelta(minutes=n))])
            station.publish("sensors.many", n, key=str(n))
        for start, want in {
            "first": 0, "earliest": 0, "new": 10, "latest": 10, "4": 4, "2026-11-15T00:03:00Z": 3,
            '{"alerts": 7}': 7, '{"alerts": {"0": 6}}': 6, '{"alerts": {"0": -2}}': 0, '{"alerts": "latest"}': 10,
            '{"alerts": "2026-11-15T00:08:30Z"}': 9, "2027-01-01": 10, "-999999d": 0,
        }.items():  # fmt: skip
            assert numbers(hub.both("alerts", startingOffsets=start)) == list(range(want, 10)), start
            assert numbers(hub.both("alerts", endingOffsets=start)) == list(range(want)), start
        assert numbers(hub.both("alerts", startingOffsets="2", endingOffsets="100")) == list(range(2, 10))
        assert len(hub.both("sensors.>,alerts")) == 20
        assert hub.both("nothing.>") == []
        for wrong in ("newest", '{"others": 3}', '{"alerts": [3]}'):
            with pytest.raises(ConfigError):
                rows(hub.reader("alerts", startingOffsets=wrong))
        with pytest.raises(NotFound, match="there is no channel 'missing' at the hub hub"):
            rows(hub.reader("alerts,missing"))


def test_one_large_partition_is_shared_out(hub: ReadHub) -> None:
    with hub.serve() as station:
        fill(station, 5_000)
        splits = hub.reader("alerts", splitBytes="100kB").partitions()
        assert len(splits) > 10
        sizes = [sum(following - first for first, following in split.stretches) for split in splits]
        assert max(sizes) < 3 * min(sizes[:-1])


def test_filters_on_time_fetch_less(hub: ReadHub, proxy: Callable[..., Proxy]) -> None:
    with hub.serve() as station:
        fill(station, 5_000)
        passed = []
        for filters in ([], [GreaterThanOrEqual(("time",), BASE + timedelta(minutes=4_900))]):
            line = proxy()
            one = hub.reader("alerts", "offset BIGINT", url=f"wss://localhost:{line.port}")
            one.pushFilters(filters)
            assert max(numbers(rows(one))) == 4_999
            passed.append(line.passed)
        assert passed[1] < passed[0] / 5


def test_nothing_beyond_a_split_is_fetched(hub: ReadHub, proxy: Callable[..., Proxy]) -> None:
    with hub.serve() as station:
        fill(station, 5_000)
        line = proxy()
        one = hub.reader("alerts", endingOffsets="10", url=f"wss://localhost:{line.port}")
        assert numbers(rows(one)) == list(range(10))
        assert line.passed < 30_000


# -- what is not there, or changes ------------------------------------------------------------------------------------


def test_a_channel_that_was_deleted_or_made_again_is_told(hub: ReadHub) -> None:
    with hub.serve() as station:
        station.publish("alerts", 1)
        strict, lenient = hub.reader("alerts"), hub.reader("alerts", failOnGap="false")
        planned = strict.partitions()
        station.delete_channel("alerts")
        with pytest.raises(Incomplete, match="deleted"):
            list(strict.read(planned[0]))
        station.publish("alerts", "of another life")
        with pytest.raises(Incomplete, match="lives anew"):
            list(strict.read(planned[0]))
        (batch,) = list(lenient.read(planned[0]))
        assert batch.to_pylist()[0]["gap"]["next"] == 1


@pytest.mark.parametrize("end", ["deleted", "made again", "another life"])
def test_a_life_that_ends_in_the_middle_is_an_error(hub: ReadHub, end: str) -> None:
    with hub.serve() as station:
        fill(station, 20_000)
        one = hub.reader("alerts", "offset BIGINT", failOnGap="true")
        batches = one.read(one.partitions()[0])
        next(batches)
        if end == "another life":
            station.engine.new_incarnation("alerts", "a test")
        else:
            station.delete_channel("alerts")
        if end == "made again":
            fill(station, 20_000)
        with pytest.raises(Incomplete, match="was deleted, or got a new life, while it was read"):
            list(batches)


def test_a_life_that_ends_while_the_hub_reads_is_noticed(hub: ReadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub.serve() as station:
        fill(station, 100)
        one = hub.reader("alerts", "offset BIGINT")
        (split,) = one.partitions()
        make_durable = station.engine.make_durable

        def change(*arguments: Any) -> None:
            make_durable(*arguments)
            station.engine.new_incarnation("alerts", "a test")

        monkeypatch.setattr(station.engine, "make_durable", change)
        with pytest.raises(Incomplete):
            list(one.read(split))


def test_what_retention_takes_before_a_task_reads_is_told(tmp_path: Path) -> None:
    hub = ReadHub(tmp_path, segment_bytes=20_000)
    with hub.serve() as station:
        fill(station, 900)
        strict, lenient = (hub.reader("alerts", failOnGap=word) for word in ("true", "false"))
        planned = strict.partitions()
        station.alter_channel("alerts", retention_bytes=60_000)
        station.trim()
        first = station.channel("alerts").first
        with pytest.raises(Incomplete, match=f"offsets 0 to {first - 1}: deleted by retention"):
            list(strict.read(planned[0]))
        found = [row for split in planned for batch in lenient.read(split) for row in batch.to_pylist()]
        assert [(row["offset"], row["gap"]["next"]) for row in found if row["gap"]] == [(0, first)]
        assert numbers(found) == list(range(first, 900))


def test_what_comes_while_it_is_read_is_left_for_the_next(hub: ReadHub) -> None:
    with hub.serve() as station:
        fill(station, 50)
        one = hub.reader("alerts", "offset BIGINT")
        planned = one.partitions()
        fill(station, 5_000)
        found = [row for split in planned for batch in one.read(split) for row in batch.to_pylist()]
        assert numbers(found) == list(range(50))


def test_what_is_planned_is_on_the_hubs_disk(hub: ReadHub) -> None:
    """Durability `os`: what a power cut may take back is no part of a table, nor of a checkpoint."""
    with hub.serve() as station:
        station.publish("alerts", 1)
        assert station.engine.head_fields("alerts", 0).synced_next == 0
        hub.reader("alerts").partitions()
        assert station.engine.head_fields("alerts", 0).synced_next == 1


def test_a_line_that_no_frame_holds_is_told(hub: ReadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub.serve() as station:
        station.publish("alerts", 0)
        station.publish("alerts", "x" * 4_000_000)
        station.publish("alerts", 2)
        monkeypatch.setattr("heliograph.client.keeper.FRAME_BYTES", 2 << 20)
        with pytest.raises(Incomplete, match="it has 4000232 bytes, the client takes 98"):
            rows(hub.reader("alerts"))
        found = rows(hub.reader("alerts", failOnGap="false"))
        assert numbers(found) == [0, 2]
        assert [row["offset"] for row in found if row["gap"]] == [1]


# -- connections ------------------------------------------------------------------------------------------------------


def test_cuts_in_the_middle_of_tasks_cost_no_row(hub: ReadHub, proxy: Callable[..., Proxy]) -> None:
    with hub.serve() as station:
        fill(station, 10_000)
        line = proxy(cut_after=(300_000, 900_000))
        one = hub.reader("alerts", "offset BIGINT", url=f"wss://localhost:{line.port}", splitBytes="2MB")
        assert numbers(rows(one)) == list(range(10_000))
        assert line.cuts > 2


def test_a_hub_that_is_started_again_in_the_middle_of_a_task(hub: ReadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAGE_BYTES_MAX", fetching.PAGE_BYTES)
    with hub.serve() as station:
        fill(station, 10_000)
        one = hub.reader("alerts", "offset BIGINT")
        batches = one.read(one.partitions()[0])
        found = numbers(next(batches).to_pylist())
    with hub.serve():
        found += [row["offset"] for batch in batches for row in batch.to_pylist()]
    assert found == list(range(10_000))


def test_a_hub_that_is_killed_in_the_middle_of_a_task(hub: ReadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAGE_BYTES", "PAGE_BYTES_MAX"):
        monkeypatch.setattr(fetching, name, 20_000)
    with hub.serve() as station:
        station.create_channel("alerts")
    killed = hub.run("hub", "alerts", "3000", "n")
    try:
        assert [killed.read() for _ in range(3_000)][-1] == "n2999"
        one = hub.reader("alerts", "offset BIGINT, data STRING")
        batches = one.read(one.partitions()[0])
        found = next(batches).to_pylist()
    finally:
        killed.kill()
    again = hub.run("hub")
    try:
        found += [row for batch in batches for row in batch.to_pylist()]
    finally:
        again.end()
    assert [row["data"] for row in found] == [f'"n{n}"' for n in range(3_000)]


def test_who_may_not_is_told_so(hub: ReadHub) -> None:
    with hub.serve() as station:
        for channel in ("alerts", "secrets", "sensors.a.x", "sensors.b.x"):
            station.publish(channel, 1)
        with pytest.raises(NotAllowed, match="few is not allowed to subscribe 'secrets'"):
            rows(hub.reader("secrets", peer="few"))
        with pytest.raises(NotAllowed, match=r"few is not allowed to subscribe anything of 'secrets\.>'"):
            rows(hub.reader("secrets.>", peer="few"))
        with pytest.raises(NotAllowed, match="nobody is not allowed"):
            rows(hub.reader("alerts", peer="nobody"))
        with pytest.raises(NotAllowed, match="refused"):
            rows(hub.reader("alerts", peer="stranger"))
        found = rows(hub.reader("sensors.>,alerts", peer="few"))
        assert {row["channel"] for row in found} == {"alerts", "sensors.a.x"}


def test_a_task_of_somebody_who_may_not_any_more(hub: ReadHub) -> None:
    with hub.serve() as station:
        station.publish("secrets", 1)
        (split,) = hub.reader("secrets").partitions()
        with pytest.raises(NotAllowed, match="few is not allowed to subscribe 'secrets'"):
            list(hub.reader("secrets", peer="few").read(split))


def test_a_hub_that_is_not_there_is_one_line(hub: ReadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.spark.remote.TIMEOUT_S", 0.3)
    with pytest.raises(Unreachable, match=r"^the hub localhost:\d+ was not reached: nobody listens there$") as caught:
        rows(hub.reader("alerts"))
    assert "\n" not in str(caught.value)


def test_an_older_hub_is_named(hub: ReadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub.serve() as station:
        station.publish("alerts", 1)
        one = hub.reader("alerts")
        (split,) = one.partitions()
        monkeypatch.setattr(Librarian, "serves", lambda *_: False)
        with pytest.raises(ProtocolError, match=r"the hub hub does not know the request 'survey'.*Upgrade the hub"):
            one.partitions()
        with pytest.raises(ProtocolError, match="does not know the request 'lines'"):
            list(one.read(split))


def test_a_slow_line_gets_smaller_answers(hub: ReadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    lines = Librarian.lines

    def note(self: Librarian, ask: Any, *more: Any) -> Any:
        sizes.append(ask.bytes)
        return lines(self, ask, *more)

    monkeypatch.setattr(Librarian, "lines", note)
    with hub.serve() as station:
        fill(station, 10_000)
        one = hub.reader("alerts", "offset BIGINT")
        assert numbers(rows(one)) == list(range(10_000))
        assert sizes == sorted(sizes) and sizes[-1] > 2 * sizes[0]
        sizes.clear()
        monkeypatch.setattr(fetching, "QUICK_S", 0.0)
        monkeypatch.setattr(fetching, "SLOW_S", 0.0)
        assert numbers(rows(one)) == list(range(10_000))
        assert sizes == sorted(sizes, reverse=True) and sizes[-1] == fetching.PAGE_BYTES_MIN
