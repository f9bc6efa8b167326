"""A hub and a station in a network namespace of their own, in which nothing works until somebody says ``up``.

``DIRECTORY``: links wait for an hour after the first failure, unless the kernel tells of a change. Says what happens.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
from pathlib import Path

from heliograph.federation import link
from tests.federation.stations import Net, payloads, up, wait_for

_SET_FLAGS, _UP = 0x8914, 0x1


def set_loopback(*, up: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP if up else 0))


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    link.pause_s = lambda failures, random01: 3_600.0  # type: ignore[attr-defined]
    net = Net(Path(sys.argv[1]))
    net.ports["hub"] = 7740
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "127.0.0.1:7740", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", "nobody can be reached")
        wait_for(lambda: host1.links()[0].state == "waiting")
        say(f"waiting: {host1.links()[0].error}")
        set_loopback(up=True)
        wait_for(lambda: up(host1, "hub"))
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["nobody can be reached"])
        say("up")


if __name__ == "__main__":
    main()
