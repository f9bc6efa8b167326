"""Death, cuts and copies: nothing lost, nothing twice, each origin's messages in order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import heliograph as hg
from tests.federation.chaos import Proxy
from tests.federation.stations import ROOT, Net, Process, audited, check_log, lines, payloads, up, wait_for


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def pair(net: Net, hub: str = "hub") -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": hub, "publish": ["alerts"]}])


def all_there(net: Net, said: list[str]) -> bool:
    """Everything that was said to be published is at the hub, once."""
    found = payloads(net.path("hub"), "alerts")
    return set(said) <= set(found)


def finish(net: Net, said: list[str]) -> None:
    """Let both run until the hub has all; then look at the logs."""
    with net.open("hub"), net.open("host1"):
        wait_for(lambda: all_there(net, said))
        # Also what was stored right before a kill, and of which its publisher had not heard yet.
        wait_for(lambda: check_log(net.path("hub"), "alerts") == check_log(net.path("host1"), "alerts"))


@pytest.mark.parametrize("victim", ["hub", "host1"])
def test_sigkill_again_and_again(net: Net, victim: str) -> None:
    kill_often(net, victim, rounds=4)


@pytest.mark.prove
@pytest.mark.parametrize("victim", ["hub", "host1", "both"])
def test_sigkill_very_often(net: Net, victim: str) -> None:
    kill_often(net, victim, rounds=60)


def kill_often(net: Net, victim: str, rounds: int) -> None:
    pair(net)
    said: list[str] = []
    running: dict[str, Process] = {}
    for number in range(rounds):
        if "hub" not in running:
            running["hub"] = net.run("hub")
        if "host1" not in running:
            running["host1"] = net.run("host1", "alerts", "1000000", f"{number}-")
        until = time.monotonic() + 0.3 + 0.4 * (number % 3)
        while time.monotonic() < until:
            said.append(running["host1"].read())
        for name in ("hub", "host1") if victim == "both" else (victim,):
            if name == "host1":
                said += [text for text in (running["host1"].read() for _ in range(10)) if text]
            running.pop(name).kill()
    for process in running.values():
        process.kill()
    assert len(said) > 50
    finish(net, [text for text in said if text])


def test_connections_that_are_cut_in_the_middle_of_everything(net: Net) -> None:
    cut_often(net, messages=400, seconds=2.0)


@pytest.mark.prove
def test_connections_that_are_cut_for_minutes(net: Net) -> None:
    cut_often(net, messages=20_000, seconds=120.0)


def cut_often(net: Net, messages: int, seconds: float) -> None:
    proxy = Proxy(net.port("hub"), cut_after=(3_000, 60_000))
    pair(net, f"localhost:{proxy.port}")
    try:
        with net.open("hub"), net.open("host1") as host1:
            for number in range(messages):
                host1.publish("alerts", f"{number} {'x' * 300}")
                time.sleep(seconds / messages)
                if number % 50 == 0:
                    proxy.cut()
            proxy.cut_after = (1 << 60, 1 << 61)
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) >= messages, 60)
        assert proxy.cuts > 1
    finally:
        proxy.close()
    assert len(check_log(net.path("hub"), "alerts")) == messages
    assert check_log(net.path("hub"), "alerts") == check_log(net.path("host1"), "alerts")


def test_a_half_open_connection_is_noticed_and_replaced(net: Net) -> None:
    proxy = Proxy(net.port("hub"))
    pair(net, f"localhost:{proxy.port}")
    try:
        with net.open("hub"), net.open("host1") as host1:
            host1.publish("alerts", 1)
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 1)
            wait_for(lambda: up(host1, "hub"))
            proxy.silent.set()
            host1.publish("alerts", 2)
            wait_for(lambda: not up(host1, "hub"))
            assert "nothing was heard" in host1.links()[0].error
            proxy.cut()
            proxy.silent.clear()
            wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 2)
    finally:
        proxy.close()


def test_a_hub_that_stands_still_for_a_while_loses_nothing(net: Net) -> None:
    pair(net)
    hub = net.run("hub")
    with net.open("host1") as host1:
        host1.publish("alerts", 1)
        wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 1)
        hub.child.send_signal(signal.SIGSTOP)
        for number in range(2, 50):
            host1.publish("alerts", number)
        time.sleep(1.0)
        hub.child.send_signal(signal.SIGCONT)
        wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 49)
    assert hub.end() == 0


def test_a_hub_that_was_restored_from_an_old_backup_gets_back_what_it_lost(net: Net) -> None:
    pair(net)
    with net.open("host1") as host1:
        with net.open("hub"):
            host1.publish_many("alerts", ["a", "b"])
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 2)
        shutil.copytree(net.path("hub"), net.directory / "backup")
        with net.open("hub"):
            host1.publish_many("alerts", ["c", "d"])
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 4)
        shutil.rmtree(net.path("hub"))
        shutil.move(net.directory / "backup", net.path("hub"))
        with net.open("hub"):
            host1.publish("alerts", "e")
            wait_for(lambda: payloads(net.path("hub"), "alerts") == ["a", "b", "c", "d", "e"])


def test_a_station_whose_directory_was_wiped_begins_a_new_life(net: Net) -> None:
    pair(net)
    with net.open("hub"):
        with net.open("host1") as host1:
            host1.publish_many("alerts", ["a", "b", "c"])
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 3)
        shutil.rmtree(net.path("host1"))
        with net.open("host1") as host1:
            host1.publish_many("alerts", ["d", "e"])
            wait_for(lambda: payloads(net.path("hub"), "alerts") == ["a", "b", "c", "d", "e"])


@pytest.mark.parametrize("subscribe", [[], ["alerts"]])
def test_a_station_that_was_rolled_back_without_noticing_meets_its_own_messages(net: Net, subscribe: list[str]) -> None:
    """As a snapshot of its file system does: same inode, same machine, older bytes."""
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"], "subscribe": subscribe}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"], "subscribe": subscribe}])
    backup = net.directory / "backup"
    with net.open("host1") as host1:
        host1.publish_many("alerts", ["a", "b"])
        with net.open("hub"):
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 2)
            wait_for(lambda: host1.links()[0].channels and host1.links()[0].lag_messages == 0)
    shutil.copytree(net.path("host1"), backup)
    with net.open("host1") as host1, net.open("hub"):
        host1.publish_many("alerts", ["c", "d"])
        wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 4)
    for file in backup.rglob("*"):
        if file.is_file() and file.name not in ("birth", "head"):
            (net.path("host1") / file.relative_to(backup)).write_bytes(file.read_bytes())
    for head in net.path("host1").rglob("head"):
        head.write_bytes((backup / head.relative_to(net.path("host1"))).read_bytes())
    with net.open("host1", federate=False) as host1:
        before = host1.engine.incarnation("alerts")
        host1.publish("alerts", "e, under a sequence that others know as c")
    with net.open("hub"), net.open("host1") as host1:
        wait_for(lambda: host1.engine.incarnation("alerts") != before)
        host1.publish("alerts", "f")
        wait_for(lambda: "f" in payloads(net.path("hub"), "alerts"))
        wait_for(lambda: any("e, under" in str(data) for data in payloads(net.path("hub"), "alerts")))
    found = payloads(net.path("hub"), "alerts")
    assert sorted(found, key=str)[:4] == ["a", "b", "c", "d"] and len(found) == 6
    assert "elsewhere" in audited(net.path("host1"), "incarnation")[-1]["why"]


def test_a_forked_child_leaves_the_links_to_its_parent(net: Net) -> None:
    pair(net)
    with net.open("hub") as hub, net.open("host1") as host1:
        wait_for(lambda: up(host1, "hub") and up(hub, "host1"))
        child = os.fork()
        if child == 0:
            try:
                try:
                    host1.publish("alerts", "from the child")
                except hg.Forked:
                    host1.close()
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        host1.publish("alerts", "from the parent")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["from the parent"])
        wait_for(lambda: up(host1, "hub") and host1.links()[0].reconnects == 0)


def test_a_child_that_lives_on_keeps_no_connection_of_its_dead_parent(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}], hub={"heartbeat_s": 60})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], hub={"heartbeat_s": 60})
    survivor, tell = os.pipe()
    with net.open("hub"):
        child = os.fork()
        if child == 0:  # opens, forks a grandchild that lives on, and dies
            try:
                station = net.open("host1")
                wait_for(lambda: up(station, "hub"))
                if (grandchild := os.fork()) == 0:
                    time.sleep(60)
                os.write(tell, str(grandchild).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        wait_for(lambda: audited(net.path("hub"), "link-down"), 20)
        os.kill(int(os.read(survivor, 20)), signal.SIGKILL)
    for end in (survivor, tell):
        os.close(end)


def test_closing_says_nothing_and_leaves_no_thread(net: Net) -> None:
    pair(net)
    hub = net.run("hub")
    host1 = net.run("host1", "alerts", "100", "x")
    wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 100)
    assert host1.end() == 0 and hub.end() == 0
    assert host1.complaints() == hub.complaints() == ""
    assert len(check_log(net.path("hub"), "alerts")) == 100


@pytest.mark.parametrize("pause_s", [0.0, 0.1, 0.3])
def test_a_program_that_ends_without_closing_its_station_ends_quietly(net: Net, pause_s: float) -> None:
    pair(net)
    program = (
        "import sys, time, heliograph as hg; station = hg.open(config=sys.argv[1])\n"
        f"for number in range(500): station.publish('alerts', number)\ntime.sleep({pause_s})"
    )
    with net.open("hub"):
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-c", program, str(net.directory / "host1.yaml")],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")


def test_messages_that_were_trimmed_here_are_no_sign_of_another_life(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    small = {"segment_bytes": 4096, "retention_bytes": 4096, "holdback_bytes": 1}
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], storage=small)
    with net.open("host1") as host1:
        with net.open("hub"):
            for number in range(60):
                host1.publish("alerts", number)
            wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 60)
        before = host1.engine.incarnation("alerts")
        for _ in range(60):
            host1.publish("alerts", "x" * 300)
        host1.trim()
        assert host1.engine.limit("alerts", 0).first > 60
        with net.open("hub"):
            host1.publish("alerts", "after")
            wait_for(lambda: "after" in payloads(net.path("hub"), "alerts"))
        assert host1.engine.incarnation("alerts") == before
    assert payloads(net.path("hub"), "alerts")[:60] == list(range(60))
