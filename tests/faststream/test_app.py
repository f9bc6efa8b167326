"""Whole applications, as people run them: processes, signals, and the documents they generate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg

PATIENCE_S = 60.0
APP = """
import os

from faststream import FastStream
from pydantic import BaseModel

from heliograph.faststream import HeliographBroker

broker = HeliographBroker("data", name="host1")
app = FastStream(broker)


class Order(BaseModel):
    id: int


@broker.subscriber("orders", name="billing", queue=True, start="first", description="bills")
@broker.publisher("invoices", title="Invoices")
async def bill(order: Order) -> dict[str, int]:
    if order.id < 0:
        raise SystemExit("enough")
    if order.id == 13 and not os.path.exists("unlucky"):
        open("unlucky", "w").close()
        os.kill(os.getpid(), 9)
    return {"order": order.id, "process": os.getpid()}


@broker.subscriber("logs.{level}")
async def note(text: str) -> None: ...
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(home), *filter(None, sys.path)])}
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "faststream", *arguments], cwd=home, env=env, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )
        )  # fmt: skip
        return running[-1]

    yield begin
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its workers, too
        process.communicate()


def eventually(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return result


def invoices(station: hg.Station) -> list[Any]:
    if "invoices" not in {info.name for info in station.channels()}:
        return []
    return [message.data for message in station.read("invoices")]


def publish_orders(station: hg.Station, count: int) -> None:
    station.publish_many("orders", [{"id": number} for number in range(count)])


def test_an_application_runs_until_it_is_told_to_end(home: Path, start: Start) -> None:
    process = start("run", "shop:app")
    with hg.open(home / "data", name="host1") as station:
        publish_orders(station, 5)
        eventually(lambda: len(invoices(station)) == 5)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, printed
        assert "shut down gracefully" in printed
        assert [info.live for info in station.subscriptions("orders")] == [False]
        (info,) = station.queues()
        assert (info.depth, info.in_flight) == (0, 0)


def test_exit_in_a_handler_ends_the_application_and_keeps_the_message(home: Path, start: Start) -> None:
    with hg.open(home / "data", name="host1") as station:
        station.publish("orders", {"id": -1})
        process = start("run", "shop:app")
        printed, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, printed
        (info,) = station.queues()
        assert info.depth == 1


def test_workers_share_a_queue_and_one_that_is_killed_loses_nothing(home: Path, start: Start) -> None:
    process = start("run", "shop:app", "--workers", "2")
    with hg.open(home / "data", name="host1") as station:
        eventually(lambda: [len(info.workers) for info in station.queues()] == [2])
        publish_orders(station, 40)
        eventually(lambda: {one["order"] for one in invoices(station)} == set(range(40)))
        assert (home / "unlucky").exists()
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=PATIENCE_S)
        assert len({one["process"] for one in invoices(station)}) >= 2, printed
        eventually(lambda: [(info.depth, info.in_flight) for info in station.queues()] == [(0, 0)])


def test_the_document_describes_channels_and_payloads(home: Path, start: Start) -> None:
    process = start("docs", "gen", "shop:app", "--out", "shop.json")
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, printed
    document = json.loads((home / "shop.json").read_text())
    assert document["asyncapi"].startswith("3.")
    (server,) = document["servers"].values()
    assert (server["host"], server["pathname"], server["protocol"]) == ("host1", "/data", "heliograph")
    addresses = {name: channel["address"] for name, channel in document["channels"].items()}
    assert addresses == {"orders:Bill": "orders", "logs.{level}:Note": "logs.{level}", "Invoices": "invoices"}
    assert document["channels"]["orders:Bill"]["description"] == "bills"
    assert document["components"]["schemas"]["Order"]["properties"]["id"]["type"] == "integer"
    assert not (home / "data").exists()


def test_without_faststream_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['faststream'] = None; import heliograph.faststream"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'heliograph[faststream]'" in done.stderr
