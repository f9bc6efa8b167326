"""Recurring schedules: each firing once, whatever dies, and the way they are changed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.clock import to_us
from heliograph.log.locks import FileLock
from heliograph.schedule import cron as crons
from tests.schedule.conftest import Hands, Opener

FAR_US = 1 << 60


def ids(station: hg.Station, channel: str = "reports") -> list[str]:
    return [message.id for message in station.read(channel)]


def test_a_firing_has_the_id_and_the_time_of_its_due_time(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    schedule = station.schedule("often", "reports", {"n": 1}, cron="*/5 * * * *", key="k", headers={"a": "b"}, ttl=60)
    assert schedule.next is not None
    hands, due_us = Hands(station), to_us(schedule.next)
    assert hands.recurring.fire(due_us - 1) == 0
    assert hands.recurring.fire(due_us) == 1
    assert hands.recurring.fire(due_us) == 0
    hands.mover.move(FAR_US)
    (message,) = station.read("reports")
    assert message.id == "often@" + schedule.next.isoformat().replace("+00:00", "Z")
    assert message.time == schedule.next
    assert message.expires == schedule.next + timedelta(seconds=60)
    assert (message.data, message.key, message.headers) == ({"n": 1}, "k", {"a": "b"})
    (after,) = station.schedules()
    assert (after.last, after.next) == (schedule.next, schedule.next + timedelta(minutes=5))


@pytest.mark.parametrize(("missed", "expected"), [("one", 1), ("all", 24), ("skip", 0)])
def test_what_was_missed_while_nobody_ran(opened: Opener, undisturbed: FileLock, missed: str, expected: int) -> None:
    station = opened()
    schedule = station.schedule("hourly", "reports", 1, cron="0 * * * *", missed=missed)  # type: ignore[arg-type]
    assert schedule.next is not None
    hands, now_us = Hands(station), to_us(schedule.next) + 23 * 3_600_000_000 + 120_000_000
    hands.recurring.fire(now_us)
    assert station.scheduled_count() == expected
    hands.mover.move(FAR_US)
    if expected:
        last = schedule.next + timedelta(hours=23)
        assert ids(station)[-1] == "hourly@" + last.isoformat().replace("+00:00", "Z")


def test_called_again_at_every_start_it_goes_on_where_it_was(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    before = station.schedule("often", "reports", 1, cron="*/5 * * * *")
    assert before.next is not None
    Hands(station).recurring.fire(to_us(before.next))
    moved = station.schedules()[0]
    again = station.schedule("often", "reports", {"other": "data"}, cron="*/5 * * * *")
    assert (again.next, again.last) == (moved.next, moved.last)
    changed = station.schedule("often", "reports", 1, cron="0 0 1 1 *")
    assert changed.next != moved.next
    assert len(station.schedules()) == 1


def test_what_was_fired_stays_when_the_schedule_is_removed(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    schedule = station.schedule("often", "reports", 1, cron="*/5 * * * *")
    assert schedule.next is not None
    hands = Hands(station)
    hands.recurring.fire(to_us(schedule.next))
    assert station.unschedule("often")
    assert not station.unschedule("often")
    assert station.schedules() == []
    hands.mover.move(FAR_US)
    assert len(ids(station)) == 1
    assert hands.recurring.fire(FAR_US) == 0


def test_schedules_survive_a_restart(opened: Opener) -> None:
    first = opened()
    before = first.schedule("nightly", "reports", 1, cron="0 3 * * *", timezone="Europe/Zurich", missed="all")
    first.close()
    assert opened().schedules() == [before]
    assert opened(read_only=True).schedules() == [before]


def test_one_that_cannot_fire_says_why_and_the_others_fire(
    opened: Opener, undisturbed: FileLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    station = opened()
    station.schedule("a", "reports", 1, cron="*/5 * * * *", timezone="Europe/Zurich")
    station.schedule("b", "reports", 1, cron="*/5 * * * *")
    real = crons.zone

    def gone(name: object):  # type: ignore[no-untyped-def]
        if name != "UTC":
            raise hg.ConfigError("there is no such timezone any more")
        return real(name)

    monkeypatch.setattr(crons, "zone", gone)
    now_us = to_us(station.schedules()[0].next)  # type: ignore[arg-type]
    Hands(station).recurring.fire(now_us)
    assert [one.channel for one in station.scheduled()] == ["reports"]
    assert [schedule.error for schedule in station.schedules()] == ["there is no such timezone any more", ""]
    monkeypatch.undo()
    Hands(station).recurring.fire(now_us + 60_000_000)
    assert [schedule.error for schedule in station.schedules()] == ["", ""]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"cron": "every day"}, hg.ConfigError),
        ({"cron": "0 0 31 2 *"}, hg.ConfigError),
        ({"timezone": "Nowhere"}, hg.ConfigError),
        ({"missed": "some"}, hg.ConfigError),
        ({"name": "../up"}, hg.InvalidName),
        ({"name": "n" * 151}, hg.InvalidName),
        ({"channel": "x.dead-letter"}, hg.InvalidName),
        ({"data": object()}, hg.InvalidMessage),
        ({"ttl": 0}, hg.InvalidMessage),
    ],
)
def test_bad_schedules_are_refused_and_nothing_is_stored(
    opened: Opener, root: Path, arguments: dict[str, object], error: type[Exception]
) -> None:
    given = {"name": "often", "channel": "reports", "data": 1, "cron": "* * * * *", **arguments}
    with pytest.raises(error):
        opened().schedule(**given)  # type: ignore[arg-type]
    assert not (root / "schedule").exists()


def test_made_and_removed_are_audited(opened: Opener, root: Path) -> None:
    station = opened()
    station.schedule("often", "reports", 1, cron="0 0 * * *")
    station.unschedule("often")
    text = (root / "audit" / "audit.jsonl").read_text()
    assert '"scheduled"' in text
    assert '"unscheduled"' in text
