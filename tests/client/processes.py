"""Clients in processes of their own, which may be killed in the middle of a message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.client.conftest import Hub
from tests.federation.stations import ROOT

Record = tuple[Any, ...]
"""What a worker says: ``done`` or ``stuck``, partition, offset, payload, and when, if it was asked for."""


class WorkerProcess:
    """One worker, and everything it said."""

    def __init__(self, hub: Hub, channel: str, name: str, url: str | None = None, **said: Any) -> None:
        tls = {kind: str(path) for kind, path in hub.tls().items()}
        settings = {"url": url or hub.url, "tls": tls, "channel": channel, "name": name, **said}
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        script = Path(__file__).with_name("worker_process.py")
        self.child = subprocess.Popen(
            [sys.executable, str(script), json.dumps(settings)], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "ready\n"
        self.said: list[Record] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.said.append(tuple(json.loads(line)))

    @property
    def done(self) -> list[Any]:
        return [record[3] for record in self.said if record[0] == "done"]

    @property
    def stuck(self) -> bool:
        return any(what == "stuck" for what, *_ in self.said)

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self._end()

    def end(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        code = self.child.wait(30)
        self._reading.join(5)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code


def in_order(records: list[Record]) -> bool:
    """Whether the messages of each partition came in order."""
    last: dict[int, int] = {}
    for what, partition, offset, *_ in records:
        if what == "done":
            if offset <= last.get(partition, -1):
                return False
            last[partition] = offset
    return True
