"""``spark.readStream.format("heliograph")``: micro-batches between positions that Spark keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from heliograph.errors import Incomplete
from heliograph.log.cursor import Missing
from heliograph.spark.admission import Allowance, admitted
from heliograph.spark.archive.together import plan, whole
from heliograph.spark.directory import Directory
from heliograph.spark.filters import Conditions
from heliograph.spark.offsets import Places
from heliograph.spark.options import ReadOptions
from heliograph.spark.positions import ChannelPosition, Positions, Reached, from_json, to_json
from heliograph.spark.source import read_split, wanted
from heliograph.spark.splits import Ask, Split, Stretch


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes. Lives in a process beside the driver; ``read`` is called in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._wanted = wanted(options, schema)
        self._target: Positions | None = None

    # -- positions ----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        starting = Places("startingOffsets", self._options.starting, "first")
        with whole(self._options) as directory:
            names = directory.among(self._options.channels)
            starting.check_channels(names)
            found: Positions = {}
            for name in names:
                file = directory.engine.describe(name)
                places = {number: starting.offset(directory, name, number) for number in range(file.partitions)}
                found[name] = _reached(directory, name, file.incarnation, places)
            return to_json(found)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Nothing that comes later is read."""
        with whole(self._options) as directory:
            self._target = self._ends(directory, {})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What a micro-batch may take by the options."""
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next micro-batch goes."""
        begin = from_json(start)
        with whole(self._options) as directory:
            self._check_there(directory, begin)
            ends = self._ends(directory, begin) if self._target is None else self._within_target(begin)
            ends = {name: self._entered(directory, name, begin.get(name), end) for name, end in ends.items()}
            allowance = self._allowance(limit)
            if allowance != Allowance():
                ends = self._admitted(directory, begin, ends, allowance)
            return to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the channels end now, for the query's progress."""
        with whole(self._options) as directory:
            return to_json(self._ends(directory, {}))

    def _allowance(self, limit: ReadLimit) -> Allowance:
        if isinstance(limit, ReadAllAvailable):
            return Allowance()
        if isinstance(limit, ReadMaxBytes):
            return Allowance(None, limit.max_bytes)
        messages = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        return Allowance(messages, self._options.max_bytes)

    def _ends(self, directory: Directory, begin: Positions) -> Positions:
        """Where all channels end now; one that was deleted, or is not asked for any more, stays where it is."""
        ends: Positions = {}
        meant = self._options.channels.among(directory.engine.channel_names())
        for name in dict.fromkeys([*meant, *begin]):
            file = directory.find(name) if name in meant else None
            if file is None:
                if name in begin:
                    ends[name] = begin[name]
                continue
            places = {number: directory.bounds(name, number).next for number in range(file.partitions)}
            ends[name] = _reached(directory, name, file.incarnation, places, begin.get(name))
        return ends

    def _check_there(self, directory: Directory, begin: Positions) -> None:
        """A channel that was read and is gone is not passed over."""
        gone = [name for name in begin if self._options.fail_on_gap and directory.find(name) is None]
        if gone:
            raise Incomplete(
                f"channel '{gone[0]}' was deleted. With option failOnGap=false the query goes on without it, and with "
                "it once it is made again."
            )

    def _entered(
        self, directory: Directory, name: str, before: ChannelPosition | None, end: ChannelPosition
    ) -> ChannelPosition:
        """New channels and partitions come in at their first message, and are read from the next micro-batch on.

        So where they began is written down before anything of them is read: what retention takes meanwhile is noticed.
        """
        known = {} if before is None else before.partitions
        return ChannelPosition(
            end.incarnation,
            {
                number: reached if number in known else Reached(self._first(directory, name, number), "")
                for number, reached in end.partitions.items()
            },
        )

    def _within_target(self, begin: Positions) -> Positions:
        """Where the channels ended when the query began; or where it is already, if a checkpoint says more."""
        assert self._target is not None
        ends = dict(begin)
        for name, target in self._target.items():
            before = begin.get(name)
            if before is None or before.incarnation != target.incarnation:
                ends[name] = target
                continue
            farther = {
                number: max(reached, before.partitions.get(number, Reached(0, "")))
                for number, reached in target.partitions.items()
            }
            ends[name] = ChannelPosition(target.incarnation, {**before.partitions, **farther})
        return ends

    def _admitted(self, directory: Directory, begin: Positions, ends: Positions, allowance: Allowance) -> Positions:
        asks = [ask for ask, _ in self._asks(directory, begin, ends)]
        taken = admitted(directory, asks, allowance)
        places: dict[str, dict[int, int]] = {name: {} for name in ends}
        for ask, end in zip(asks, taken, strict=True):
            places[ask.channel][ask.partition] = end
        return {
            name: ChannelPosition(
                end.incarnation,
                {
                    number: Reached(places[name][number], directory.id_at(name, number, places[name][number] - 1))
                    if places[name].get(number, reached.offset) < reached.offset
                    else reached
                    for number, reached in end.partitions.items()
                },
            )
            for name, end in ends.items()
        }

    # -- reading ------------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What each task of a micro-batch reads."""
        splits: list[InputPartition] = []
        with whole(self._options) as directory:
            for ask, told in self._asks(directory, from_json(start), from_json(end)):
                if told is not None:
                    splits.append(Split(ask.channel, ask.partition, ask.incarnation, (), told))
                if directory.find(ask.channel) is None:  # its reader tells
                    splits.append(Split(ask.channel, ask.partition, ask.incarnation, (ask.stretch,)))
                else:
                    splits += plan(directory, ask, Conditions(), self._options.split_bytes)
        return splits

    def _asks(self, directory: Directory, begin: Positions, ends: Positions) -> list[tuple[Ask, Missing | None]]:
        """The stretches between two positions, and what is to be told of each."""
        found: list[tuple[Ask, Missing | None]] = []
        for name, end in ends.items():
            before = begin.get(name)
            for number, reached in end.partitions.items():
                first, told = self._begin(directory, name, number, before, end)
                if first < reached.offset or told is not None:
                    stretch = Stretch(min(first, reached.offset), reached.offset)
                    found.append((Ask(name, number, end.incarnation, stretch), told))
        return found

    def _begin(
        self, directory: Directory, name: str, number: int, before: ChannelPosition | None, end: ChannelPosition
    ) -> tuple[int, Missing | None]:
        """Where to go on in a partition, and what is to be told of it."""
        reached = None if before is None else before.partitions.get(number)
        if before is None or reached is None:  # it comes in with this micro-batch
            return end.partitions[number].offset, None
        if before.incarnation == end.incarnation or not reached.offset:
            return reached.offset, None
        if reached.id and directory.find(name) and directory.id_at(name, number, reached.offset - 1) == reached.id:
            return reached.offset, None  # the log is the one that it was
        why = f"the channel lives anew ({before.incarnation} is {end.incarnation} now): read from its beginning"
        return self._first(directory, name, number), Missing(reached.offset, reached.offset + 1, why)

    def _first(self, directory: Directory, name: str, number: int) -> int:
        file = directory.find(name)
        return 0 if file is None or number >= file.partitions else directory.bounds(name, number).first

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        return read_split(partition, self._options, self._wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is Spark's, and retention asks nobody."""

    def stop(self) -> None:
        """Nothing is open."""


def _reached(
    directory: Directory, name: str, incarnation: str, places: dict[int, int], before: ChannelPosition | None = None
) -> ChannelPosition:
    """Offsets with the ids of the messages before them; those that are known need not be looked up again."""
    known = before.partitions if before is not None and before.incarnation == incarnation else {}
    reached = {
        number: known[number]
        if number in known and known[number].offset == offset
        else Reached(offset, directory.id_at(name, number, offset - 1))
        for number, offset in places.items()
    }
    return ChannelPosition(incarnation, reached)
