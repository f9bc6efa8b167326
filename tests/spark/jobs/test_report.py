"""The report: one file that is complete by itself, and says what there is."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

import heliograph as hg
from heliograph.errors import ConfigError
from heliograph.spark.jobs._page import Figures, page
from heliograph.spark.jobs._plots import Series, nice, stacked
from heliograph.spark.jobs.report import report, step_s
from heliograph.spark.pipelines.running import run
from tests.proof.tools import eventually

VOID = {"meta", "br"}


class Order(msgspec.Struct):
    number: int
    note: str | None = None


class Page(HTMLParser):
    """Whether every element is closed, what the text is, and how many bars there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def refuse(message: hg.Message) -> None:
    raise hg.Reject(f"<script>alert({message.data.number})</script>")


def test_the_report_of_a_station(spark: Any, tmp_path: Path) -> None:
    root, file = tmp_path / "data", tmp_path / "report.html"
    moment = datetime(2026, 11, 15, 20, 30, tzinfo=UTC)
    with hg.open(root, name="host1", durability="os") as station:
        station.register("com.example.order.v1", Order)
        drafts = [hg.Draft(data=Order(n), time=moment + timedelta(seconds=20 * n)) for n in range(12)]
        station.publish_many("orders", drafts)
        station.publish("clicks", {"x": 1}, type="click.v1")
        station.subscribe("orders", refuse, name="ship", start="first")
        eventually(lambda: "orders.dead-letter" in station.engine.channel_names())
        eventually(lambda: len(list(station.read("orders.dead-letter"))) == 12)
    result = run(report, {"output": str(file), "title": "Shop & Co"}, root)
    assert result.facts == {"file": str(file), "messages": 13, "letters": 12, "drift": 0}
    text = file.read_text()
    found = Page(text)
    assert "script" not in found.tags
    assert not re.search(r"https?://|@import|url\(", text)
    words = " ".join(found.text)
    for word in (
        "Shop & Co",
        "orders",
        "clicks",
        "com.example.order.v1",
        "$.number",
        "Reject: <script>alert(<n>)</script>",
    ):
        assert word in words
    assert found.tags.count("rect") >= 2  # bars
    later, since = (datetime.now(UTC) + timedelta(hours=1)).isoformat(), '{"orders": "new"}'
    for channel, start, letters in ((">", later, 0), (">", "-1h", 12), ("orders", since, 12), ("clicks", "0", 0)):
        again = run(report, {"output": str(file), "channel": channel, "start": start}, root)
        assert again.facts["letters"] == letters, start


TEXTS = st.sampled_from(["a", "<b>", "é <i class='x'>", '"><b>', ""])
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2026, 1, 2), timezones=st.just(UTC))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(MOMENTS, TEXTS, st.integers(0, 9)), max_size=9), TEXTS, st.sampled_from([1, 60, 3600]))
def test_a_page_is_well_formed_whatever_names_there_are(
    windows: list[tuple[datetime, str, int]], text: str, every_s: int
) -> None:
    windows = [(moment.replace(minute=0, second=0, microsecond=0), name, n) for moment, name, n in windows]
    latency = {f"latency_{name}_ms": 1.5 for name in ("p50", "p95", "p99")}
    channel = {"messages": 2, "bytes": 3, "origins": 1, "types": 1, "measured": 1, **latency}
    cluster = {
        "letters": 1, "channel": text, "subscription": text, "kind": "plain", "type": text, "reason": text,
        "pattern": text, "when": "·█", "first": datetime.now(UTC), "last": datetime.now(UTC), "cluster": "3f9a01bc",
    }  # fmt: skip
    field = {
        "channel": text,
        "type": text,
        "field": text,
        "kind": text,
        "values": 1,
        "filled_percent": 1.0,
        "top": text,
    }
    drift = {"channel": text, "type": text, "field": text, "what": text, "percent": 1.0}
    figures = Figures(
        station="host1", title=text, made=datetime.now(UTC), first=None, last=None, every_s=every_s,
        channels=[channel | {"channel": name} for _, name, _ in windows],
        windows=[{"at": at, "channel": name, "messages": n} for at, name, n in windows] if every_s == 3600 else [],
        latency=[{"at": at, "measured": 1, **latency} for at, _, _ in windows],
        clusters=[cluster], fields=[field], drift=[drift],
    )  # fmt: skip
    Page(page(figures))


def test_where_a_report_cannot_be_written_is_said_before_anything_is_read(tmp_path: Path) -> None:
    for target, message in ((tmp_path, "it is a directory"), (tmp_path / "no" / "a.html", "no such directory")):
        with pytest.raises(ConfigError, match=message):
            report.function(None, output=str(target), channel=">", start="first", title=None)


@given(st.floats(1e-6, 1e15))
def test_an_axis_is_as_long_as_needed_and_not_much_longer(most: float) -> None:
    ticks = nice(most)
    assert most <= ticks[-1] * (1 + 1e-9)
    assert ticks[-2] < most
    assert len(ticks) <= 6


moments = st.datetimes(datetime(1970, 1, 1))
"""Times that messages can have."""


@given(moments, moments)
def test_there_are_not_too_many_windows_however_far_apart_messages_are(one: datetime, other: datetime) -> None:
    first, last = sorted((one, other))
    assert (last - first) / timedelta(seconds=step_s(first, last)) <= 96


def test_a_plot_over_years_tells_the_year() -> None:
    years = [datetime(year, 1, 1, tzinfo=UTC) for year in (2025, 2026, 2027)]
    assert ">2026-01-01<" in stacked(years, [Series("a", [1, 2, 3])], "messages")
