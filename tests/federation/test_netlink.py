"""Links come back at once when the kernel says that the network changed."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.federation import netlink
from heliograph.federation.netlink import NetworkNews, returns
from tests.federation.stations import ROOT

UNSHARE = shutil.which("unshare")
NAMESPACES = (
    UNSHARE is not None and subprocess.run([UNSHARE, "-n", "true"], capture_output=True, check=False).returncode == 0
)


@pytest.mark.skipif(not NAMESPACES, reason="network namespaces need unshare, and the right to use it")
def test_a_link_that_waits_for_an_hour_is_made_at_once_when_an_interface_comes_up(tmp_path: Path) -> None:
    script = Path(__file__).with_name("network_process.py")
    done = subprocess.run(
        [str(UNSHARE), "-n", sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    waiting, last = done.stdout.splitlines()
    assert waiting.startswith("waiting: ") and "unreachable" in waiting
    assert last == "up"


def message(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def interface(flags: int) -> bytes:
    return struct.pack("=BxHiII", 0, 1, 2, flags, 0)


def test_what_means_that_the_network_may_work_again() -> None:
    assert returns(message(16, interface(0x41)))
    assert not returns(message(16, interface(0x1))), "up, and no carrier"
    assert not returns(message(17, interface(0x41))), "removed"
    assert returns(message(21) + message(20)) and returns(message(24))
    assert not returns(message(21) + message(25))


@given(st.binary(max_size=200))
def test_whatever_comes_is_understood_or_not(data: bytes) -> None:
    assert returns(data) in (True, False)


class Told:
    """Counts, in an event loop, how often it is told."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.heard = asyncio.Event()

    def __call__(self) -> None:
        self.times.append(asyncio.get_running_loop().time())
        self.heard.set()


def test_swarms_of_changes_are_told_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "EVERY_S", 0.5)
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    monkeypatch.setattr(netlink, "_open", lambda: ours)

    async def main() -> list[float]:
        told = Told()
        news = NetworkNews(told)
        for _ in range(120):
            kernel.send(message(24))
            await asyncio.sleep(0.01)
        news.close()
        news.close()
        return told.times

    times = asyncio.run(main())
    kernel.close()
    assert 1 <= len(times) < 60
    assert all(after - before > 0.45 for before, after in pairwise(times))


def test_where_there_is_no_such_socket_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **__: object) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    async def main(broken: object) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr("heliograph.federation.netlink.socket", broken)
            news = NetworkNews(lambda: None)
        news.close()
        return news.listening

    class NotAllowed:
        AF_NETLINK = SOCK_RAW = SOCK_CLOEXEC = NETLINK_ROUTE = 0
        socket = staticmethod(refusing)

    class AnotherSystem:
        pass

    for broken in (NotAllowed, AnotherSystem):
        assert not asyncio.run(main(broken))
