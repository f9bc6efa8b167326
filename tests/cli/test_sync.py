"""``helio sync``: what it says, and its exit codes. What it does: tests/federation/test_sync.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from heliograph.cli.main import cli
from tests.arrivals import lines as made
from tests.cli.harness import one_line_error
from tests.federation.stations import Net, payloads

Helio = Callable[..., Result]
RULE = {
    "name": "south",
    "publish": ["alerts", "logs"],
    "subscribe": ["alerts", "alrets", "nothing.>"],
    "relay": ["host2"],
}


@pytest.fixture
def net(tmp_path: Path) -> Net:
    found = Net(tmp_path)
    found.station("north", peers=[RULE])
    found.station("south")
    with found.open("south", federate=False) as station:
        station.publish_many("alerts", ["a", "b"])
    return found


@pytest.fixture
def helio(net: Net) -> Helio:
    def run(*args: object) -> Result:
        return CliRunner().invoke(cli, ["-c", str(net.directory / "south.yaml"), *map(str, args)])

    return run


def test_it_says_who_lacks_what_and_what_was_done(net: Net, helio: Helio) -> None:
    with net.open("north") as north:
        north.publish("alerts", "c")
        north.engine.relayed.arrive("alerts", made(0, 1200))
        dry = helio("sync", net.address("north"), "alerts", "--dry-run")
        assert dry.exit_code == 6 and "1 channel compared with north: not equal" in dry.stdout
        rows = [line.split() for line in dry.stdout.splitlines()]
        assert ["alerts", "host2.aaaaaa", "1,200"] in [row[:3] for row in rows]
        assert payloads(net.path("north"), "alerts")[:1] == ["c"] and len(payloads(net.path("south"), "alerts")) == 2
        done = helio("sync", net.address("north"), "alerts")
        assert done.exit_code == 0 and "1 channel synced with north: 1,201 messages fetched, 2 sent" in done.stdout
        again = helio("sync", net.address("north"), "alerts")
        assert (again.exit_code, again.stdout) == (0, "1 channel synced with north: nothing to do\n")
        dry = helio("sync", net.address("north"), "alerts", "--dry-run")
        assert (dry.exit_code, dry.stdout) == (0, "1 channel compared with north: nothing is lacking\n")
        assert helio("sync", net.address("north"), "alerts", "--quiet").stdout == ""
    assert payloads(net.path("north"), "alerts")[-2:] == ["a", "b"]


def test_what_cannot_be_made_equal_is_exit_code_6_with_the_reason(net: Net, helio: Helio) -> None:
    with net.open("south", federate=False) as station:
        station.engine.relayed.arrive("alerts", made(0, 3, "host3.bbbbbb"))
        station.publish("secrets", 1)
    with net.open("north") as north:
        north.publish("logs", "n")
        result = helio("sync", net.address("north"), "alerts", "logs", "secrets")
        assert result.exit_code == 6
        assert (
            "alerts: 3 messages of host3.bbbbbb cannot come there, not allowed: "
            "south is not allowed to relay messages of 'host3' (rules of north)\n"
        ) in result.stdout
        assert "cannot come here, not allowed: south is not allowed to subscribe 'logs'" in result.stdout
        assert "secrets: not compared, not allowed: south is not allowed to publish or subscribe" in result.stdout
        assert result.stdout.count("secrets") == 2
        assert "3 channels synced with north: 0 messages fetched, 2 sent; not equal" in result.stdout
        assert "has a channel logs" in one_line_error(helio("sync", net.address("north"), "logs", "--push"), 3)
        assert "nothing could be done; not equal" in helio("sync", net.address("north"), "logs", "--pull").stdout


def test_one_json_document(net: Net, helio: Helio) -> None:
    with net.open("north"):
        report: dict[str, Any] = json.loads(helio("sync", net.address("north"), "alerts", "--push", "--json").stdout)
        assert (report["hub"], report["equal"], report["fetched"], report["sent"]) == ("north", True, 0, 2)
        (channel,) = report["channels"]
        assert (channel["channel"], channel["left"]) == ("alerts", [])
        assert [(lack["here"], lack["there"]) for lack in channel["lacking"]] == [(0, 2)]


def test_a_hub_that_was_linked_is_known_by_its_name(net: Net, helio: Helio) -> None:
    net.station("south", links=[{"hub": "north", "publish": ["alerts"]}])
    with net.open("north"):
        assert helio("sync", net.address("north")).exit_code == 0
        with net.open("south") as south:
            while not (net.path("south") / "links" / "hub" / "north" / "address").exists():
                assert south.links()
        assert "nothing to do" in helio("sync", "north").stdout


def test_used_wrongly(net: Net, helio: Helio) -> None:
    both = helio("sync", net.address("north"), "alerts", "--pull", "--push")
    assert both.exit_code == 2 and "--pull is one direction" in both.output
    assert "name the channels to sync" in one_line_error(helio("sync", net.address("north")), 2)
    assert "alerts..x" in one_line_error(helio("sync", net.address("north"), "alerts..x"), 2)
    assert "wss://HOST:PORT" in one_line_error(helio("sync", "http://north", "alerts"), 2)
    unreached = helio("sync", net.address("north"), "alerts", "--timeout", 0.2)
    assert "was not reached: nobody listens there" in one_line_error(unreached, 1)
    with net.open("north"):
        for names in (["alerts", "alrets"], ["alrets", "--dry-run"]):
            missing = one_line_error(helio("sync", net.address("north"), *names), 3)
            assert "neither south nor north has a channel alrets" in missing
        assert "has a channel nothing.>" in one_line_error(helio("sync", net.address("north"), "nothing.>"), 3)
    net.pki.issue("stranger")
    settings = {**net.settings["south"]["tls"], "cert": str(net.pki.directory / "stranger.crt")}
    net.station("south", tls={**settings, "key": str(net.pki.directory / "stranger.key")})
    assert "they must have one name" in one_line_error(helio("sync", net.address("north"), "alerts"), 2)
    net.station("south", tls={})
    assert "set tls.cert, tls.key, tls.ca" in one_line_error(helio("sync", net.address("north"), "alerts"), 2)
