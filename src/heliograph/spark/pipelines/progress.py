"""How far a query has come, from what Spark tells after every micro-batch."""

from __future__ import annotations

import json
import math
from typing import Any

from heliograph.spark.pipelines.run import Progress


class Counter:
    """Adds up what a query tells, batch after batch."""

    def __init__(self) -> None:
        self.seen = -1
        self.progress = Progress()

    def look(self, query: Any) -> Progress | None:
        """What is new; None if nothing is."""
        found = [one for one in map(_plain, query.recentProgress) if one["batchId"] > self.seen]
        if not found:
            return None
        last = found[-1]
        # Spark tells of the last batch again and again while nothing comes; its number goes up with the next.
        self.seen = last["batchId"]
        self.progress = Progress(
            batches=self.progress.batches + sum(_sum(one, "numInputRows") > 0 for one in found),
            rows=self.progress.rows + sum(int(_sum(one, "numInputRows")) for one in found),
            rows_per_s=round(_sum(last, "processedRowsPerSecond"), 1),
            lag=lag(last), watermark=last.get("eventTime", {}).get("watermark"),
        )  # fmt: skip
        return self.progress


def _plain(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json)
    return found


def _sum(progress: dict[str, Any], name: str) -> float:
    """A figure of all sources; Spark Connect does not add them up.

    >>> _sum({"sources": [{"numInputRows": 2}, {"numInputRows": 3}, {"numInputRows": "NaN"}]}, "numInputRows")
    5.0
    """
    found = [float(source.get(name) or 0.0) for source in progress.get("sources", ())]
    return sum(one for one in found if math.isfinite(one))


def lag(progress: dict[str, Any]) -> int | None:
    """How many messages are there that a query has not read; None if a source does not tell.

    >>> lag({"sources": [{"endOffset": {"a": {"partitions": {"0": [3, ""]}}},
    ...                   "latestOffset": {"a": {"partitions": {"0": [5, ""], "1": [1, ""]}}}}]})
    3
    """
    total = 0
    for source in progress.get("sources", ()):
        end, latest = _read(source.get("endOffset")), _read(source.get("latestOffset"))
        if end is None or latest is None:
            return None
        total += sum(max(0, offset - end.get(place, 0)) for place, offset in latest.items())
    return total


def _read(told: Any) -> dict[tuple[str, str], int] | None:
    """Offsets by channel and partition."""
    try:
        known = json.loads(told) if isinstance(told, str) else told
        return {
            (channel, number): int(reached[0])
            for channel, one in known.items()
            for number, reached in one["partitions"].items()
        }
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
