"""Conditions on fields mean what they look like, and say what is wrong with them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.admin import where
from tests.admin.helpers import open_station

RECORD: dict[str, Any] = {
    "type": "com.example.alert.v1",
    "partitionkey": "cpu0",
    "time": datetime(2026, 11, 15, 20, 30, tzinfo=UTC),
    "attempts": 6,
    "data": {
        "level": 3,
        "ratio": 0.5,
        "text": "10",
        "on": True,
        "none": None,
        "tags": ["red", {"deep": "x"}],
        "a=b": 1,
    },
    "when": "2026-11-15T20:30:00Z",
}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("type=com.example.alert.v1", True),
        ("type == com.example.alert.v1", True),
        ("type=com.example.alert", False),
        ("type!=com.example.alert", True),
        ("key=cpu0", True),
        ("partitionkey=cpu0", True),
        ("key~^cpu", True),
        ("key~cpu$", False),
        ("data.level>=3", True),
        ("data.level>3", False),
        ("data.level<10", True),  # as numbers: as text "3" would be larger
        ("data.level=3", True),
        ("data.level=3.0", True),
        ("data.level=three", False),
        ("data.level>x", False),
        ("data.ratio<=0.5", True),
        ("data.text=10", True),
        ("data.text<9", True),  # text compares as text
        ("data.on=true", True),
        ("data.on=1", False),
        ("data.on>0", False),
        ("data.none=null", True),
        ("has:data.none", False),
        ("has:data.on", True),
        ("has:data.nothing", False),
        ("has:key", True),
        ("data.tags.0=red", True),
        ("data.tags.1.deep=x", True),
        ("data.tags.7=red", False),
        ("data.tags=red", False),
        ("data.nothing=3", False),
        ("data.nothing!=3", True),
        ("data.nothing<3", False),
        ("data.nothing~.", False),
        ("data.level.deeper=1", False),
        ("attempts>5", True),
        ("time>2026-11-15", True),
        ("time<2026-11-15T20:30:00.5Z", True),
        ("time=2026-11-15T22:30:00+02:00", True),
        ("time>soon", False),
        ("when<2026-11-15T22:31:00+02:00", True),
        ("time~^2026-11", True),
        ("data.text=", False),
        ("nothing!=", True),
    ],
)
def test_a_condition_means_what_it_says(condition: str, holds: bool) -> None:
    assert where.parse(condition).fits(RECORD) is holds


def test_all_conditions_must_hold_and_none_holds_always() -> None:
    assert where.parse(["data.level=3", "key=cpu0"]).fits(RECORD)
    assert not where.parse(["data.level=3", "key=cpu1"]).fits(RECORD)
    assert where.parse(None).fits({})
    assert where.parse([]).fits({})
    assert not where.parse(None)


def test_an_age_is_counted_back_from_now() -> None:
    now = datetime.now(UTC)
    assert where.parse("time>-5m").fits({"time": now - timedelta(minutes=4)})
    assert not where.parse("time>-5m").fits({"time": now - timedelta(minutes=6)})
    assert not where.parse("time>-٥m").fits({"time": now}), "only ASCII digits are numbers"


@pytest.mark.parametrize(
    "text", ["", "level", "=3", "data..x=1", "has:", "has:a b", "a b=3", "data.level>", "x~[", ".a=1"]
)
def test_what_is_no_condition_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(hg.ConfigError) as error:
        where.parse(text)
    assert repr(text) in str(error.value)


class Alert(msgspec.Struct):
    level: int
    text: str = ""


def test_messages_are_filtered_by_attributes_headers_and_payload_whatever_its_class(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        station.register("alert.v1", Alert)
        station.publish("alerts", Alert(1), type="alert.v1", key="cpu", headers={"team": "blue", "size": 5})
        station.publish("alerts", Alert(7), type="alert.v1", key="disk")
        station.publish("alerts", {"level": 9})
        station.publish("alerts", b"raw")
        station.publish("alerts", "text", subject="s")

        def offsets(*conditions: str) -> list[int]:
            wanted = where.parse(conditions)
            return [message.offset for message in station.read("alerts") if wanted(message)]

        assert offsets("data.level>=7") == [1, 2]
        assert offsets("team=blue") == [0]
        assert offsets("size>4", "key=cpu") == [0]
        assert offsets("has:team") == [0]
        assert offsets("data=text") == [4]
        assert offsets("has:subject") == [4]
        assert offsets("offset>=3") == [3, 4]
        assert offsets("partition=0", "type=alert.v1") == [0, 1]
        assert offsets("channel=alerts", "time>-1h") == [0, 1, 2, 3, 4]
