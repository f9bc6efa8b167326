"""examples/pipelines/orders_and_payments.py: a pair, or a dead letter for each that has no partner."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import dead
from heliograph.spark.pipelines.finding import in_file
from heliograph.spark.pipelines.running import How, run

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipelines" / "orders_and_payments.py"
START = datetime(2026, 11, 15, 20, 30, tzinfo=UTC)


def put(station: hg.Station, channel: str, order: str, minute: float, **more: Any) -> None:
    moment = START + timedelta(minutes=minute)
    station.publish_many(channel, [hg.Draft(data={"order": order, **more}, time=moment)])


@pytest.mark.timeout(400)  # three starts of a stream with state
def test_every_order_and_payment_is_paired_or_becomes_a_dead_letter_once(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    paid = in_file(str(EXAMPLE))["paid"]
    with hg.open(root, name="shop", durability="os") as station:
        put(station, "orders", "a", 0, total=10)
        put(station, "orders", "b", 1, total=20)
        put(station, "payments", "a", 5, amount=10)
        put(station, "payments", "lost", 6, amount=7)
    now = How(trigger="available-now")
    run(paid, {"patience": 600.0}, root, now)
    with hg.open(root) as station:
        assert [message.data for message in station.read("orders.paid")] == [
            {"order": "a", "total": 10.0, "paid": 10.0, "after_s": 300.0}
        ]
        assert "orders.dead-letter" not in station.engine.channel_names()  # b may still be paid for
        put(station, "orders", "c", 120, total=30)
        put(station, "payments", "c", 120, amount=30)
    run(paid, {"patience": 600.0}, root, now)
    run(paid, {"patience": 600.0}, root, now)
    with hg.open(root) as station:
        assert [message.data["order"] for message in station.read("orders.paid")] == ["a", "c"]
        letters = list(dead.letters(station))
        assert [(one.channel, one.reason, one.error, one.original["data"]["order"]) for one in letters] == [
            ("orders", "unmatched", "no payment came within 600 s", "b"),
            ("payments", "unmatched", "no order came within 600 s", "lost"),
        ]
        assert dead.replay(station, "orders").replayed == 1  # another chance
        assert [message.data["order"] for message in station.read("orders")] == ["a", "b", "c", "b"]
