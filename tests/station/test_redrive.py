"""Dead letters go back to the subscription that failed: to all that share a name, to nobody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import dead
from heliograph.station import Station
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "alerts"
NO_RETRY = hg.Retry(max_retries=0)


class Handler:
    """Refuses some numbers until it is mended, and notes what it took."""

    def __init__(self, *refused: int) -> None:
        self.refused = set(refused)
        self.took: list[int] = []

    def __call__(self, message: hg.Message) -> None:
        if message.data["n"] in self.refused:
            raise ValueError("no")
        self.took.append(message.data["n"])


@pytest.fixture
def station(opened: Opener) -> Station:
    station = opened()
    station.create_channel(CHANNEL, partitions=3)
    return station


def publish(station: Station, *numbers: int) -> None:
    for number in numbers:
        station.publish(CHANNEL, {"n": number}, key=f"k{number}", type="com.example.n.v1")


def letters(station: Station) -> int:
    return len(list(dead.letters(station, CHANNEL)))


def done(*subscriptions: hg.Subscription) -> Callable[[], bool]:
    return lambda: all(one.stats().lag == 0 for one in subscriptions)


SHARED: list[dict[str, Any]] = [{}, {"group": True}, {"queue": True}]


@pytest.mark.parametrize("kind", SHARED, ids=["plain", "group", "queue"])
def test_only_the_subscription_that_failed_gets_it_again(station: Station, kind: dict[str, Any]) -> None:
    pager, others = Handler(1, 4), {name: Handler() for name in ("plain", "group", "queue", "wild", "picky", "batch")}
    ephemeral, shown = Handler(), Handler()
    everything: dict[str, Any] = {"start": "first", "retry": NO_RETRY}
    publish(station, 0)
    failing = station.subscribe(CHANNEL, pager, name="pager", **everything, **kind)
    listening = [
        station.subscribe(CHANNEL, others["plain"], name="plain", **everything),
        station.subscribe(CHANNEL, others["group"], name="group", group=True, **everything),
        station.subscribe(CHANNEL, others["queue"], name="queue", queue=True, **everything),
        station.subscribe("*", others["wild"], name="wild", **everything),
        station.subscribe(
            CHANNEL, others["picky"], name="picky", where=hg.Filter(type="com.example.*"), **everything
        ),
        station.subscribe(
            CHANNEL, lambda batch: [others["batch"](one) for one in batch], name="batch", batch=True, **everything
        ),
        station.subscribe(CHANNEL, ephemeral, start="first", overflow="drop_oldest", buffer=1000),
    ]  # fmt: skip
    publish(station, 1, 2, 3, 4, 5)
    eventually(lambda: letters(station) == 2)
    pager.refused.clear()
    report = dead.replay(station, CHANNEL)
    assert (report.replayed, report.redriven, report.skipped) == (2, {"pager": 2}, [])
    assert letters(station) == 0
    eventually(lambda: len(pager.took) == 6)
    assert Counter(pager.took) == Counter(range(6))
    eventually(done(failing, *listening))
    for name, handler in [*others.items(), ("ephemeral", ephemeral)]:
        assert Counter(handler.took) == Counter(range(6)), name
    assert [one.stats().passed_over for one in listening] == [2] * len(listening)
    assert failing.stats().passed_over == 0
    for message in station.read(CHANNEL):
        shown(message)
    assert Counter(shown.took) == Counter([*range(6), 1, 4]), "reading shows them"


def test_pulled_jobs_are_those_of_the_queue_alone(station: Station) -> None:
    publish(station, 0, 1)
    with (
        station.queue(CHANNEL, "q", start="first", max_deliveries=1) as queue,
        station.queue(CHANNEL, "other", start="first") as other,
    ):
        for job in queue.receive(10):
            job.nack()
        other.ack(other.receive(10))
        assert letters(station) == 2
        assert dead.replay(station, CHANNEL).redriven == {"q": 2}
        again = queue.receive(10)
        assert sorted(job.message.data["n"] for job in again) == [0, 1]
        assert [job.deliveries for job in again] == [1, 1], "with a fresh count"
        queue.ack(again)
        assert other.receive(10) == []
    info = station.queue_info(CHANNEL, "other")
    assert (info.depth, info.in_flight) == (0, 0), "what is for others is done"


def test_a_wildcard_gets_back_what_it_failed_at(station: Station) -> None:
    wild, plain = Handler(1), Handler()
    with (
        station.subscribe("*", wild, name="wild", start="first", retry=NO_RETRY) as failing,
        station.subscribe(CHANNEL, plain, name="plain", start="first") as listening,
    ):
        publish(station, 0, 1)
        eventually(lambda: letters(station) == 1)
        wild.refused.clear()
        dead.replay(station, CHANNEL)
        eventually(lambda: sorted(wild.took) == [0, 1])
        eventually(done(failing, listening))
    assert sorted(plain.took) == [0, 1]


def test_each_of_several_that_failed_gets_its_own(station: Station) -> None:
    one, other = Handler(1, 2), Handler(2, 3)
    with (
        station.subscribe(CHANNEL, one, name="one", start="first", retry=NO_RETRY) as first,
        station.subscribe(CHANNEL, other, name="other", start="first", retry=NO_RETRY) as second,
    ):
        publish(station, *range(5))
        eventually(lambda: letters(station) == 4)
        for handler in (one, other):
            handler.refused.clear()
        assert dead.replay(station, CHANNEL).redriven == {"one": 2, "other": 2}
        eventually(lambda: sorted(one.took) == sorted(other.took) == [0, 1, 2, 3, 4])
        eventually(done(first, second))
    assert sorted(one.took) == sorted(other.took) == [0, 1, 2, 3, 4]


def test_one_that_fails_again_says_how_often_it_was_tried_and_whose_it_is(station: Station) -> None:
    pager, plain = Handler(1), Handler()
    with (
        station.subscribe(CHANNEL, pager, name="pager", group=True, start="first", retry=NO_RETRY) as failing,
        station.subscribe(CHANNEL, plain, name="plain", start="first") as listening,
    ):
        publish(station, 1)
        root = next(iter(station.read(CHANNEL))).id
        for count in (1, 2, 3):
            eventually(lambda: letters(station) == 1)
            dead.replay(station, CHANNEL)
            (copy,) = [one for one in station.read(CHANNEL) if one.headers.get("replaycount") == count]
            assert (copy.redrivefor, copy.headers["replayof"]) == ("pager", root)
        eventually(lambda: letters(station) == 1)
        (letter,) = dead.letters(station, CHANNEL)
        assert (letter.subscription, letter.group, letter.worker, letter.replays) == (
            "pager", "pager", failing.worker, 3,
        )  # fmt: skip
        pager.refused.clear()
        assert dead.replay(station, CHANNEL, to_all=True).redriven == {}
        eventually(lambda: pager.took == [1])
        eventually(lambda: plain.took == [1, 1])
        eventually(done(failing, listening))
        assert next(one for one in station.read(CHANNEL) if one.headers.get("replaycount") == 4).redrivefor is None


def test_a_subscription_that_is_not_there_now_gets_it_when_it_comes_back(opened: Opener, station: Station) -> None:
    with station.subscribe(CHANNEL, Handler(1), name="pager", start="first", retry=NO_RETRY) as before:
        publish(station, 0, 1)
        eventually(lambda: letters(station) == 1)
        eventually(done(before))  # the other one is in another partition
    dead.replay(station, CHANNEL)
    station.close()
    again = opened()
    pager, late = Handler(), Handler()
    with (
        again.subscribe(CHANNEL, late, name="late", start="first") as new,
        again.subscribe(CHANNEL, pager, name="pager") as back,
    ):
        eventually(lambda: pager.took == [1])
        eventually(done(new, back))
    assert sorted(late.took) == [0, 1]


def test_letters_of_a_subscription_that_was_forgotten_stay(station: Station) -> None:
    with station.subscribe(CHANNEL, Handler(1), name="gone", start="first", retry=NO_RETRY) as gone:
        publish(station, 1)
        eventually(lambda: letters(station) == 1)
        gone.close(forget=True)
    before = len(list(station.read(CHANNEL)))
    for dry_run in (True, False):
        report = dead.replay(station, CHANNEL, dry_run=dry_run)
        assert (report.matched, report.replayed, report.removed) == (1, 0, 0)
        assert "'gone' of 'alerts' does not exist any more" in report.skipped[0].reason
    assert (letters(station), len(list(station.read(CHANNEL)))) == (1, before), "nothing lost, nothing published"
    assert dead.replay(station, CHANNEL, to_all=True).replayed == 1
    assert letters(station) == 0


def test_letters_of_a_subscription_without_a_name_go_to_all(station: Station) -> None:
    failing, plain = Handler(1), Handler()
    with (
        station.subscribe(CHANNEL, failing, start="first", retry=NO_RETRY),
        station.subscribe(CHANNEL, plain, name="plain", start="first"),
    ):
        publish(station, 1)
        eventually(lambda: letters(station) == 1)
        failing.refused.clear()
        report = dead.replay(station, CHANNEL)
        assert (report.replayed, report.redriven) == (1, {})
        eventually(lambda: (failing.took, plain.took) == ([1], [1, 1]))


def test_what_was_redriven_is_not_the_newest_of_its_key(opened: Opener) -> None:
    """Else compaction would keep an old price for everybody, though only one subscription was to get it."""
    station = opened(retention_compact=True, segment_bytes=8192)
    with station.subscribe("prices", Handler(1), name="pager", start="first", retry=NO_RETRY):
        station.publish("prices", {"n": 1}, key="tea")
        eventually(lambda: len(list(dead.letters(station))) == 1)
    station.publish("prices", {"n": 2}, key="tea")
    dead.replay(station, "prices")
    station.engine.write("prices", 0, lambda partition: partition.rotate())
    station.trim()
    assert [(one.data["n"], one.redrivefor) for one in station.read("prices")] == [(2, None), (1, "pager")]


def test_lines_read_one_by_one_are_for_one_too(opened: Opener) -> None:
    """One line that does not fit keeps a chunk from being decoded at once."""
    opened().publish("lines", {"n": "text"}, type="n.v1")
    station = opened()
    station.register("n.v1", dict[str, int])
    pager, plain = Handler(*range(3)), Handler()
    with station.subscribe("lines", pager, name="pager", start=1, retry=NO_RETRY):
        for number in range(3):
            station.publish("lines", {"n": number})
        eventually(lambda: len(list(dead.letters(station))) == 3)
    dead.replay(station, "lines")
    with station.subscribe("lines", plain, name="plain", start="first") as listening:
        eventually(lambda: listening.position == 7)
    assert plain.took == [0, 1, 2]


def test_a_payload_that_still_does_not_fit_is_a_letter_of_the_one_that_gets_it_alone(opened: Opener) -> None:
    opened().publish("typed", {"n": "text"}, type="n.v1")
    station = opened()
    station.register("n.v1", dict[str, int])
    with (
        station.subscribe("typed", Handler(), name="pager", start="first") as failing,
        station.subscribe("typed", Handler(), name="plain", start="first") as plain,
        station.subscribe("typed", Handler(), name="queue", queue=True, start="first") as queue,
    ):
        eventually(lambda: len(list(dead.letters(station))) == 3)
        mine = [letter.offset for letter in dead.letters(station) if letter.subscription == "pager"]
        dead.replay(station, "typed", offsets=mine)
        eventually(lambda: failing.position == plain.position == queue.position == 2)
    found = sorted((letter.subscription, letter.original_offset) for letter in dead.letters(station))
    assert found == [("pager", 1), ("plain", 0), ("queue", 0)]


def test_nobody_can_publish_for_one_subscription(station: Station) -> None:
    with pytest.raises(hg.InvalidMessage, match="redrivefor"):
        station.publish(CHANNEL, 1, headers={"redrivefor": "pager"})
