"""Stations in a star, a chain, a diamond and a ring: published at the edge, each message is everywhere exactly once.

    python examples/federation/topologies.py --once            # all, one after the other
    python examples/federation/topologies.py diamond           # one, until Ctrl-C: look around with helio links
    python examples/federation/topologies.py ring --dir here   # its directories and configurations stay in here/ring

All stations run in this process, each with a directory of its own, and talk over mutual TLS on loopback. Their
configurations are written beside them: `helio serve --config here/ring/a.yaml` runs the same station by itself.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import yaml

import heliograph as hg
from heliograph.federation.authority import Authority, create_ca

CHANNEL, EACH, PATIENCE_S = "alerts", 20, 60.0


class Line(NamedTuple):
    """One station dials another: to send it messages, to get its, or both."""

    station: str
    hub: str
    sends: bool = True
    gets: bool = False


class Topology(NamedTuple):
    """Who dials whom, and who publishes."""

    about: str
    lines: list[Line]
    publishers: list[str]


TOPOLOGIES = {
    "star": Topology(
        "hosts send to a hub in the middle and get what the others sent; a dashboard reads from it",
        [Line("host1", "hub", gets=True), Line("host2", "hub", gets=True), Line("dashboard", "hub", False, True)],
        ["host1", "host2"],
    ),
    "chain": Topology(
        "from one to the next",
        [Line("field", "district"), Line("district", "region"), Line("region", "headquarters")],
        ["field"],
    ),
    "diamond": Topology(
        "one client sends to two hubs, one reader gets from both: either hub may be down, and nothing comes twice",
        [Line("client", "hub1"), Line("client", "hub2"), Line("reader", "hub1", False, True),
         Line("reader", "hub2", False, True)],
        ["client"],
    ),
    "ring": Topology(
        "each sends to the next, and nothing goes round for ever",
        [Line("a", "b"), Line("b", "c"), Line("c", "a")],
        ["a", "b", "c"],
    ),
}  # fmt: skip


def stations(topology: Topology) -> list[str]:
    return sorted({name for line in topology.lines for name in (line.station, line.hub)})


def configure(topology: Topology, directory: Path) -> dict[str, Path]:
    """A CA, a certificate for each station, and its configuration as a file."""
    create_ca(directory)
    authority = Authority(directory / "ca.crt")
    names = stations(topology)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    files = {}
    for name in names:
        authority.issue(directory, name, ["localhost"])
        files[name] = directory / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(settings(topology, directory, name, ports), sort_keys=False))
    return files


def settings(topology: Topology, directory: Path, name: str, ports: dict[str, int]) -> dict[str, object]:
    """What one station has to know: who may dial it and do what, and whom it dials."""
    others = [other for other in stations(topology) if other != name]
    peers = [
        {"name": line.station, "publish": [CHANNEL] * line.sends, "subscribe": [CHANNEL] * line.gets,
         "relay": [other for other in others if other != line.station] * line.sends}
        for line in topology.lines if line.hub == name
    ]  # fmt: skip
    links = [
        {"hub": f"localhost:{ports[line.hub]}", "publish": [CHANNEL] * line.sends, "subscribe": [CHANNEL] * line.gets}
        for line in topology.lines if line.station == name
    ]  # fmt: skip
    here = {kind: str(directory / file) for kind, file in
            {"cert": f"{name}.crt", "key": f"{name}.key", "ca": "ca.crt", "crl": "ca.crl"}.items()}  # fmt: skip
    hub = {"hub": {"listen": f"127.0.0.1:{ports[name]}", "peers": peers}} if peers else {}
    return {"name": name, "storage": {"data_dir": str(directory / name)}, **hub, "links": links, "tls": here}


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def run(name: str, directory: Path, *, stay: bool) -> bool:
    """Publish at the edge, wait until it is everywhere, and count. True if each message is everywhere once."""
    topology = TOPOLOGIES[name]
    files = configure(topology, directory)
    print(f"{name}: {topology.about}")
    with contextlib.ExitStack() as stack:
        opened = {one: stack.enter_context(hg.open(config=file)) for one, file in files.items()}
        sent = {
            opened[publisher].publish(CHANNEL, {"from": publisher, "n": n}).id
            for n in range(EACH)
            for publisher in topology.publishers
        }
        print(f"  {' and '.join(topology.publishers)} published {len(sent)} messages")
        wait_until_everywhere(list(opened.values()), len(sent))
        good = [report(station, sent) for station in opened.values()]
        if stay:
            print(f"  go on looking, for example: helio -d {directory / stations(topology)[0]} links; Ctrl-C ends")
            while True:
                time.sleep(1)
    return all(good)


def wait_until_everywhere(opened: list[hg.Station], count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(len(received(station)) < count for station in opened) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)  # whatever comes twice would come now


def received(station: hg.Station) -> list[str]:
    with contextlib.suppress(hg.NotFound):
        return [message.id for message in station.read(CHANNEL)]
    return []


def report(station: hg.Station, sent: set[str]) -> bool:
    counts = collections.Counter(received(station))
    good = counts.keys() == sent and counts.total() == len(sent)
    what = "each once" if good else f"{len(sent - counts.keys())} missing, {counts.total() - len(counts)} twice"
    print(f"  {station.name}: {counts.total()} messages, {what}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "topology",
        nargs="*",
        metavar="TOPOLOGY",
        help=f"{', '.join(TOPOLOGIES)}; without one all with --once, else star",
    )
    parser.add_argument("--dir", type=Path, help="where their directories are made and stay")
    parser.add_argument("--once", action="store_true", help="end by itself instead of with Ctrl-C")
    said = parser.parse_args()
    if unknown := set(said.topology) - set(TOPOLOGIES):
        parser.error(f"there is no topology {', '.join(unknown)}; there are {', '.join(TOPOLOGIES)}")
    logging.getLogger("heliograph").setLevel(logging.ERROR)  # that a hub is not there yet is no news here
    with tempfile.TemporaryDirectory(prefix="heliograph-") as temporary:
        good = []
        for name in said.topology or (TOPOLOGIES if said.once else ["star"]):
            directory = (said.dir or Path(temporary)) / name
            directory.mkdir(parents=True)
            good.append(run(name, directory.resolve(), stay=not said.once))
    return 0 if all(good) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
