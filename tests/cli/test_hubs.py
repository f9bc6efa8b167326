"""``helio pub --hub`` and ``helio read --hub``: no data directory, a certificate instead."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from heliograph.cli import hubs
from heliograph.client import awaited
from tests.cli.harness import Child, Helio, helio_in, one_line_error
from tests.client.conftest import TOOL, Hub
from tests.federation.stations import payloads


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    (tmp_path / "net").mkdir()
    net = Hub(tmp_path / "net")
    net.station("hub", peers=[TOOL])
    return net


@pytest.fixture
def helio(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Helio:
    return helio_in(tmp_path / "empty", monkeypatch)


def certificates(hub: Hub) -> list[str]:
    tls = hub.tls()
    return ["--cert", str(tls["cert"]), "--cert-key", str(tls["key"]), "--ca", str(tls["ca"]), "--crl", str(tls["crl"])]


def at(hub: Hub) -> list[str]:
    return ["--hub", f"localhost:{hub.port('hub')}", *certificates(hub)]


def test_publishing_and_reading_at_a_hub(hub: Hub, helio: Helio) -> None:
    with hub.open("hub"):
        assert "published to alerts at offset 0" in helio("pub", "alerts", "hello", "--key", "k", *at(hub)).stdout
        assert helio("pub", "alerts", *at(hub), input='one\n{"n": 2}\n').exit_code == 0
        result = helio("read", "alerts", "--json", *at(hub))
        found = [json.loads(line) for line in result.stdout.splitlines()]
        assert [one["data"] for one in found] == ["hello", "one", {"n": 2}]
        assert [(one["partition"], one["offset"], one["source"]) for one in found] == [(0, n, "tool") for n in range(3)]
        few = helio("read", "alerts", "--where", "data.n>=2", "--where", "source=tool", *at(hub), "--json").stdout
        assert [json.loads(line)["offset"] for line in few.splitlines()] == [2]
        assert "hello" in helio("read", "alerts", "--limit", 1, *at(hub)).stdout
        assert helio("read", "alerts", "--start", 1, "--end", 2, *at(hub), "-o", "raw").stdout.count("\n") == 1
    assert payloads(hub.path("hub"), "alerts") == ["hello", "one", {"n": 2}]


def test_certificates_come_from_the_configuration_too(hub: Hub, helio: Helio) -> None:
    config = hub.station("tool")
    address = f"localhost:{hub.port('hub')}"
    with hub.open("hub"):
        assert helio("--config", config, "pub", "alerts", "hello", "--hub", address).exit_code == 0
        assert "hello" in helio("--config", config, "read", "alerts", "--hub", address).stdout
    assert not hub.path("tool").exists()


def test_what_is_not_allowed_is_one_line(hub: Hub, helio: Helio) -> None:
    with hub.open("hub"):
        assert "not allowed to publish 'secrets'" in one_line_error(helio("pub", "secrets", "x", *at(hub)), 1)
        assert "not allowed to subscribe 'secrets'" in one_line_error(helio("read", "secrets", *at(hub)), 1)
        assert "there is no channel" in one_line_error(helio("read", "alerts", *at(hub)), 3)


def test_options_that_do_not_fit(hub: Hub, helio: Helio) -> None:
    for arguments, words in (
        (["pub", "alerts", "x", "--cert", "a.crt"], "--cert is for --hub"),
        (["read", "alerts", "--cert-key", "a.key"], "--cert-key is for --hub"),
        (["pub", "alerts", "x", "--hub", "localhost:1"], "tls lacks cert, key, ca"),
        (["pub", "alerts", "x", "--hub", "ftp://localhost", *certificates(hub)], "is not a hub's address"),
        (["read", "alerts", "--hub", "localhost:77400", *certificates(hub)], "is not a hub's address"),
    ):
        result = helio(*arguments)
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    with hub.open("hub"):
        result = helio("pub", "alerts", "x", "--delay", "5s", *at(hub))
        assert (result.exit_code, "need a station to wait in" in result.stderr) == (2, True)
        result = helio("read", "sensors.>", *at(hub))
        assert (result.exit_code, "is not a channel name" in result.stderr) == (2, True)
        assert "but a pattern, and a hub is read one channel at a time" in result.stderr, "it says what to do"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_following_a_hub_until_it_is_told_to_end(hub: Hub, tmp_path: Path, number: signal.Signals) -> None:
    with hub.open("hub") as station:
        station.publish("alerts", "there")
        child = Child(tmp_path / "none", "read", "alerts", "--follow", "--json", *at(hub))
        assert json.loads(child.stdout.readline())["data"] == "there"
        for n in range(3):
            station.publish("alerts", n)
            assert json.loads(child.stdout.readline())["data"] == n
        child.signal(number)
        code, out, err = child.end()
    assert (code, out, err) == (0 if number == signal.SIGTERM else 130, "", "")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_waited_for_is_said_after_a_second(
    hub: Hub, helio: Helio, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr(hubs, "_SILENT_S", 0.05)
    monkeypatch.setattr(awaited, "TIMEOUT_S", 0.5)
    result = helio(*(["--quiet"] if quiet else []), "pub", "alerts", "x", *at(hub))
    said = f"waiting for the hub localhost:{hub.port('hub')}"
    assert (said in result.stderr) is not quiet
    assert "was not reached" in one_line_error(result, 1)


def test_a_hub_that_was_reached_is_waited_for_no_more(hub: Hub, helio: Helio, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[threading.Timer] = []
    start = threading.Timer.start
    monkeypatch.setattr(threading.Timer, "start", lambda timer: (timers.append(timer), start(timer)))
    with hub.open("hub"):
        assert helio("pub", "alerts", "x", *at(hub)).exit_code == 0
        assert [timer.finished.is_set() for timer in timers if timer.interval == hubs._SILENT_S] == [True]
