"""A station in a process: ``CONFIG [CHANNEL COUNT PREFIX [PAUSE]]``. Publishes, says what it did, waits for SIGTERM.

With a pause, in seconds, between its messages it says nothing, and dials again at once when it was cut.
"""

from __future__ import annotations

import signal
import sys
import threading

import heliograph as hg
from heliograph.federation import backoff


def main() -> None:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    pause_s = float(sys.argv[5]) if len(sys.argv) > 5 else None
    if pause_s is not None:
        backoff.BASE_S, backoff.MAX_S = 0.01, 0.05  # type: ignore[misc]
    with hg.open(config=sys.argv[1]) as station:
        print("ready", flush=True)
        if len(sys.argv) > 2:
            channel, count, prefix = sys.argv[2], int(sys.argv[3]), sys.argv[4]
            for number in range(count):
                station.publish(channel, f"{prefix}{number}")
                if pause_s is None:
                    print(f"{prefix}{number}", flush=True)
                else:
                    over.wait(pause_s)
                if over.is_set():
                    return
        over.wait()


if __name__ == "__main__":
    main()
