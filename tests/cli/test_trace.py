from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import heliograph as hg
from heliograph.seen import SeenSet
from tests.arrivals import HOST2, line
from tests.cli.harness import Helio, one_line_error
from tests.cli.linking import acknowledged


def copies(helio: Helio, *args: object) -> list[dict[str, Any]]:
    result = helio("trace", *args, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["copies"]
    return found


def test_a_message_that_was_published_here(helio: Helio, station: hg.Station) -> None:
    station.publish_many("alerts", range(3))
    receipt = station.publish("alerts", "system problem!")
    (copy,) = copies(helio, receipt.id)
    assert (copy["station"], copy["channel"], copy["partition"], copy["offset"]) == ("host1", "alerts", 0, 3)
    assert (copy["origin"], copy["origin_partition"], copy["origin_offset"]) == ("host1", 0, 3)
    assert copy["own"] is True
    assert copy["appended"][:10] == copy["published"][:10]
    assert copy["incarnation"] == station.engine.incarnation("alerts")
    shown = helio("trace", receipt.id).stdout
    assert "host1: alerts/0 offset 3" in shown
    assert "published here" in shown


def test_a_message_of_another_station_keeps_its_origin(helio: Helio, station: hg.Station, tmp_path: Path) -> None:
    station.publish("alerts", 1)
    station.engine.relayed.arrive("alerts", [line(0), line(1)])
    message = list(station.read("alerts"))[2]
    (copy,) = copies(helio, message.id)
    assert (copy["offset"], copy["own"], copy["origin"], copy["origin_offset"]) == (2, False, "host2", 1)
    assert copy["incarnation"] == HOST2.rpartition(".")[2]
    assert copy["appended"] > copy["published"], "it came later than it was published"
    assert "over a link" in helio("trace", message.id).stdout
    file = tmp_path / "heliograph.yaml"
    file.write_text("""
hub:
  listen: ":7740"
  peers:
    - {name: host2, publish: [alerts]}
    - {name: relay, publish: [">"], relay: [host3, host2]}
    - {name: host3, publish: [alerts]}
    - {name: host4, publish: [other], relay: [host2]}
links: [{hub: "far.example:7740", subscribe: [alerts]}, {hub: "near.example:7740", publish: [alerts]}]
tls: {cert: a.crt, key: a.key, ca: ca.crt}
""")
    (copy,) = copies(helio, message.id, "-c", file)
    assert copy["through"] == ["host2", "relay", "far.example:7740"]
    assert "from host2 or relay or far.example:7740" in helio("trace", message.id, "-c", file).stdout


def test_which_links_have_it(helio: Helio, station: hg.Station) -> None:
    receipts = station.publish_many("alerts", range(3))
    station.engine.relayed.arrive("alerts", [line(0)])
    origin = f"host1.{station.engine.incarnation('alerts')}"
    spared = SeenSet()
    spared.add(origin, 0, 1, 2)
    acknowledged(station, "hub", "alerts", {0: 2})
    acknowledged(station, "picky", "alerts", {0: 2}, "peer", spared)
    acknowledged(station, "host2", "alerts", {0: 9}, "peer")
    station.publish("other", 1)
    acknowledged(station, "elsewhere", "other", {0: 9})

    def states(message_id: str) -> dict[str, str]:
        (copy,) = copies(helio, message_id)
        return {one["station"]: one["state"] for one in copy["onward"]}

    assert states(receipts[0].id) == {"hub": "acknowledged", "picky": "acknowledged", "host2": "acknowledged"}
    assert states(receipts[1].id) == {"hub": "acknowledged", "picky": "not sent", "host2": "acknowledged"}
    assert states(receipts[2].id) == {"hub": "waiting", "picky": "waiting", "host2": "acknowledged"}
    assert states("host2.aaaaaa-0-0") == {"hub": "waiting", "picky": "waiting", "host2": "came from there"}
    shown = helio("trace", receipts[1].id).stdout
    assert "to hub hub: has it" in shown
    assert "to peer picky: will not be sent it" in shown


def test_positions_of_a_channels_former_life_prove_nothing(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", 1)
    acknowledged(station, "hub", "alerts", {0: 7})
    station.delete_channel("alerts")
    receipt = station.publish("alerts", 2)
    (copy,) = copies(helio, receipt.id)
    assert [one["state"] for one in copy["onward"]] == ["waiting"]


def test_other_directories_are_looked_at_too_and_copies_are_in_order_of_time(
    helio: Helio, station: hg.Station, tmp_path: Path
) -> None:
    receipt = station.publish("alerts", "x")
    raw = next(iter(station.read("alerts"))).raw
    with hg.open(tmp_path / "hub", name="hub") as hub:
        hub.publish("alerts", 0)
        hub.engine.relayed.arrive("alerts", [raw])
    found = copies(helio, receipt.id, "--also", tmp_path / "hub")
    assert [(copy["station"], copy["offset"], copy["own"]) for copy in found] == [("host1", 0, True), ("hub", 1, False)]
    assert "hub" in one_line_error(helio("trace", receipt.id, "--also", tmp_path / "nowhere" / "hub"), 3)


def test_the_same_id_in_several_channels_is_found_in_each(helio: Helio, station: hg.Station) -> None:
    one = line(0)
    station.engine.relayed.arrive("alerts", [one])
    station.engine.relayed.arrive("copies", [line(0, channel="copies")])
    assert [copy["channel"] for copy in copies(helio, "host2.aaaaaa-0-0")] == ["alerts", "copies"]
    assert [copy["channel"] for copy in copies(helio, "host2.aaaaaa-0-0", "--channel", "copies")] == ["copies"]


def test_a_message_that_is_not_here_is_exit_code_1(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", 1)
    result = helio("trace", "0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55")
    assert result.exit_code == 1
    assert "there is no message" in result.stderr
    missing = helio("trace", "nothing", "--json")
    assert (missing.exit_code, json.loads(missing.stdout)["copies"]) == (1, [])
    assert helio("trace", "nothing", "--channel", "nowhere").exit_code == 1
