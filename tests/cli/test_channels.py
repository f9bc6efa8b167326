from __future__ import annotations

import json
from pathlib import Path

import heliograph as hg
from tests.cli.harness import Helio, one_line_error


def test_list_and_show_tell_what_a_channel_holds(helio: Helio, station: hg.Station) -> None:
    station.publish_many("alerts", range(1_234))
    assert "1,234" in helio("channels", "list").stdout
    assert "0 to 1233" in helio("channels", "show", "alerts").stdout
    shown = json.loads(helio("channels", "show", "alerts", "--json").stdout)
    assert (shown["messages"], shown["next"], shown["subscriptions"]) == (1_234, 1_234, [])
    assert shown["effective"]["segment_bytes"] == 64 * 2**20


def test_no_channels_is_no_error(helio: Helio, station: hg.Station) -> None:
    result = helio("channels", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(helio("channels", "list", "--json").stdout) == []


def test_create_and_alter_take_settings_as_people_write_them(helio: Helio, station: hg.Station) -> None:
    assert helio("channels", "create", "logs", "--retention-age", "7d", "--compress").exit_code == 0
    settings = station.channel("logs").settings
    assert (settings.retention_age_s, settings.compress, settings.retention_bytes) == (604_800, True, None)
    helio("channels", "alter", "logs", "--retention-bytes", "10GiB", "--no-compress", "--unset", "retention-age")
    settings = station.channel("logs").settings
    assert (settings.retention_age_s, settings.compress, settings.retention_bytes) == (None, False, 10 * 2**30)


def test_a_channel_of_the_latest_per_key(helio: Helio, station: hg.Station) -> None:
    helio("channels", "create", "prices", "--retention-compact", "--tombstone-grace", "1h")
    settings = station.channel("prices").settings
    assert (settings.retention_compact, settings.tombstone_grace_s) == (True, 3_600)
    assert "retention_compact" in helio("channels", "show", "prices").stdout
    helio("pub", "prices", "null", "--as", "json", "--key", "ACME")
    (message,) = station.read("prices")
    assert message.tombstone
    helio("channels", "alter", "prices", "--no-retention-compact")
    assert station.channel("prices").settings.retention_compact is False


def test_a_setting_that_makes_no_sense_is_refused(helio: Helio, station: hg.Station) -> None:
    assert "retention_age_s" in one_line_error(helio("channels", "create", "x", "--retention-age", "7parsecs"), 2)
    assert "x" not in [info.name for info in station.channels()]


def test_a_channel_is_not_made_twice(helio: Helio, station: hg.Station) -> None:
    helio("channels", "create", "logs")
    assert "there already" in one_line_error(helio("channels", "create", "logs"), 1)


def test_delete_wants_the_name_typed(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", 1)
    for wrong in ("", "\n", "y\n", "alert\n"):
        one_line_error(helio("channels", "delete", "alerts", input=wrong), 1)
    one_line_error(helio("channels", "delete", "alerts", "--yes", "alert"), 1)
    assert [info.name for info in station.channels()] == ["alerts"]
    result = helio("channels", "delete", "alerts", input="alerts\n")
    assert result.exit_code == 0
    assert "deleted channel alerts with 1 message" in result.stdout
    assert station.channels() == []


def test_delete_with_the_name_does_not_ask(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", 1)
    deleted = json.loads(helio("channels", "delete", "alerts", "--yes", "alerts", "--json").stdout)
    assert deleted == {"deleted": "alerts", "messages": 1, "subscriptions": []}


def test_init_names_a_station_and_changes_nothing_the_second_time(helio: Helio, data: Path) -> None:
    assert json.loads(helio("init", "--name", "host1", "--json").stdout)["created"] is True
    assert json.loads(helio("init", "--json").stdout) == {"name": "host1", "path": str(data), "created": False}
    assert "host1" in one_line_error(helio("init", "--name", "host2"), 2)
    one_line_error(helio("init", "--name", "../host"), 2)
