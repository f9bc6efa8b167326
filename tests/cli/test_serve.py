from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.federation import service
from tests.cli.harness import Child, Helio, error_without, one_line_error, wait_until
from tests.federation.pki import ago
from tests.federation.stations import Net

PEER = {"name": "host1", "publish": ["alerts"], "subscribe": ["commands.host1"]}
LINK = {"hub": "hub", "publish": ["alerts"], "subscribe": ["commands.host1"]}


@pytest.fixture
def net(tmp_path: Path) -> Net:
    """A hub, and a station that dials it; nothing runs yet."""
    found = Net(tmp_path)
    found.station("hub", peers=[PEER])
    found.station("host1", links=[LINK])
    return found


Serve = Callable[..., Child]


@pytest.fixture
def serve(net: Net, spawn: Callable[..., Child]) -> Serve:
    def start(name: str, *args: str) -> Child:
        return spawn("-d", str(net.path(name)), "serve", "-c", str(net.directory / f"{name}.yaml"), *args)

    return start


def lines_until(child: Child, text: str) -> list[str]:
    found: list[str] = []
    while not found or text not in found[-1]:
        line = child.stdout.readline()
        assert line, f"it ended: {''.join(found)} {child.stderr.read()}"
        found.append(line)
    return found


def received(net: Net, name: str, channel: str) -> list[Any]:
    try:
        with hg.open(net.path(name), read_only=True) as station:
            return [message.data for message in station.read(channel)]
    except hg.NotFound:
        return []


# -- serving ------------------------------------------------------------------------------------------------

HANGUP_FIRST = """
import os, signal, sys
from heliograph.cli import serve
from heliograph.cli.main import main
load = serve._certificate
def hang_up(config):
    serve._certificate = load
    os.kill(os.getpid(), signal.SIGHUP)
    return load(config)
serve._certificate = hang_up
main()
"""


def test_a_hangup_while_it_starts_does_not_end_it(net: Net) -> None:
    arguments = ["-d", str(net.path("hub")), "serve", "-c", str(net.directory / "hub.yaml")]
    child = subprocess.Popen([sys.executable, "-c", HANGUP_FIRST, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert any("in use" in line for line in child.stdout)  # noted, and done once the links run
    finally:
        child.terminate()
        child.communicate()
    assert child.returncode == 0


def test_messages_flow_both_ways_and_signals_end_it_in_order(net: Net, serve: Serve, helio: Helio) -> None:
    hub, host1 = serve("hub"), serve("host1")
    shown = "".join(lines_until(hub, "peer host1"))
    assert f"hub in {net.path('hub')}" in shown
    assert f"listens on 127.0.0.1:{net.port('hub')}" in shown
    assert "publish alerts; subscribe commands.host1" in shown
    assert re.fullmatch(
        r"\d{4}-\S+Z info    host1 is connected, from 127.0.0.1:\d+\n", lines_until(hub, "host1 is")[-1]
    )
    lines_until(host1, "is up")
    assert helio("-d", net.path("host1"), "pub", "alerts", "problem").exit_code == 0
    assert helio("-d", net.path("hub"), "pub", "commands.host1", "restart").exit_code == 0
    wait_until(lambda: received(net, "hub", "alerts") == ["problem"])
    wait_until(lambda: received(net, "host1", "commands.host1") == ["restart"])
    wait_until(lambda: helio("-d", net.path("host1"), "links").exit_code == 0)
    host1.signal(signal.SIGINT)
    code, out, err = host1.end()
    assert (code, err) == (130, "")
    assert "ending" in out
    assert "host1 is gone" in lines_until(hub, "host1 is gone")[-1]
    hub.signal(signal.SIGTERM)
    code, out, err = hub.end()
    assert (code, err) == (0, "")
    assert "Traceback" not in out
    assert "not running" in helio("-d", net.path("host1"), "links").stdout


def test_lines_of_json_say_what_happens(net: Net, serve: Serve) -> None:
    hub = serve("hub", "--json")
    first = json.loads(lines_until(hub, "serving")[-1])
    assert (first["station"], first["peers"], first["links"]) == ("hub", ["host1"], [])
    assert first["certificate_days_left"] > 300
    host1 = serve("host1", "--json")
    assert json.loads(lines_until(host1, "serving")[-1])["links"] == [f"localhost:{net.port('hub')}"]
    up = json.loads(lines_until(hub, "link-up")[-1])
    assert (up["about"], up["level"], up["facts"]["peer"]) == ("audit", "info", "host1")
    hub.signal(signal.SIGTERM)
    said = [json.loads(line)["message"] for line in hub.end()[1].splitlines()]
    assert any(text.startswith("ending") for text in said)


def test_a_station_gets_the_name_of_its_certificate(net: Net, serve: Serve) -> None:
    file = net.directory / "host1.yaml"
    said = json.loads(file.read_text())
    del said["name"]
    file.write_text(json.dumps(said))
    assert "host1 in" in lines_until(serve("host1"), "station")[-1]


def test_a_hub_that_is_down_is_said_once_and_costs_nothing(net: Net, serve: Serve, helio: Helio) -> None:
    host1 = serve("host1")
    assert "nobody listens there" in lines_until(host1, "no link to the hub")[-1]
    assert helio("-d", net.path("host1"), "pub", "alerts", "problem").exit_code == 0
    wait_until(lambda: "waiting" in helio("-d", net.path("host1"), "links").stdout)
    found = helio("-d", net.path("host1"), "links", "--json", "-c", net.directory / "host1.yaml")
    assert found.exit_code == 1
    (link,) = json.loads(found.stdout)["links"]
    assert (link["lag_messages"], link["error"]) == (1, "nobody listens there")
    host1.signal(signal.SIGTERM)
    code, out, _ = host1.end()
    assert code == 0
    assert "no link to the hub" not in out, "again and again it is no news"


def test_a_peer_that_is_not_allowed_is_told_and_shown_until_the_rules_change(
    net: Net, serve: Serve, helio: Helio
) -> None:
    net.station("hub", peers=[{"name": "host1"}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    hub, host1 = serve("hub"), serve("host1")
    lines_until(host1, "is up")
    assert helio("-d", net.path("host1"), "pub", "alerts", "problem").exit_code == 0
    assert "alerts" in lines_until(host1, "is parked")[-1]
    wait_until(lambda: "channel alerts is parked" in helio("-d", net.path("host1"), "links").stdout)
    assert helio("-d", net.path("host1"), "links").exit_code == 1
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    hub.signal(signal.SIGHUP)
    wait_until(lambda: received(net, "hub", "alerts") == ["problem"])
    wait_until(lambda: helio("-d", net.path("host1"), "links").exit_code == 0)
    assert "loaded anew" in lines_until(hub, "rules of the links")[-1]


def test_a_hangup_with_a_wrong_configuration_changes_nothing(net: Net, serve: Serve) -> None:
    hub = serve("hub")
    lines_until(hub, "peer host1")
    file = net.directory / "hub.yaml"
    right = file.read_text()
    file.write_text(right.replace('"peers"', '"pears"'))
    hub.signal(signal.SIGHUP)
    assert "hub.peers" in lines_until(hub, "stays as it was")[-1]
    file.write_text(right)
    lines_until(serve("host1"), "is up")
    hub.signal(signal.SIGHUP)
    lines_until(hub, "new TLS files are in use")
    hub.signal(signal.SIGTERM)
    assert hub.end()[0] == 0


def test_a_second_process_stands_by_and_takes_over(net: Net, serve: Serve) -> None:
    first = serve("hub")
    lines_until(first, "peer host1")
    wait_until((net.path("hub") / "links" / "state.json").exists)
    second = serve("hub")
    assert "another process" in lines_until(second, "standing by")[-1]
    first.process.kill()
    lines_until(second, "this process runs the links")
    lines_until(serve("host1"), "is up")


def test_a_certificate_that_ends_soon_is_warned_of(net: Net, serve: Serve) -> None:
    net.pki.issue("hub", "localhost", days=30, clock=ago(26), force=True)
    hub = serve("hub")
    assert "4 days left" in lines_until(hub, "certificate ")[-1]
    assert "warning the certificate 'hub'" in lines_until(hub, "expires in")[-1]


def test_links_that_end_by_themselves_end_the_command(net: Net, helio: Helio, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(service.Federation, "_begin", fail)
    result = helio("-d", net.path("hub"), "serve", "-c", net.directory / "hub.yaml")
    assert "the links ended" in one_line_error(result, 1)
    assert "error   the links ended: RuntimeError: nobody thought of this" in result.stdout


# -- not serving --------------------------------------------------------------------------------------------


def test_nothing_to_serve_says_what_to_write(helio: Helio, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    error = one_line_error(helio("serve"), 2)
    for word in ("hub: {listen:", "links: [{hub:", "tls: {cert:", "--config heliograph.yaml"):
        assert word in error
    assert not data.exists()
    (data.parent / "heliograph.yaml").write_text("name: host1\n")
    assert "there is a heliograph.yaml here" in one_line_error(helio("serve"), 2)


@pytest.mark.parametrize("module", ["picows", "cryptography"])
def test_a_missing_extra_is_one_line_that_says_how_to_install_it(net: Net, module: str) -> None:
    error = error_without(module, "-d", net.path("hub"), "serve", "-c", net.directory / "hub.yaml")
    assert module in error
    assert "pip install 'heliograph[hub]'" in error


def test_missing_and_wrong_certificates_are_one_line(net: Net, helio: Helio) -> None:
    def error(code: int) -> str:
        return one_line_error(helio("-d", net.path("hub"), "serve", "-c", net.directory / "hub.yaml"), code)

    key = net.pki.directory / "hub.key"
    key.rename(key.with_suffix(".away"))
    assert "hub.key" in error(3)
    key.write_bytes((net.pki.directory / "host1.key").read_bytes())
    key.chmod(0o600)
    assert "does not fit" in error(1)
    (net.pki.directory / "hub.crt").write_bytes((net.pki.directory / "host1.crt").read_bytes())
    assert "helio keygen instance hub" in error(2)


def test_a_station_with_the_name_of_nobody_s_certificate_is_not_made(net: Net, helio: Helio) -> None:
    """A station's name is for ever: the next try, with the slip mended, would find a station of another name."""
    config = net.directory / "hub.yaml"
    config.write_text(config.read_text().replace('"name": "hub"', '"name": "hubb"', 1))
    assert "helio keygen instance hubb" in one_line_error(helio("-d", net.path("hub"), "serve", "-c", config), 2)
    assert not net.path("hub").exists()


def test_a_port_that_is_taken_is_one_line(net: Net, helio: Helio) -> None:
    with socket.create_server(("127.0.0.1", net.port("hub"))):
        error = one_line_error(helio("-d", net.path("hub"), "serve", "-c", net.directory / "hub.yaml"), 2)
    assert "in use" in error
    assert str(net.port("hub")) in error
