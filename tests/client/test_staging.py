"""Messages laid aside at a hub: all of a batch are published, once, whoever asks again, dies or means harm."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.client.staging import File, Staging
from heliograph.errors import (
    Busy,
    Damaged,
    DiskFull,
    InvalidMessage,
    InvalidName,
    MessageTooLarge,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    PayloadMismatch,
    ProtocolError,
    Unreachable,
)
from heliograph.federation import storeroom
from heliograph.federation.batches import ABORT, COMMIT, STAGE, Abort, Staged, own_query
from heliograph.federation.clients import Clients
from heliograph.federation.conversation import Conversation
from heliograph.federation.desk import Desk
from heliograph.staging import appending, publishing
from heliograph.staging.publishing import Record
from heliograph.staging.queries import owner
from tests.client.conftest import Hub
from tests.federation.chaos import Proxy
from tests.federation.stations import Process, audited, lines, wait_for

PUBLISHER = {"name": "tool", "publish": ["alerts", "sensors.>"]}  # and reads nothing
OTHER = {"name": "other", "publish": ["alerts"]}
Q = "6f1e"


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    net = Hub(tmp_path)
    net.station("hub", peers=[PUBLISHER, OTHER])
    return net


pytestmark = pytest.mark.usefixtures("short_pauses")


def event(n: Any, **more: Any) -> bytes:
    said = {
        "specversion": "1.0", "id": f"i{n}" if isinstance(n, int) else "other", "source": "tool/spark", "type": "t",
        "time": "2026-11-15T20:30:01Z", "data": n, **more,
    }  # fmt: skip
    return msgspec.json.encode(said)


def events(*numbers: int, **more: Any) -> bytes:
    return b"\n".join(event(n, **more) for n in numbers)


def numbers(hub: Hub, channel: str = "alerts") -> list[Any]:
    return sorted(msgspec.json.decode(line)["data"] for line in lines(hub.path("hub"), channel))


def files(hub: Hub) -> list[str]:
    return sorted(path.name for path in (hub.path("hub") / "spark" / "staged").rglob("*.lines"))


@contextlib.contextmanager
def staging(hub: Hub, name: str = "tool", **options: Any) -> Iterator[Staging]:
    with hub.connect(name, **options) as client:
        yield client.staging()


# -- all of it, once --------------------------------------------------------------------------------------------------


def test_nothing_is_visible_before_the_batch_is_published(hub: Hub) -> None:
    with hub.open("hub") as station, staging(hub) as aside:
        laid = [aside.stage("0", f"t{n}", "alerts", events(*range(n, n + 10)), query=Q) for n in (0, 10)]
        assert [info.name for info in station.channels()] == [], "a batch that fails makes no channel"
        aside.commit("0", laid, query=Q)
        assert numbers(hub) == list(range(20))
        assert files(hub) == []


def test_a_batch_that_comes_again_is_published_once(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside:
        for batch in ("0", "0", "1", "0"):
            aside.commit(batch, [aside.stage(batch, "t", "alerts", events(int(batch)), query=Q)], query=Q)
        assert numbers(hub) == [0, 1]
        assert files(hub) == []
        aside.commit("0", [aside.stage("0", "t", "alerts", events(2), query="other")], query="other")
        assert numbers(hub) == [0, 1, 2], "the same number of another query is another batch"


def test_whoever_comes_with_an_old_number_hears_of_the_newest(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside:
        told = [aside.commit(one, [aside.stage(one, "t", "alerts", events(1), query=Q)], query=Q) for one in "5738"]
        assert told == [5, 7, 7, 8]
        assert aside.commit("5", [aside.stage("5", "t", "alerts", events(2))]) is None, "names have no order"


def test_single_batches_are_recognised_by_their_names(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside:
        first = [aside.stage("one", "t", "alerts", events(1))]
        aside.commit("one", first)
        aside.commit("12", [aside.stage("12", "t", "alerts", events(2))])
        third = [aside.stage("3", "t", "alerts", events(3))]
        aside.commit("one", first)  # its answer may have been lost
        aside.commit("12", [])
        aside.commit("3", third)
    assert numbers(hub) == [1, 2, 3], "a name that is a number says nothing about others"


def test_what_is_laid_aside_again_under_a_name_takes_its_place(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside:
        aside.stage("0", "t", "alerts", events(*range(100)), query=Q)
        aside.commit("0", [aside.stage("0", "t", "alerts", events(1), query=Q)], query=Q)
    assert numbers(hub) == [1]


def test_attempts_that_are_not_named_are_not_published(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside:
        aside.stage("6", "t", "alerts", events(6), query=Q)  # of a driver that died before
        aside.stage("7", "first", "alerts", events(1), query=Q)
        aside.commit("7", [aside.stage("7", "second", "alerts", events(1), query=Q)], query=Q)
    assert numbers(hub) == [1]
    assert files(hub) == [], "nor kept"


def test_several_channels_and_partitions(hub: Hub) -> None:
    hub.station("hub", peers=[PUBLISHER], storage={"partitions": 3})
    with hub.open("hub") as station, staging(hub) as aside:
        keyed = b"\n".join(event(n, partitionkey=f"k{n % 7}") for n in range(100))
        laid = [aside.stage("0", "a", "alerts", keyed, query=Q)]
        laid.append(aside.stage("0", "b", "sensors.x", events(1, 2), query=Q))
        aside.commit("0", laid, query=Q)
        found = list(station.read("alerts"))
        assert all(message.partition == crc32((message.key or "").encode()) % 3 for message in found)
        for key in {message.key for message in found}:
            mine = [message.data for message in found if message.key == key]
            assert mine == sorted(mine), "in order"
        assert len(found) == 100
        assert {message.source for message in found} == {"tool/spark"}
    assert numbers(hub, "sensors.x") == [1, 2]


def test_a_peer_that_may_only_publish_needs_nothing_else(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside:
        aside.check("alerts")
        with pytest.raises(NotAllowed, match="not allowed to publish 'secrets'"):
            aside.check("secrets")
        assert aside.bytes_max() > 1_000_000


def test_the_same_for_asyncio(hub: Hub) -> None:
    async def story() -> None:
        async with hg.connect_async(hub.url, tls=hub.tls()) as client:
            aside = client.staging()
            await aside.check("alerts")
            assert await aside.bytes_max() > 1_000_000
            await aside.stage("0", "t", "alerts", events(0), query=Q)
            await aside.abort("0", query=Q)
            await aside.commit("1", [await aside.stage("1", "t", "alerts", events(1), query=Q)], query=Q)

    with hub.open("hub"):
        asyncio.run(story())
    assert numbers(hub) == [1]


# -- cuts and deaths --------------------------------------------------------------------------------------------------


def test_a_cut_before_each_answer_changes_nothing(hub: Hub, mute: list[int]) -> None:
    with hub.open("hub"), staging(hub) as aside:
        mute[0] = 2
        laid = [aside.stage("0", "t", "alerts", events(1, 2), query=Q)]
        mute[0] = 2
        aside.commit("0", laid, query=Q)
        mute[0] = 1
        aside.stage("alone", "t", "alerts", events(3))
        mute[0] = 1
        aside.abort("alone")
    assert numbers(hub) == [1, 2]
    assert files(hub) == []


def test_a_batch_whose_client_is_closed_before_the_answer_may_be_published(
    hub: Hub, proxy: Callable[..., Proxy]
) -> None:
    line = proxy()
    with hub.open("hub"), ThreadPoolExecutor() as pool:
        client = hub.connect(url=f"wss://localhost:{line.port}")
        aside = client.staging()
        laid = [aside.stage("0", "t", "alerts", events(1), query=Q)]
        line.silent.set()
        sent = pool.submit(aside.commit, "0", laid, query=Q)
        time.sleep(0.3)
        client.close()
        with pytest.raises(OutcomeUnknown, match="whether it is published is not known: the client is closed"):
            sent.result(10)


def test_a_hub_that_loses_every_connection_is_given_up(hub: Hub, mute: list[int]) -> None:
    with hub.open("hub"), staging(hub) as aside:
        laid = [aside.stage("0", "t", "alerts", events(1), query=Q)]
        mute[0] = 1_000
        with pytest.raises(Unreachable, match="was lost 20 times before the hub answered"):
            aside.stage("0", "t2", "alerts", events(2), query=Q)
        with pytest.raises(OutcomeUnknown, match="whether it is published is not known"):
            aside.commit("0", laid, query=Q)
        mute[0] = 0
        aside.commit("0", laid, query=Q)
    assert numbers(hub) == [1]


def test_many_cuts_anywhere(hub: Hub) -> None:
    line = Proxy(hub.port("hub"), cut_after=(20_000, 80_000), seed=3)
    try:
        with hub.open("hub"), staging(hub, url=f"wss://localhost:{line.port}") as aside:
            batch = 0
            until = time.monotonic() + 60
            while line.cuts < 25 and time.monotonic() < until:
                first = batch * 100
                laid = [
                    aside.stage(str(batch), f"t{n}", "alerts", events(*range(first + n, first + n + 50)), query=Q)
                    for n in (0, 50)
                ]
                aside.commit(str(batch), laid, query=Q)
                batch += 1
            assert line.cuts >= 25
    finally:
        line.close()
    assert numbers(hub) == list(range(batch * 100)), "each once"


def test_a_batch_is_published_in_steps_and_others_have_their_turn(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storeroom, "STEP_S", 0.0)
    monkeypatch.setattr(appending, "SPARK_APPEND_BYTES", 1)  # each message is a step
    monkeypatch.setattr(Clients, "look", lambda _: None)  # or the hub finishes it meanwhile
    asked: list[bool] = []
    commit = storeroom.Storeroom.commit

    def counted(*arguments: Any) -> Any:
        found = commit(*arguments)
        asked.append(found.done)
        return found

    monkeypatch.setattr(storeroom.Storeroom, "commit", counted)
    with hub.open("hub"), staging(hub) as aside:
        laid = [aside.stage("0", f"t{n}", "alerts", events(n), query=Q) for n in range(5)]
        aside.commit("0", laid, query=Q)
    assert numbers(hub) == list(range(5))
    assert asked[-1]
    assert not any(asked[:-1])
    assert len(asked) >= 5


def begin(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to publish a batch, at a hub that does nothing by itself."""
    monkeypatch.setattr(storeroom, "STEP_S", 0.0)
    monkeypatch.setattr(appending, "SPARK_APPEND_BYTES", 1)  # each message is a step
    monkeypatch.setattr(Clients, "look", lambda _: None)
    with hub.open("hub"), hub.connect() as client:
        laid = [client.staging().stage("0", f"t{n}", "alerts", events(n), query=Q) for n in range(5)]
        assert not raw(client, COMMIT, query=Q, batch="0", files=laid)["done"]


def test_dropping_a_batch_that_has_begun_loses_nothing_of_it(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(hub, monkeypatch)
    assert len(numbers(hub)) < 5
    with hub.open("hub"), staging(hub) as aside:
        aside.abort("0", query=Q)  # a driver that was taken for dead
        aside.commit("0", [], query=Q)
    assert numbers(hub) == list(range(5))


def test_two_who_publish_the_same_batch_at_once(hub: Hub) -> None:
    with hub.open("hub"), contextlib.ExitStack() as stack:
        asides = [stack.enter_context(staging(hub)) for _ in range(2)]
        for batch in range(10):
            laid = [one.stage(str(batch), f"t{n}", "alerts", events(batch), query=Q) for n, one in enumerate(asides)]

            def commit(n: int, batch: str = str(batch), laid: list[File] = laid) -> None:
                with contextlib.suppress(NotFound):  # the other one has published it, and it is gone
                    asides[n].commit(batch, [laid[n]], query=Q)

            both = [threading.Thread(target=commit, args=(n,)) for n in range(2)]
            for thread in both:
                thread.start()
            for thread in both:
                thread.join()
    assert numbers(hub) == list(range(10))


class _Restarting:
    """A hub that is killed at random moments, and is back soon after."""

    def __init__(self, hub: Hub, seed: int) -> None:
        self._hub = hub
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self.kills = 0
        self._process: Process = hub.run("hub")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._chance.uniform(0.0, 0.8)):
            self._process.kill()
            self.kills += 1
            self._process = self._hub.run("hub")

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._process.kill()


def _publish_under_kills(hub: Hub, kills: int, seed: int) -> int:
    hub.station("hub", peers=[PUBLISHER], storage={"partitions": 2, "durability": "os"})
    killer = _Restarting(hub, seed)
    batch = 0
    try:
        with staging(hub) as aside:
            until = time.monotonic() + 20 * kills
            while killer.kills < kills and time.monotonic() < until:
                laid = [
                    aside.stage(
                        str(batch), f"t{n}", ("alerts", "sensors.x")[n % 2],
                        events(*range(batch * 400 + n * 100, batch * 400 + n * 100 + 100), pad="x" * 500), query=Q,
                    )
                    for n in range(4)
                ]  # fmt: skip
                aside.commit(str(batch), laid, query=Q)
                batch += 1
    finally:
        killer.close()
    return batch


def test_a_hub_that_is_killed_and_comes_back_neither_loses_nor_doubles(hub: Hub) -> None:
    batches = _publish_under_kills(hub, 4, 5)
    found = Counter(numbers(hub) + numbers(hub, "sensors.x"))
    assert found == Counter(range(batches * 400))


@pytest.mark.prove
@pytest.mark.timeout(3_000)
def test_a_hub_that_is_killed_a_hundred_times(hub: Hub) -> None:
    batches = _publish_under_kills(hub, 100, 11)
    found = Counter(numbers(hub) + numbers(hub, "sensors.x"))
    assert found == Counter(range(batches * 400))


def test_a_batch_that_has_begun_is_finished_though_nobody_comes_back(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(hub, monkeypatch)
    assert len(numbers(hub)) < 5
    monkeypatch.undo()
    with hub.open("hub"):
        wait_for(lambda: numbers(hub) == list(range(5)))
        wait_for(lambda: not files(hub))


def test_a_full_disk_is_told_and_nothing_is_half_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    with hub.open("hub"), staging(hub) as aside:
        with monkeypatch.context() as patch:
            patch.setattr(storeroom.SYSTEM_DISK, "write_all", full)
            with pytest.raises(DiskFull, match="cannot lay messages aside"):
                aside.stage("0", "t", "alerts", events(1), query=Q)
        assert files(hub) == []
        aside.commit("0", [aside.stage("0", "t", "alerts", events(1), query=Q)], query=Q)
    assert numbers(hub) == [1]


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_what_a_peer_lays_aside_is_bounded(hub: Hub) -> None:
    hub.station("hub", peers=[PUBLISHER, OTHER], hub={"staged_bytes_max": "1MiB"})
    large = events(*range(100), pad="x" * 4_000)
    with hub.open("hub"), staging(hub) as aside:
        laid = [aside.stage("0", f"t{n}", "alerts", large, query=Q) for n in range(2)]
        with pytest.raises(Busy, match=r"hub\.staged_bytes_max is 1048576"):
            aside.stage("0", "t2", "alerts", large, query=Q)
        with staging(hub, "other") as others:
            others.abort("0", query=Q)
            others.stage("0", "t", "alerts", large.replace(b'"tool/spark"', b'"other"'), query=Q)
        aside.commit("0", laid, query=Q)
        for _ in range(3):
            aside.stage("1", f"t{_}", "alerts", events(1), query=Q)
        aside.stage("1", "large", "alerts", large, query=Q)
        aside.abort("1", query=Q)
        for _ in range(2):
            aside.stage("2", f"t{_}", "alerts", large, query=Q)
    with hub.open("hub"), staging(hub) as aside, pytest.raises(Busy, match="staged_bytes_max"):
        aside.stage("2", "t2", "alerts", large, query=Q)  # a hub that was restarted looks at what is there


def test_what_takes_the_place_of_something_does_not_count_twice(hub: Hub) -> None:
    hub.station("hub", peers=[PUBLISHER], hub={"staged_bytes_max": "1MiB"})
    with hub.open("hub"), staging(hub) as aside:
        for _ in range(5):
            aside.stage("0", "t", "alerts", events(*range(100), pad="x" * 4_000), query=Q)


def test_small_files_count_as_what_they_take(hub: Hub) -> None:
    hub.station("hub", peers=[PUBLISHER], hub={"staged_bytes_max": "1MiB"})
    with hub.open("hub"), staging(hub) as aside, pytest.raises(Busy, match="staged_bytes_max"):
        for n in range(1_000):
            aside.stage("0", f"t{n}", "alerts", events(n), query=Q)


def test_a_quota_slows_down(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(self: Conversation, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(Conversation, "pause", pause)
    hub.station("hub", peers=[{**PUBLISHER, "messages_per_s": 10}])
    with hub.open("hub"), staging(hub) as aside:
        aside.stage("0", "t", "alerts", events(*range(100)), query=Q)
    assert round(sum(pauses)) == 9, "a second's worth is free"


def test_how_many_queries_a_peer_may_have_is_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storeroom, "QUERIES_MAX", 3)
    with hub.open("hub"), staging(hub) as aside:
        for n in range(3):
            aside.commit("0", [aside.stage("0", "t", "alerts", events(n), query=f"q{n}")], query=f"q{n}")
        laid = [aside.stage("0", "t", "alerts", events(3), query="q3")]
        with pytest.raises(Busy, match="remembers 3 queries of tool"):
            aside.commit("0", laid, query="q3")
        aside.commit("1", [aside.stage("1", "t", "alerts", events(4), query="q0")], query="q0")
        for n in range(10):
            aside.abort("0", query=f"never{n}")
            aside.commit("0", [], query=f"never{n}")
    assert numbers(hub) == [0, 1, 2, 4]
    assert len(list((hub.path("hub") / "spark").glob("*.lock"))) == 3


def test_what_nobody_came_back_for_is_swept_and_told(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside:
        aside.stage("0", "t", "alerts", events(1), query=Q)
        aside.stage("1", "t", "alerts", events(2), query=Q)
    above = hub.path("hub") / "spark" / "staged" / f"hub.tool.{Q}"
    os.utime(above / "0", (0, 0))
    with hub.open("hub"), staging(hub) as aside:
        (swept,) = wait_for(lambda: audited(hub.path("hub"), "staged-swept"))
        assert (swept["peer"], swept["batch"], swept["bytes"] >= 4096) == ("tool", "0", True)
        assert not (above / "0").exists()
        assert (above / "1").exists(), "it may still be wanted"
        with pytest.raises(NotFound, match="swept after a day"):
            aside.commit("0", [File("t", 1)], query=Q)


# -- malice -----------------------------------------------------------------------------------------------------------


def raw(client: hg.Client, request: str, lines: bytes = b"", /, **said: Any) -> Any:
    """A request that nobody checked on this side."""
    head = msgspec.defstruct("Said", [(key, Any) for key in said])(**said)
    return client._loop.run(client._inner._asker.ask(request, head, dict, lines, patience_s=20))[0]


WRONG = ["..", ".", "", "../up", "a/b", "/etc", "a.b", "x\n", "-x", "x" * 65, "a\0b", "ä", 7, None]


@pytest.mark.parametrize("part", ["query", "batch", "name"])
def test_names_that_are_no_words_are_refused(hub: Hub, part: str) -> None:
    with hub.open("hub"), hub.connect() as client:
        for wrong in WRONG:
            said = {"query": Q, "batch": "0", "name": "t", "channel": "alerts", part: wrong}
            with pytest.raises((ProtocolError, InvalidName)):
                raw(client, STAGE, events(1), **said)
            with pytest.raises((ProtocolError, InvalidName)):
                files = [[wrong if part == "name" else "t", 1]]
                raw(client, COMMIT, query=said["query"], batch=said["batch"], files=files)
            if part != "name":
                with pytest.raises((ProtocolError, InvalidName)):
                    raw(client, ABORT, query=said["query"], batch=said["batch"])
    assert not (hub.path("hub") / "spark" / "staged").exists()


def test_batches_of_a_query_have_numbers(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside:
        for wrong in ("x", "1x", "9" * 19, "٣"):
            with pytest.raises((InvalidName, ProtocolError)):
                aside.stage(wrong, "t", "alerts", events(1), query=Q)


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (event(1, source="other"), NotAllowed, "not allowed to publish as 'other'"),
        (event(1, source="hub"), NotAllowed, "not allowed to publish as"),
        (b"{}", InvalidMessage, "specversion"),
        (b"no event", InvalidMessage, "no event"),
        (event(1) + b"\n", InvalidMessage, "no event"),
        (b"\n" + event(1), InvalidMessage, "no event"),
        (event(1)[:-1], InvalidMessage, "no event"),
        (event(1, channel="sensors.x"), InvalidMessage, "no other channel"),
        (event(1, producer="spark.x"), InvalidMessage, "producer"),
        (event(1, producerseq="1/1"), InvalidMessage, "producerseq"),
        (event(1, origin="hub.x"), InvalidMessage, "origin"),
        (event(1, crc="00000000"), InvalidMessage, "crc"),
        (event(1, redrivefor="x"), InvalidMessage, "redrivefor"),
        (event("x" * 300_000), MessageTooLarge, "max_bytes"),
        (b"\n".join([event(1), event(2, source="other")]), NotAllowed, "as 'other'"),
    ],
)
def test_what_is_no_event_of_this_peer_is_not_laid_aside(
    hub: Hub, line: bytes, error: type[Exception], message: str
) -> None:
    hub.station("hub", peers=[PUBLISHER], messages={"max_bytes": 200_000})
    with hub.open("hub"), staging(hub) as aside:
        with pytest.raises(error, match=message):
            aside.stage("0", "t", "alerts", line, query=Q)
        assert files(hub) == []


def test_a_message_that_fits_until_its_producer_is_written_is_refused_before(hub: Hub) -> None:
    hub.station("hub", peers=[PUBLISHER], messages={"max_bytes": 10_000})
    fits = 0
    with hub.open("hub"), staging(hub) as aside:
        reasons: list[str] = []
        for size in range(9_000, 10_000, 50):
            try:
                laid = aside.stage(str(size), "t", "alerts", event("x" * size), query=Q)
                aside.commit(str(size), [laid], query=Q)
                fits += 1
            except MessageTooLarge as error:
                reasons.append(str(error))
        assert fits
        assert any("of the hub leaves" in reason for reason in reasons), "one that a plain publish would have taken"
    assert max(len(line) for line in lines(hub.path("hub"), "alerts")) <= 10_000


@pytest.mark.parametrize("channel", ["secrets", "alerts.dead-letter", "_reply.x", "../up", "a/b", ""])
def test_channels_that_are_not_the_peers_are_refused(hub: Hub, channel: str) -> None:
    with hub.open("hub"), hub.connect() as client, pytest.raises((NotAllowed, InvalidName, ProtocolError)):
        raw(client, STAGE, events(1), query=Q, batch="0", name="t", channel=channel)
    assert files(hub) == []


def test_an_older_hub_is_told_to_be_upgraded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(self: Desk, event: Any) -> None:
        self._fail(event.call, NotFound(f"there is no request {event.name!r} here"))

    monkeypatch.setattr(Desk, "asked", unknown)
    with hub.open("hub"), staging(hub) as aside:
        for ask in (
            lambda: aside.check("alerts"),
            lambda: aside.stage("0", "t", "alerts", events(1)),
            lambda: aside.commit("0", []),
            lambda: aside.abort("0"),
        ):
            with pytest.raises(ProtocolError, match=r"does not know the request '\w+': it is older.*Upgrade the hub"):
                ask()


def test_nobody_touches_what_others_laid_aside(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside, staging(hub, "other") as others:
        laid = aside.stage("0", "t", "alerts", events(1), query=Q)
        with pytest.raises(NotFound, match="is not laid aside here"):
            others.commit("0", [laid], query=Q)
        others.abort("0", query=Q)
        others.commit("5", [others.stage("5", "t", "alerts", event(5, source="other"), query=Q)], query=Q)
        aside.commit("0", [laid], query=Q)
    assert numbers(hub) == [1, 5], "the number of another's batch is not ours"


def test_only_what_was_answered_is_published(hub: Hub) -> None:
    with hub.open("hub"), staging(hub) as aside:
        laid = aside.stage("0", "t", "alerts", events(1), query=Q)
        with pytest.raises(NotFound, match="not laid aside here as it was"):
            aside.commit("0", [File("t", laid.crc ^ 1)], query=Q)
        with pytest.raises(NotFound):
            aside.commit("0", [laid, File("t2", 1)], query=Q)
        with pytest.raises(InvalidMessage, match="names a file twice"):
            aside.commit("0", [laid, laid], query=Q)
        with pytest.raises(NotFound):
            aside.commit("1", [laid], query=Q)
        (path,) = (hub.path("hub") / "spark" / "staged").rglob("*.lines")
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(Damaged, match="not those that it was written with"):
            aside.commit("0", [laid], query=Q)
        path.write_bytes(whole)
        assert numbers(hub) == []
        aside.commit("0", [laid], query=Q)
    assert numbers(hub) == [1]


def test_what_is_said_of_a_file_beside_its_name_is_not_believed(hub: Hub) -> None:
    with hub.open("hub"), hub.connect() as client:
        laid = client.staging().stage("0", "t", "alerts", events(1), query=Q)
        section = {"file": f"hub.tool.{Q}/0/t.lines", "channel": "secrets", "partition": 0, "count": 1}
        raw(client, COMMIT, query=Q, batch="0", files=[laid], sections=[section], channel="secrets")
    assert numbers(hub) == [1]
    assert numbers(hub, "secrets") == []


def test_rules_that_changed_since_count(hub: Hub) -> None:
    with hub.open("hub") as station, staging(hub) as aside:
        laid = aside.stage("0", "t", "alerts", events(1), query=Q)
        hub.station("hub", peers=[{"name": "tool", "publish": ["sensors.>"]}])
        wait_for(lambda: audited(hub.path("hub"), "links-reloaded"))
        with pytest.raises(NotAllowed, match="not allowed to publish 'alerts'"):
            aside.commit("0", [laid], query=Q)
        assert [info.name for info in station.channels()] == []


class Reading(msgspec.Struct):
    value: float


def test_registered_types_are_enforced(hub: Hub) -> None:
    with hub.open("hub") as station, staging(hub) as aside:
        station.register("com.example.reading.v1", Reading)
        with pytest.raises(PayloadMismatch):
            aside.stage("0", "t", "alerts", event({"value": "high"}, type="com.example.reading.v1"), query=Q)
        laid = aside.stage("0", "t", "alerts", event({"value": 1.5}, type="com.example.reading.v1"), query=Q)
        aside.commit("0", [laid], query=Q)
        (message,) = station.read("alerts")
        assert message.data == Reading(1.5)


@given(st.binary(max_size=60), st.sampled_from([STAGE, COMMIT, ABORT]))
def test_whatever_a_body_says_is_an_error_of_ours(body: bytes, name: str) -> None:
    from heliograph.federation import asking, batches

    kind = {STAGE: batches.Stage, COMMIT: batches.Commit, ABORT: batches.Abort}[name]
    with contextlib.suppress(ProtocolError):
        asking.decode(body, kind)


# -- pure parts -------------------------------------------------------------------------------------------------------

words = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_-]{0,5}\Z")
peers = st.lists(words, min_size=1, max_size=3).map(".".join)


@given(peers, words, peers, words)
def test_queries_of_two_peers_never_have_one_name(one: str, first: str, other: str, second: str) -> None:
    names = [own_query(peer, Abort(query=query, batch="1")) for peer, query in ((one, first), (other, second))]
    assert (names[0] == names[1]) == ((one, first) == (other, second))
    assert [owner(name) for name in names] == [one, other]


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(0, 30))
def test_a_batch_is_known_when_one_of_its_number_or_a_later_one_was_there(done: list[int], batch: int) -> None:
    newest = max(done, default=-1)
    assert newest < 0 or Record(str(newest), True).knows(str(batch), numbered=True) == (batch <= newest)


def test_the_last_names_are_remembered(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "SPARK_NAMES_MAX", 3)
    with hub.open("hub"), staging(hub) as aside:
        for n in range(6):
            aside.commit(f"b{n}", [aside.stage(f"b{n}", "t", "alerts", events(n))])
        for n in (2, 3, 4, 5):
            aside.commit(f"b{n}", [File("t", 1)])
        with pytest.raises(NotFound):
            aside.commit("b0", [File("t", 1)])
    assert numbers(hub) == list(range(6))


def test_an_answer_tells_what_is_there(hub: Hub) -> None:
    with hub.open("hub"), hub.connect() as client:
        assert msgspec.convert(raw(client, STAGE, query=Q, batch="0", name="t", channel="alerts"), Staged) == Staged()
    assert files(hub) == [], "without events it is only asked whether one may"
