"""Dead letters of real handlers, clustered and redriven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.errors import ConfigError, NotFound
from heliograph.spark.jobs.triage import pattern, triage
from heliograph.spark.pipelines.running import run
from tests.proof.tools import eventually


def fail(message: hg.Message) -> None:
    n = message.data["n"]
    if n % 3 == 0:
        raise hg.Reject(f"cannot reach 10.0.0.{n}:5432 after {n * 1.5} s")
    if n % 3 == 1:
        raise hg.Reject(f"no file /var/spool/orders/{n}.json for 0192f3a1-7c41-7a5e-a0a4-2f7f6d1c9e{n:02}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """30 orders, of which the subscription 'ship' gave up 20 and the group 'bill' as many; 3 bad pings."""
    path = tmp_path / "data"
    with hg.open(path, name="host1", durability="os") as station:
        for n in range(30):
            station.publish("orders", {"n": n, "total": n * 10}, type=f"com.example.order.v{1 + n % 2}", key=f"k{n}")
        station.subscribe("orders", fail, name="ship", start="first")
        station.subscribe("orders", fail, name="bill", start="first", group=True)
        station.subscribe("pings", lambda _: 1 / 0, name="ping", start="first", retry=hg.Retry(max_retries=0))
        for _ in range(3):
            station.publish("pings", {})
        eventually(lambda: letters(station, "orders") == 40)
        eventually(lambda: letters(station, "pings") == 3)
    return path


def letters(station: hg.Station, channel: str) -> int:
    name = f"{channel}.dead-letter"
    return len(list(station.read(name))) if name in station.engine.channel_names() else 0


def left(root: Path, channel: str = "orders") -> int:
    with hg.open(root, read_only=True) as station:
        return letters(station, channel)


def test_errors_that_differ_in_numbers_ids_and_paths_are_one(spark: Any) -> None:
    texts = {
        "cannot reach 10.0.0.3:5432 after 4.5 s": "cannot reach <address> after <n> s",
        "no file /var/spool/17.json\n for 0192f3a1-7c41-7a5e-a0a4-2f7f6d1c9e01": "no file <path> for <id>",
        "KeyError: 'order-4711'": "KeyError: 'order-<n>'",
        "at 2026-11-15T20:30:01.5Z: https://a.example/b?c=1 said -1e5": "at <time>: <url> said <n>",
        "object at 0x7f28c6eeb7d0, commit fbbbf2a1": "object at <id>, commit <id>",
        "expected 1 and/or 2 of v3": "expected <n> and/or <n> of v<n>",
    }
    rows = spark.createDataFrame([(text,) for text in texts], "error STRING")
    assert {row.error: row.pattern for row in rows.withColumn("pattern", pattern(rows.error)).collect()} == texts


def test_letters_are_clustered_by_error_type_and_subscription(spark: Any, root: Path) -> None:
    result = run(triage, {}, root)
    names = ("subscription", "kind", "type", "pattern")
    found = {tuple(one[name] for name in names): one["letters"] for one in result.tables["clusters"]}
    reach, file = "Reject: cannot reach <address> after <n> s", "Reject: no file <path> for <id>"
    orders = {
        (subscription, kind, f"com.example.order.v{version}", error): 5
        for subscription, kind in (("ship", "plain"), ("bill", "group"))
        for version in (1, 2)
        for error in (reach, file)
    }
    assert found == orders | {("ping", "plain", "heliograph.data.v1", "ZeroDivisionError: division by zero"): 3}
    assert result.facts == {"letters": 43, "clusters": 9}
    assert all(len(one["when"]) == 16 for one in result.tables["clusters"])


def test_a_condition_chooses_what_is_redriven_and_that_is_redriven_once(spark: Any, root: Path) -> None:
    condition = "subscription = 'ship' and pattern like '%no file%' and payload:total::int >= 100"
    chosen = [n for n in range(30) if n % 3 == 1 and n * 10 >= 100]
    dry = run(triage, {"redrive": True, "dry_run": True, "where": condition}, root)
    assert dry.facts["would be redriven"] == len(chosen)
    assert left(root) == 40
    done = run(triage, {"redrive": True, "where": condition}, root)
    assert (done.facts["redriven"], done.facts["removed"]) == (len(chosen), len(chosen))
    again = run(triage, {"redrive": True, "where": condition}, root)
    assert again.facts["letters"] == again.facts["redriven"] == 0
    assert left(root) == 40 - len(chosen)
    with hg.open(root, read_only=True) as station:
        copies = [message for message in station.read("orders") if message.redrivefor]
    assert sorted(message.data["n"] for message in copies) == chosen
    assert {message.redrivefor for message in copies} == {"ship"}


def test_letters_of_one_cluster_are_redriven_by_its_name(spark: Any, root: Path) -> None:
    one = run(triage, {"channel": ("pings",)}, root).tables["clusters"][0]
    done = run(triage, {"redrive": True, "to_all": True, "where": f"cluster = '{one['cluster']}'"}, root)
    assert done.facts["redriven"] == 3
    assert (left(root, "pings"), left(root)) == (0, 40)


def test_nothing_is_redriven_by_mistake(spark: Any, root: Path) -> None:
    with pytest.raises(ConfigError, match="which letters"):
        run(triage, {"redrive": True}, root)
    with pytest.raises(ConfigError, match="add --redrive"):
        run(triage, {"dry_run": True}, root)
    assert left(root) == 40


def test_a_station_without_dead_letters_has_none(spark: Any, tmp_path: Path) -> None:
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        station.publish("orders", 1)
    assert run(triage, {}, tmp_path / "data").facts == {"letters": 0}


def test_a_channel_without_dead_letters_has_none_and_one_that_is_not_there_is_named(spark: Any, tmp_path: Path) -> None:
    with hg.open(tmp_path / "data", durability="os") as station:
        station.publish("orders", 1)
    for more in ({}, {"redrive": True}):
        result = run(triage, {"channel": ("orders", "orders.dead-letter"), **more}, tmp_path / "data")
        assert (result.tables["clusters"], result.facts["letters"]) == ([], 0)
    with pytest.raises(NotFound, match=r"^there is no channel 'nope' in"):
        run(triage, {"channel": ("orders", "nope")}, tmp_path / "data")


@pytest.mark.parametrize("more", [{}, {"redrive": True}])
def test_a_column_that_there_is_not_is_named_though_there_are_no_letters(
    spark: Any, tmp_path: Path, more: dict[str, Any]
) -> None:
    with hg.open(tmp_path / "data", durability="os") as station:
        station.publish("orders", 1)
    with pytest.raises(ConfigError, match="nocol"):
        run(triage, {"where": "nocol = 1", **more}, tmp_path / "data")
    assert run(triage, {"where": "attempts > 3", **more}, tmp_path / "data").facts["letters"] == 0


def test_conditions_on_payloads_that_are_no_objects_and_headers_that_others_set(spark: Any, tmp_path: Path) -> None:
    def reject(_: hg.Message) -> None:
        raise hg.Reject("no")

    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        station.subscribe("orders", reject, name="ship", start="first")
        for payload in ("text", "5", 5, None, [1], b"bytes"):
            station.publish("orders", payload, headers={"replaycount": "many"})
        eventually(lambda: letters(station, "orders") == 6)
    for condition, count in {
        "try_variant_get(payload, '$', 'string') = 'text'": 1,
        "schema_of_variant(payload) = 'STRING'": 2,
        "schema_of_variant(payload) = 'BIGINT'": 1,
        "try_variant_get(payload, '$[0]', 'int') = 1": 1,
        "replays = 0": 6,
    }.items():
        assert run(triage, {"where": condition}, tmp_path / "data").facts["letters"] == count, condition
