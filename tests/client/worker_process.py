"""A worker at a client, in a process of its own: ``JSON``, its settings. Says what it handles, until it is killed."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from typing import Any

import heliograph as hg


def main() -> None:
    said: dict[str, Any] = json.loads(sys.argv[1])
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    stuck = said.get("stuck")

    def handle(message: hg.Message) -> None:
        if message.data == stuck:
            print(json.dumps(["stuck", message.partition, message.offset, message.data]), flush=True)
            time.sleep(said.get("stuck_s", 600))
        time.sleep(said.get("pause_s", 0))
        when = [time.monotonic_ns()] if said.get("when") else []
        print(json.dumps(["done", message.partition, message.offset, message.data, *when]), flush=True)

    with hg.connect(said["url"], tls=said["tls"]) as client:
        print("ready", flush=True)
        client.subscribe(said["channel"], handle, name=said["name"], **said.get("options", {}))
        over.wait()


if __name__ == "__main__":
    main()
