"""A station in a process: ``CONFIG [CHANNEL COUNT PREFIX]``. Publishes, says what it did, and waits for SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading

import heliograph as hg


def main() -> None:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with hg.open(config=sys.argv[1]) as station:
        print("ready", flush=True)
        if len(sys.argv) > 2:
            channel, count, prefix = sys.argv[2], int(sys.argv[3]), sys.argv[4]
            for number in range(count):
                station.publish(channel, f"{prefix}{number}")
                print(f"{prefix}{number}", flush=True)
                if over.is_set():
                    return
        over.wait()


if __name__ == "__main__":
    main()
