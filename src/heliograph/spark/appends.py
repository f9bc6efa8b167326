"""When lines were appended, as far as the log tells: of the last line of each entry of its index, about every 16 KiB.

Of the lines between nothing is known but that they were appended before the next one that is told. So column
``appended`` is a sample: exact where it is not null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from heliograph.log import segments
from heliograph.log.pieces import entries_of
from heliograph.spark.directory import Directory
from heliograph.spark.splits import Split

_Numbers = np.ndarray[Any, Any]


class Appends:
    """The lines of a split whose time is known, and the times."""

    def __init__(self, offsets: _Numbers, times_us: _Numbers) -> None:
        self._offsets = offsets
        self._times_us = times_us

    def at(self, offsets: _Numbers, kind: pa.DataType) -> pa.Array:
        """The time of each line; null where the log does not tell."""
        if not len(self._offsets):
            return pa.nulls(len(offsets), kind)
        places = np.minimum(np.searchsorted(self._offsets, offsets), len(self._offsets) - 1)
        return pa.array(self._times_us[places], kind, mask=self._offsets[places] != offsets)


def appends(directory: Directory, split: Split) -> Appends:
    """What the log tells of the lines of a split."""
    first, following = split.stretches[0].first, split.stretches[-1].next
    limit = directory.limit(split.channel, split.partition)  # before the index, which may grow
    folder = directory.log(split.channel, split.partition).place.directory
    bases = segments.bases(folder, directory.disk)
    known: dict[int, int] = {}
    for base, end in zip(bases, [*bases[1:], following], strict=True):
        if base < following and end > first:
            entries = entries_of(folder, base, directory.disk)
            known |= zip([behind - 1 for behind in entries.nexts], entries.append_us, strict=True)
    known.setdefault(limit.next - 1, limit.append_us)
    found = sorted((offset, time_us) for offset, time_us in known.items() if first <= offset < following and time_us)
    return Appends(
        np.array([offset for offset, _ in found], np.int64), np.array([time_us for _, time_us in found], np.int64)
    )
