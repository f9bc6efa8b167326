from __future__ import annotations

import json
import threading

import pytest

import heliograph as hg
from heliograph.disk import SYSTEM_DISK
from heliograph.log.locks import FileLock
from tests.cli.harness import Helio, one_line_error


@pytest.fixture
def lagging(station: hg.Station) -> hg.Station:
    station.publish_many("numbers", range(10))
    station.subscribe("numbers", print, name="pager", start=4, paused=True).close()
    return station


def test_list_shows_the_lag(helio: Helio, lagging: hg.Station) -> None:
    (info,) = json.loads(helio("subscriptions", "list", "--json").stdout)
    assert (info["name"], info["offset"], info["lag"], info["live"]) == ("pager", 4, 6, False)
    heading, row = helio("subscriptions", "list", "numbers").stdout.splitlines()
    assert heading.split() == ["CHANNEL", "SUBSCRIPTION", "PARTITION", "LIVE", "OFFSET", "LAG", "BEHIND", "SAVED"]
    assert row.split()[:6] == ["numbers", "pager", "0", "no", "4", "6"]
    one_line_error(helio("subscriptions", "list", "nothing"), 3)


def test_seek_moves_and_a_dry_run_only_says_so(helio: Helio, lagging: hg.Station) -> None:
    args = ("subscriptions", "seek", "numbers", "pager", "--to")
    assert (
        "would move pager of numbers from offset 4 to 0: delivers 4 messages again"
        in helio(*args, "first", "--dry-run").stdout
    )
    assert lagging.subscriptions()[0].offset == 4
    assert "skips 6 messages, 0 messages waiting" in helio(*args, "new").stdout
    assert json.loads(helio(*args, "-5m", "--json").stdout)["after"] == 0
    assert json.loads(helio(*args, "7", "--json").stdout)["after"] == 7
    assert lagging.subscriptions()[0].offset == 7


def test_seek_mends_a_damaged_position(helio: Helio, lagging: hg.Station) -> None:
    (lagging.path / "subscriptions/numbers/pager/0.json").write_text("garbage")
    assert "helio subscriptions seek" in one_line_error(helio("subscriptions", "list"), 5)
    assert helio("subscriptions", "seek", "numbers", "pager", "--to", "3").exit_code == 0
    assert lagging.subscriptions()[0].offset == 3


def test_forget_says_where_it_stood(helio: Helio, lagging: hg.Station) -> None:
    assert "it stood at offset 4" in helio("subscriptions", "forget", "numbers", "pager").stdout
    assert lagging.subscriptions() == []


def test_a_look_at_who_is_live_keeps_nobody_from_subscribing(lagging: hg.Station) -> None:
    looking = FileLock(lagging.path / "subscriptions/numbers/pager/lock", SYSTEM_DISK, create=False)
    assert looking.try_shared()  # as `helio subscriptions list` does, for an instant
    threading.Timer(0.01, looking.release).start()
    lagging.subscribe("numbers", print, name="pager", paused=True).close()


def test_forget_names_the_channel_that_is_not_there(helio: Helio, lagging: hg.Station) -> None:
    assert "there is no channel 'nothing'" in one_line_error(helio("subscriptions", "forget", "nothing", "pager"), 3)
    assert "has no subscription 'other'" in one_line_error(helio("subscriptions", "forget", "numbers", "other"), 3)
