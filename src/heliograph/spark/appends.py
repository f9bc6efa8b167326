"""When lines were appended, as far as the log tells: of the last line of each entry of its index, about every 16 KiB.

Of the lines between nothing is known but that they were appended before the next one that is told. So column
``appended`` is a sample: exact where it is not null.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from heliograph.log.appends import append_times
from heliograph.spark.directory import Directory
from heliograph.spark.splits import Split

_Numbers = np.ndarray[Any, Any]


class Appends:
    """Lines whose time is known, and the times."""

    def __init__(self, known: Iterable[tuple[int, int]] = ()) -> None:
        self.know(known)

    def know(self, known: Iterable[tuple[int, int]]) -> None:
        """What is told of the lines that come next: offsets, in order, and times in µs."""
        pairs = np.array([*known], np.int64).reshape(-1, 2)
        self._offsets, self._times_us = pairs[:, 0], pairs[:, 1]

    def at(self, offsets: _Numbers, kind: pa.DataType) -> pa.Array:
        """The time of each line; null where the log does not tell."""
        if not len(self._offsets):
            return pa.nulls(len(offsets), kind)
        places = np.minimum(np.searchsorted(self._offsets, offsets), len(self._offsets) - 1)
        return pa.array(self._times_us[places], kind, mask=self._offsets[places] != offsets)


def appends(directory: Directory, split: Split) -> Appends:
    """What the log tells of the lines of a split."""
    last = directory.engine.last_append(split.channel, split.partition)
    folder = directory.log(split.channel, split.partition).place.directory
    first, following = split.stretches[0].first, split.stretches[-1].next
    return Appends(append_times(folder, last, first, following, directory.disk))
