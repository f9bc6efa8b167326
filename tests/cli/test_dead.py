from __future__ import annotations

import json
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import Helio, lines, one_line_error, wait_until


@pytest.fixture
def failed(station: hg.Station) -> hg.Station:
    """Three dead letters of ``alerts``, of two kinds."""
    station.publish_many("alerts", [{"n": n} for n in range(3)])

    def handle(message: hg.Message) -> None:
        raise ValueError("boom") if message.data["n"] < 2 else TimeoutError("too late")

    with station.subscribe("alerts", handle, name="pager", start="first", retry=hg.Retry(max_retries=0)) as pager:
        wait_until(lambda: pager.position == 3)
    return station


def test_list_counts_by_reason_and_shows_each_when_asked(helio: Helio, failed: hg.Station) -> None:
    groups = json.loads(helio("dead", "list", "--json").stdout)
    assert {(one["channel"], one["error_type"], one["count"]) for one in groups} == {
        ("alerts", "builtins.ValueError", 2), ("alerts", "builtins.TimeoutError", 1)
    }  # fmt: skip
    each = lines(helio("dead", "list", "alerts", "--each", "--json"))
    assert [letter["original"]["data"]["n"] for letter in each] == [0, 1, 2]
    assert "boom" in helio("dead", "list", "--each", "--where", "error~boom").stdout
    assert "boom" not in helio("dead", "list", "--each", "--where", "data.n=2").stdout


def test_show_tells_the_error_and_the_original(helio: Helio, failed: hg.Station) -> None:
    shown = helio("dead", "show", "1", "--channel", "alerts").stdout
    for part in ("ValueError: boom", "Traceback", "pager", '"n": 1'):
        assert part in shown
    letter = json.loads(helio("dead", "show", "2", "--channel", "alerts", "--json").stdout)
    assert json.loads(helio("dead", "show", letter["original"]["id"], "--json").stdout) == letter
    one_line_error(helio("dead", "show", "99", "--channel", "alerts"), 3)
    one_line_error(helio("dead", "show", "unknown-id"), 3)


def test_replay_publishes_the_originals_and_takes_the_letters_away(helio: Helio, failed: hg.Station) -> None:
    args = ("dead", "replay", "alerts", "--where", "error_type=builtins.ValueError")
    assert "would replay 2 dead letters of alerts" in helio(*args, "--dry-run").stdout
    assert failed.channel("alerts").messages == 3
    assert "replayed 2 dead letters of alerts" in helio(*args).stdout
    assert [message.data["n"] for message in failed.read("alerts")] == [0, 1, 2, 0, 1]
    assert [letter["original"]["data"]["n"] for letter in lines(helio("dead", "list", "--each", "--json"))] == [2]
    assert json.loads(helio("dead", "replay", "alerts", "--offset", "2", "--json").stdout)["replayed"] == 1


def test_replay_goes_to_the_subscription_that_failed_or_to_all(helio: Helio, failed: hg.Station) -> None:
    assert helio("dead", "replay", "alerts", "--offset", "0").stdout == "replayed 1 dead letter of alerts to pager\n"
    dry = helio("dead", "replay", "alerts", "--offset", "1", "--to-all", "--dry-run").stdout
    assert dry == "would replay 1 dead letter of alerts to all subscriptions\n"
    report = json.loads(helio("dead", "replay", "alerts", "--offset", "1", "--to-all", "--json").stdout)
    assert (report["replayed"], report["redriven"]) == (1, {})
    report = json.loads(helio("dead", "replay", "alerts", "--offset", "2", "--json").stdout)
    assert (report["replayed"], report["redriven"]) == (1, {"pager": 1})
    assert [one.get("redrivefor") for one in lines(helio("read", "alerts", "--json"))][3:] == ["pager", None, "pager"]
    copy = list(failed.read("alerts"))[3]
    assert "redriven for  pager" in helio("get", copy.id).stdout


def test_letters_of_a_forgotten_subscription_stay_and_one_line_says_so(helio: Helio, failed: hg.Station) -> None:
    assert helio("subscriptions", "forget", "alerts", "pager").exit_code == 0
    result = helio("dead", "replay", "alerts")
    assert (result.exit_code, result.stdout) == (1, "replayed 0 dead letters of alerts\n")
    assert result.stderr.count("\n") == 1
    assert "offsets 0, 1, 2 stay: its subscription 'pager' of 'alerts' does not exist any more" in result.stderr
    assert len(lines(helio("dead", "list", "--each", "--json"))) == 3
    assert (
        "replayed 3 dead letters of alerts to all subscriptions" in helio("dead", "replay", "alerts", "--to-all").stdout
    )


def test_letters_say_which_worker_of_which_group_or_queue_gave_up(helio: Helio, failed: hg.Station) -> None:
    assert "WORKER" not in helio("dead", "list").stdout + helio("dead", "list", "--each").stdout
    assert "1" in helio("dead", "list").stdout.split("ATTEMPTS")[1]
    retry = hg.Retry(max_retries=1, base_s=0.001, max_s=0.001)
    workers: dict[str, str] = {}
    for kind in ("group", "queue"):

        def handle(message: hg.Message) -> None:
            raise ValueError("boom")

        options = {kind: True}
        with failed.subscribe("alerts", handle, name=f"the-{kind}", start="first", retry=retry, **options) as worker:
            wait_until(lambda: worker.stats().dead_letters == 3)
            assert worker.worker is not None
            workers[kind] = worker.worker
    for kind, worker_name in workers.items():
        each = helio("dead", "list", "alerts", "--each", "--where", f"subscription=the-{kind}").stdout
        assert each.count(worker_name) == 3
        shown = helio("dead", "show", each.split("alerts")[1].split()[0], "--channel", "alerts").stdout
        for name, value in ((kind, f"the-{kind}"), ("worker", worker_name), ("attempts", "2")):
            assert any(line.split() == [name, value] for line in shown.splitlines()), (name, shown)
    groups = json.loads(helio("dead", "list", "--json").stdout)
    assert {(one["subscription"], one["kind"], one["attempts"], *one["workers"]) for one in groups} == {
        ("pager", "plain", 1), ("the-group", "group", 2, workers["group"]), ("the-queue", "queue", 2, workers["queue"])
    }  # fmt: skip
    table = helio("dead", "list").stdout
    assert "KIND" in table.splitlines()[0]
    assert "WORKERS" in table.splitlines()[0]


def test_purge_asks_first(helio: Helio, failed: hg.Station) -> None:
    assert "would remove 3" in helio("dead", "purge", "alerts", "--dry-run").stdout
    one_line_error(helio("dead", "purge", "alerts", input="n\n"), 1)
    assert len(lines(helio("dead", "list", "--each", "--json"))) == 3
    assert "removed 1 dead letter" in helio("dead", "purge", "alerts", "--offset", "1", input="y\n").stdout
    assert "removed 2 dead letters" in helio("dead", "purge", "alerts", "--yes").stdout
    assert helio("dead", "list").stderr == "no dead letters\n"


def test_export_writes_letters_as_they_are_stored(helio: Helio, failed: hg.Station, tmp_path: Path) -> None:
    assert [letter["data"]["offset"] for letter in lines(helio("dead", "export", "alerts"))] == [0, 1, 2]
    file = tmp_path / "letters.ndjson"
    args = ("dead", "export", "--where", "data.n=1", "--output", file, "--json")
    assert json.loads(helio(*args).stdout)["letters"] == 1
    assert len(file.read_text().splitlines()) == 1


def test_a_channel_without_dead_letters_is_no_error_but_an_unknown_one_is(helio: Helio, failed: hg.Station) -> None:
    failed.publish("calm", 1)
    assert helio("dead", "list", "calm").exit_code == 0
    assert "replayed 0 dead letters" in helio("dead", "replay", "calm").stdout
    one_line_error(helio("dead", "list", "nothing"), 3)


@pytest.mark.parametrize("reference", ["٣", "9" * 5000])
def test_what_cannot_be_an_offset_is_not_taken_for_one(helio: Helio, station: hg.Station, reference: str) -> None:
    station.publish("alerts", 1)
    assert "there is no dead letter" in one_line_error(helio("dead", "show", reference), 3)
    assert "there is no dead letter" in one_line_error(helio("dead", "show", reference, "--channel", "alerts"), 3)


def test_a_channel_that_is_not_there_leaves_nothing_behind(helio: Helio, station: hg.Station) -> None:
    for args in (["replay"], ["purge", "--yes"]):
        assert "there is no channel 'nothing'" in one_line_error(helio("dead", *args, "nothing"), 3)
    assert not (station.path / "dead").exists()
