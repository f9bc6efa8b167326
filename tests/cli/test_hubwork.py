"""``helio sub --hub``, ``helio request --hub``, ``helio reply --hub``: work for a hub without a data directory."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import Child, Helio, helio_in, one_line_error, wait_until
from tests.client.conftest import Hub

TOOL = {"name": "tool", "publish": ["prices"], "subscribe": ["jobs", "prices"], "reply": ["prices"]}


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    (tmp_path / "net").mkdir()
    net = Hub(tmp_path / "net")
    net.station("hub", peers=[TOOL, {"name": "nobody"}])
    return net


@pytest.fixture
def helio(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Helio:
    return helio_in(tmp_path / "empty", monkeypatch)


def at(hub: Hub, name: str = "tool") -> list[str]:
    tls = hub.tls(name)
    files = [
        "--cert",
        str(tls["cert"]),
        "--cert-key",
        str(tls["key"]),
        "--ca",
        str(tls["ca"]),
        "--crl",
        str(tls["crl"]),
    ]
    return ["--hub", f"localhost:{hub.port('hub')}", *files]


def done(station: hg.Station) -> int:
    return sum(part.offset for group in station.groups("jobs") for part in group.partitions)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_of_a_group_prints_until_it_is_told_to_end(hub: Hub, tmp_path: Path, number: signal.Signals) -> None:
    with hub.open("hub") as station:
        station.publish_many("jobs", range(3))
        child = Child(
            tmp_path / "none", "sub", "jobs", "--name", "w", "--group", "--start", "first", "--json", *at(hub)
        )
        assert [json.loads(child.stdout.readline())["data"] for _ in range(3)] == [0, 1, 2]
        station.publish("jobs", 3)
        assert json.loads(child.stdout.readline())["data"] == 3
        child.signal(number)
        code, out, err = child.end()
        assert done(station) == 4, "what was printed is committed"
    assert (code, out) == (0 if number == signal.SIGTERM else 130, "")
    assert "subscribed to jobs as w at hub" in err
    assert "4 messages delivered" in err
    assert not (tmp_path / "none").exists()


def test_a_command_finishes_its_message_and_failures_are_the_hubs(hub: Hub, tmp_path: Path) -> None:
    book, begun = tmp_path / "book", tmp_path / "begun"
    command = f"echo begun >> {begun}; sleep 1; grep -q bad && exit 7; echo done >> {book}"
    with hub.open("hub") as station:
        child = Child(
            tmp_path / "none", "sub", "jobs", "--name", "w", "--queue", "--exec", command, "--max-retries", "0",
            "--start", "first", *at(hub),
        )  # fmt: skip
        wait_until(lambda: station.queues("jobs") and station.queues("jobs")[0].workers)
        station.publish_many("jobs", ["bad", "good"])
        wait_until(lambda: "jobs.dead-letter" in [info.name for info in station.channels() if info.messages])
        (letter,) = station.read("jobs.dead-letter")
        assert letter.data["error_type"] == "heliograph.cli.exec.CommandFailed"
        wait_until(lambda: begun.read_text().count("begun") == 2)
        child.signal(signal.SIGTERM)
        code, _, err = child.end()
        assert (code, "1 message delivered" in err) == (0, True)
        assert book.read_text() == "done\n"
        assert station.queue_info("jobs", "w").depth == 0


def test_asking_and_answering_at_a_hub(hub: Hub, helio: Helio, tmp_path: Path) -> None:
    with hub.open("hub") as station:
        child = Child(tmp_path / "none", "reply", "prices", "--exec", "tr a-z A-Z | grep -o LAMP", *at(hub))
        assert "replying to requests on prices at hub" in child.stderr.readline()
        assert helio("request", "prices", "lamp", *at(hub)).stdout == "LAMP\n"
        assert station.request("prices", "lamp", timeout=30).data == "LAMP"
        assert "gave up" in one_line_error(helio("request", "prices", "sofa", *at(hub)), 1)
        child.signal(signal.SIGTERM)
        assert child.end()[0] == 0
        assert "nobody replied" in one_line_error(helio("request", "prices", "lamp", "--timeout", "0.3s", *at(hub)), 4)


def test_what_does_not_fit_is_said(hub: Hub, helio: Helio) -> None:
    with hub.open("hub"):
        for arguments, words in (
            (["sub", "jobs", "--exec", "cat", *at(hub)], "needs --name"),
            (["sub", "jobs", "--count", 3, *at(hub)], "--count and --where"),
            (["reply", "prices", "--exec", "cat", "--concurrency", 3, *at(hub)], "need --name"),
            (["sub", "jobs", "--ca", "x"], "--ca is for --hub"),
        ):
            result = helio(*arguments)
            assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
        refused = helio("sub", "jobs", "--name", "w", "--group", *at(hub, "nobody"))
        assert "nobody is not allowed to subscribe 'jobs'" in one_line_error(refused, 1)
