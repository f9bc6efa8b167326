"""Real stations with real links: in this process, and in processes that may be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import heliograph as hg
from tests.federation.pki import Pki

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Whatever it returns that is true; an error after some time."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"it did not happen in time: {condition()!r}"
        time.sleep(0.02)
    return found


class Net:
    """Stations of one CA in a directory, and what each is configured to do."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pki = Pki(directory / "pki")
        self.ports: dict[str, int] = {}
        self.settings: dict[str, dict[str, Any]] = {}

    def port(self, name: str) -> int:
        return self.ports.setdefault(name, free_port())

    def path(self, name: str) -> Path:
        return self.directory / name

    def station(
        self, name: str, *, peers: Sequence[dict[str, Any]] = (), links: Sequence[dict[str, Any]] = (), **more: Any
    ) -> Path:
        """Say what a station does; its configuration file. A link's ``hub`` is one of ours, or an address."""
        if not (self.pki.directory / f"{name}.crt").exists():
            self.pki.issue(name, "localhost", "127.0.0.1")
        files = {kind: str(self.pki.directory / f"{name}.{kind}") for kind in ("crt", "key")}
        said: dict[str, Any] = {
            "name": name,
            "storage": {"data_dir": str(self.path(name)), **more.pop("storage", {})},
            "tls": {"cert": files["crt"], "key": files["key"], "ca": str(self.pki.ca), "crl": str(self.pki.crl)},
            "links": [{**link, "hub": self.address(link["hub"])} for link in links],
            **more,
        }
        if peers:
            hub = {"listen": f"127.0.0.1:{self.port(name)}", "peers": list(peers), "heartbeat_s": 1}
            said["hub"] = {**hub, **said.get("hub", {})}
        else:
            said["hub"] = {"heartbeat_s": 1, **said.get("hub", {})}
        self.settings[name] = said
        file = self.directory / f"{name}.json"
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(said))
        yaml = file.with_suffix(".yaml")
        os.replace(temporary, yaml)
        return yaml

    def address(self, hub: str) -> str:
        return hub if ":" in hub else f"localhost:{self.port(hub)}"

    def open(self, name: str, **options: Any) -> hg.Station:
        return hg.open(config=self.directory / f"{name}.yaml", **options)

    def run(self, name: str, *arguments: str) -> Process:
        return Process(self.directory / f"{name}.yaml", arguments)


class Process:
    """A station in a process of its own; see ``station_process.py`` for what it is told."""

    def __init__(self, config: Path, arguments: Iterable[str]) -> None:
        script = Path(__file__).with_name("station_process.py")
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read at the end
        self.child = subprocess.Popen(
            [sys.executable, str(script), str(config), *arguments], env=environment,
            stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "ready\n"

    def read(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        self._shut()

    def end(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        code = self.child.wait(30)
        self._shut()
        return code

    def complaints(self) -> str:
        """What it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode()

    def _shut(self) -> None:
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


# -- looking ------------------------------------------------------------------------------------------------


def lines(path: Path, channel: str) -> list[bytes]:
    """Everything that a channel's log holds, partition by partition."""
    with hg.open(path, read_only=True) as station:
        if channel not in {info.name for info in station.channels()}:
            return []
        return [message.raw for message in station.read(channel)]


def payloads(path: Path, channel: str) -> list[Any]:
    return [msgspec.json.decode(line)["data"] for line in lines(path, channel)]


def identity(line: bytes) -> tuple[str, str, int]:
    found = msgspec.json.decode(line)
    partition, _, sequence = found["originseq"].partition("/")
    return found["origin"], partition, int(sequence)


def check_log(path: Path, channel: str) -> set[bytes]:
    """Nothing twice, and the messages of each origin's partition in order; what is there."""
    found = lines(path, channel)
    last: dict[tuple[str, str], int] = {}
    for line in found:
        origin, partition, sequence = identity(line)
        assert sequence > last.get((origin, partition), -1), f"{origin} {partition}/{sequence} is twice or late"
        last[origin, partition] = sequence
    assert len(set(found)) == len(found)
    return set(found)


def up(station: hg.Station, name: str) -> bool:
    return any(link.name == name and link.state == "up" for link in station.links())


def audited(path: Path, event: str) -> list[dict[str, Any]]:
    file = path / "audit" / "audit.jsonl"
    whole, _, _ = file.read_bytes().rpartition(b"\n") if file.exists() else (b"", b"", b"")  # the last is being written
    records = [msgspec.json.decode(line) for line in whole.splitlines()]
    return [record for record in records if record["event"] == event]
