"""A process to be observed: ``python -m bench.resident bare | waiting PATH | channels PATH COUNT``.

It does what it is asked, says ``ready`` and stays until its input is closed. It imports nothing but what it needs,
because its memory is measured.
"""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack


def main(what: str, path: str = "", count: str = "0") -> None:
    """Do one thing, then wait."""
    with ExitStack() as stack:
        if what == "waiting":
            station = stack.enter_context(_open(path))
            station.publish("measurements", {"value": 1})
            station.subscribe("measurements", lambda _: None, name="waiting")
        elif what == "channels":
            station = stack.enter_context(_open(path))
            for number in range(int(count)):
                station.publish(f"channel-{number}", {"value": number})
        gc.collect()
        print("ready", flush=True)
        sys.stdin.read()


def _open(path: str):  # type: ignore[no-untyped-def]  # a bare interpreter must not import it
    import heliograph as hg

    return hg.open(path, name="bench", durability="interval")


if __name__ == "__main__":
    main(*sys.argv[1:])
