from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.station.links import LinkSync
from tests.cli.harness import Child, Helio, one_line_error
from tests.cli.linking import Runner, acknowledged, link, write_state


@pytest.fixture
def runner(station: hg.Station, data: Path) -> Iterator[Runner]:
    """The links are run by some process."""
    found = Runner(data)
    yield found
    found.end()


def test_a_station_without_links_says_so(helio: Helio, station: hg.Station) -> None:
    result = helio("links")
    assert result.exit_code == 0
    assert "no links" in result.stdout
    assert json.loads(helio("links", "--json").stdout)["links"] == []


def test_everything_that_is_known_of_a_link_is_shown(helio: Helio, data: Path, runner: Runner) -> None:
    write_state(
        data,
        link("hub", lag_messages=12_345, lag_s=4.2, in_flight_bytes=2048, round_trip_ms=0.73, reconnects=3,
             certificate_days_left=12.0, channels=["alerts"]),
        link("host1", "peer", state="absent"),
    )  # fmt: skip
    result = helio("links")
    assert result.exit_code == 0, "a peer that is not here is no fault"
    assert "1 of 2 links up" in result.stdout
    for shown in ("-> hub", "up", "2.0 h", "12,345", "4.2 s", "2.0 KiB", "0.7 ms", "12 d", "<- host1", "absent"):
        assert shown in result.stdout
    found = json.loads(helio("links", "--json").stdout)
    assert found["running"] is True
    assert found["links"][0]["lag_messages"] == 12_345
    assert found["links"][0]["certificate_days_left"] == 12.0
    assert found["links"][1]["state"] == "absent"


@pytest.mark.parametrize("state", ["connecting", "waiting", "refused"])
def test_a_link_that_is_down_is_exit_code_1_with_the_reason(
    helio: Helio, data: Path, runner: Runner, state: str
) -> None:
    write_state(data, link("hub", state=state, error="nobody \x1b[31m listens there"))
    result = helio("links")
    assert result.exit_code == 1
    assert "hub: nobody \\x1b[31m listens there" in result.stdout
    assert helio("links", "--json").exit_code == 1


def test_a_parked_channel_is_exit_code_1_and_named_with_its_reason(helio: Helio, data: Path, runner: Runner) -> None:
    write_state(data, link("hub", parked={"secrets": "host1 is not allowed to publish 'secrets'"}, refused=2))
    result = helio("links")
    assert result.exit_code == 1
    assert "channel secrets is parked: host1 is not allowed to publish 'secrets'" in result.stdout
    assert "2 messages refused" in result.stdout


def test_the_last_sync_of_a_link_is_shown(helio: Helio, data: Path, runner: Runner) -> None:
    ago = datetime.now(UTC) - timedelta(seconds=90)
    synced = LinkSync(time=ago, channels=3, fetched=1200, sent=4, left={"alerts": "2 of host2.k are lacking"})
    write_state(data, link("hub", synced=synced), link("hub2", synced=LinkSync(time=ago, error="it was cut")))
    result = helio("links")
    assert result.exit_code == 0
    assert "hub: synced 1.5 min ago, 3 channels: 1,200 messages fetched, 4 sent" in result.stdout
    assert "hub: channel alerts is not equal: 2 of host2.k are lacking" in result.stdout
    assert "hub2: the sync ended: it was cut" in result.stdout
    assert json.loads(helio("links", "hub", "--json").stdout)["links"][0]["synced"]["fetched"] == 1200


def test_one_link_is_asked_for_by_name_or_address(helio: Helio, data: Path, runner: Runner) -> None:
    write_state(data, link("hub"), link("host1", "peer", state="absent"))
    assert helio("links", "hub", "--quiet").exit_code == 0
    assert helio("links", "hub", "--quiet").stdout == ""
    assert "<- host1" not in helio("links", "hub.example:7740").stdout
    assert helio("links", "host1").exit_code == 1, "whoever asks for a peer by name wants it to be here"
    assert "there are: host1, hub" in one_line_error(helio("links", "nobody"), 3)


def test_what_a_dead_process_left_is_not_taken_for_true(
    helio: Helio, station: hg.Station, data: Path, runner: Runner
) -> None:
    write_state(data, link("hub", in_flight_bytes=7))
    assert helio("links").exit_code == 0
    runner.end()
    result = helio("links")
    assert result.exit_code == 1
    assert "not running" in result.stdout
    found = json.loads(helio("links", "--json").stdout)
    assert found["running"] is False
    assert (found["links"][0]["state"], found["links"][0]["in_flight_bytes"]) == ("stopped", 0)


def test_the_lag_of_what_is_not_up_is_counted_in_the_log(
    helio: Helio, station: hg.Station, data: Path, runner: Runner
) -> None:
    station.publish_many("alerts", range(10))
    acknowledged(station, "hub", "alerts", {0: 7})
    write_state(data, link("hub", state="waiting", lag_messages=0), link("other", lag_messages=99))
    hub, other = json.loads(helio("links", "--json").stdout)["links"]
    assert hub["lag_messages"] == 3
    assert hub["lag_s"] > 0
    assert other["lag_messages"] == 99, "what is up knows best"
    write_state(data, link("hub", lag_messages=5, waiting=["alerts", "elsewhere"]))
    assert json.loads(helio("links", "--json").stdout)["links"][0]["lag_messages"] == 8, "what does not flow waits, too"
    write_state(data, link("hub", state="waiting"))
    acknowledged(station, "hub", "alerts", {0: 10})
    assert json.loads(helio("links", "--json").stdout)["links"][0]["lag_messages"] == 0


def test_positions_of_a_channels_former_life_do_not_count(
    helio: Helio, station: hg.Station, data: Path, runner: Runner
) -> None:
    station.publish("alerts", 1)
    acknowledged(station, "hub", "alerts", {0: 2})
    station.delete_channel("alerts")
    station.publish_many("alerts", range(3))
    write_state(data, link("hub", state="waiting"))
    assert json.loads(helio("links", "--json").stdout)["links"][0]["lag_messages"] == 3


CONFIGURED = """
links: [{hub: "hub.example:7740", publish: [alerts]}]
hub: {listen: ":7740", peers: [{name: host2}]}
tls: {cert: a.crt, key: a.key, ca: ca.crt}
"""


def test_links_that_were_never_run_are_known_from_the_configuration(
    helio: Helio, station: hg.Station, data: Path, tmp_path: Path
) -> None:
    station.publish_many("alerts", range(5))
    station.publish("private", 1)
    file = tmp_path / "heliograph.yaml"
    file.write_text(CONFIGURED)
    result = helio("links", "-c", file, "--json")
    assert result.exit_code == 1
    hub, peer = json.loads(result.stdout)["links"]
    assert (hub["address"], hub["state"], hub["lag_messages"]) == ("hub.example:7740", "stopped", 5)
    assert (peer["name"], peer["state"], peer["lag_messages"]) == ("host2", "stopped", 0)
    assert "-> hub.example:7740" in helio("links", "-c", file).stdout
    write_state(data, link("hub"), link("host2", "peer"))
    assert len(json.loads(helio("links", "-c", file, "--json").stdout)["links"]) == 2, "each only once"


def test_what_is_kept_on_disk_for_a_link_that_is_away_is_said(
    helio: Helio, station: hg.Station, tmp_path: Path
) -> None:
    station.create_channel("alerts", segment_bytes=4096)
    for number in range(60):
        station.publish("alerts", f"{number} {'x' * 200}")
    file = tmp_path / "heliograph.yaml"
    file.write_text(CONFIGURED + "storage: {retention_bytes: 4096}\n")
    assert "hub.example:7740: retention keeps" in helio("links", "-c", file).stdout
    assert json.loads(helio("links", "-c", file, "--json").stdout)["links"][0]["held_bytes"] > 10_000
    findings = {one["name"]: one for one in json.loads(helio("doctor", "-c", file, "--json").stdout)["findings"]}
    assert findings["links"]["status"] == "warn" and "storage.holdback_bytes" in findings["links"]["advice"]
    assert findings["certificates"]["status"] == "bad", "the files are not there"
    assert "retention keeps" not in helio("links").stdout, "no links are configured"


def test_a_state_file_that_cannot_be_read_is_as_good_as_none(helio: Helio, data: Path, runner: Runner) -> None:
    (data / "links" / "state.json").write_text('{"pid": 1, "ti')
    assert helio("links").exit_code == 0


def test_certificates_that_end_soon_are_shown_in_hours(helio: Helio, data: Path, runner: Runner) -> None:
    write_state(data, link("hub", certificate_days_left=0.5, since=datetime.now(UTC) + timedelta(seconds=5)))
    shown = helio("links").stdout
    assert "12 h" in shown
    assert "-5" not in shown, "a clock that was set back makes no negative time"


def test_watching_prints_a_line_for_every_look_and_ends_in_order(
    station: hg.Station, data: Path, runner: Runner, spawn: Callable[..., Child]
) -> None:
    write_state(data, link("hub"))
    child = spawn("links", "--watch", "--interval", "0.1", "--json")
    first = json.loads(child.stdout.readline())
    assert first["links"][0]["state"] == "up"
    runner.end()
    while json.loads(child.stdout.readline())["links"][0]["state"] == "up":
        pass
    child.signal(signal.SIGTERM)
    code, _, err = child.end()
    assert (code, err) == (0, "")
