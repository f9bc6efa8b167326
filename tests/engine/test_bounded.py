"""Whoever sends may invent lives of stations and gaps: not more than a channel is willing to remember."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heliograph.engine.bounded import TooManyOrigins
from heliograph.seen import IntervalSet, SeenSet
from tests.arrivals import identities, line
from tests.opening import Opener

CHANNEL = "alerts"


def life(number: int, station: str = "host2", partition: int = 0) -> bytes:
    return line(0, f"{station}.k{number}", partition)


def settings(most: int) -> dict[str, object]:
    return {"config": {"hub": {"origins_max": most}}}


def test_more_lives_of_one_station_than_allowed_are_refused_and_others_go_on(opened: Opener, root: Path) -> None:
    station = opened(**settings(5))
    relayed = station.engine.relayed
    assert relayed.arrive(CHANNEL, [life(number) for number in range(5)]).appended == 5
    for bad in ([life(5)], [life(0), life(6)], [life(0, partition=1)]):
        with pytest.raises(TooManyOrigins, match=r"'host2'.*hub\.origins_max"):
            relayed.arrive(CHANNEL, bad)
    assert relayed.arrive(CHANNEL, [life(4), line(1, "host2.k4"), life(0, "host3")]).appended == 2
    assert len(identities(root)) == 7, "nothing of what was refused"
    station.close()
    station = opened(**settings(5))
    with pytest.raises(TooManyOrigins):
        station.engine.relayed.arrive(CHANNEL, [life(9)])


def test_all_stations_together_have_a_bound_too(opened: Opener, root: Path) -> None:
    relayed = opened(**settings(2)).engine.relayed
    assert relayed.arrive(CHANNEL, [life(0, f"host{number}") for number in range(2, 22)]).appended == 20
    with pytest.raises(TooManyOrigins, match="10 times"):
        relayed.arrive(CHANNEL, [life(0, "host99")])
    assert len(identities(root)) == 20


def test_gaps_of_lives_that_nobody_heard_of_count_as_well(opened: Opener) -> None:
    station = opened(**settings(3))
    station.create_channel(CHANNEL)
    relayed = station.engine.relayed
    relayed.note_gaps(CHANNEL, SeenSet({(f"host2.k{number}", 0): IntervalSet([(0, 9)]) for number in range(3)}))
    with pytest.raises(TooManyOrigins):
        relayed.note_gaps(CHANNEL, SeenSet({("host2.k3", 0): IntervalSet([(0, 9)])}))
    with pytest.raises(TooManyOrigins):
        relayed.arrive(CHANNEL, [life(4)])


def test_gaps_without_end_are_not_kept(opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.limits.SEEN_GAPS_MAX", 100)
    station = opened()
    station.create_channel(CHANNEL)
    for start in range(0, 10_000, 100):
        gaps = IntervalSet([(start + at, start + at + 1) for at in range(0, 60, 2)])
        station.engine.relayed.note_gaps(CHANNEL, SeenSet({("host2.aaaaaa", 0): gaps}))
    assert station.engine.relayed.gaps(CHANNEL).pieces == 90
    records = [json.loads(text) for text in (root / "audit" / "audit.jsonl").read_text().splitlines()]
    assert [record["channel"] for record in records if record["event"] == "gaps-not-kept"] == [CHANNEL], "once"
    assert station.engine.relayed.arrive(CHANNEL, [life(0)]).appended == 1
