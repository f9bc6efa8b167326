"""Stations for the benchmarks of links: their settings, and the processes they are in."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import heliograph as hg
from bench.samples import CHANNEL, TYPE

TOGETHER = 1_000
PAYLOADS = [{"value": number} for number in range(TOGETHER)]


def tls(path: Path, name: str) -> dict[str, str]:
    """Where the certificates of a station are."""
    return {"cert": str(path / f"{name}.crt"), "key": str(path / f"{name}.key"), "ca": str(path / "ca.crt")}


def hub_settings(path: Path, port: int, peers: list[str], channels: Sequence[str] = (CHANNEL,)) -> dict[str, Any]:
    """A hub to which these may send the channels."""
    allowed = [{"name": name, "publish": list(channels)} for name in peers]
    return {"name": "hub", "hub": {"listen": f"127.0.0.1:{port}", "peers": allowed}, "tls": tls(path, "hub")}


def edge_settings(path: Path, port: int, channels: Sequence[str] = (CHANNEL,)) -> dict[str, Any]:
    """A station that sends the channels to the hub."""
    links = [{"hub": f"localhost:{port}", "publish": list(channels)}]
    return {"name": "edge", "links": links, "tls": tls(path, "edge")}


def fill(path: Path, messages: int, payloads: Sequence[dict[str, Any]] = PAYLOADS) -> int:
    """What the edge has published, so many payloads at once; how many bytes that is."""
    with hg.open(path, name="edge", durability="os") as station:
        for _ in range(messages // len(payloads)):
            station.publish_many(CHANNEL, payloads, type=TYPE)
        return station.channel(CHANNEL).bytes


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def elsewhere(main: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Another process, until the block ends; its end of the pipe is the first argument."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=main, args=(its, *arguments), daemon=True)
    process.start()
    its.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(20)
        process.kill()
        process.join()


def stand(line: Connection, path: str, settings: dict[str, Any]) -> None:
    """A station that is there until the pipe is closed."""
    with hg.open(path, config=settings):
        line.send("there")
        try:
            line.recv()
        except EOFError:
            return
