"""``spark.readStream.format("heliograph")``: micro-batches between positions that Spark keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
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

from heliograph.errors import HeliographError, Incomplete, NotFound
from heliograph.log.cursor import Missing
from heliograph.spark.admission import Allowance, admitted
from heliograph.spark.archive.together import plan
from heliograph.spark.filters import Conditions
from heliograph.spark.kept import Kept
from heliograph.spark.offsets import Places
from heliograph.spark.options import ReadOptions
from heliograph.spark.positions import ChannelPosition, Positions, Reached, from_json, to_json
from heliograph.spark.source import read_split, wanted
from heliograph.spark.splits import Ask, Split, Stretch, shared
from heliograph.spark.store import Life, Spot, Store


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes. Lives in a process beside the driver; ``read`` is called in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._wanted = wanted(options, schema)
        self._kept = Kept(options)
        self._target: Positions | None = None

    # -- positions ----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        starting = Places("startingOffsets", self._options.starting, "first")
        with self._kept.open() as store:
            names = store.among(self._options.channels)
            starting.check_channels(store, names)
            lives = {name: store.channel(name) for name in names}
            places = {
                name: {number: starting.offset(store, name, number) for number in range(life.partitions)}
                for name, life in lives.items()
            }
            return to_json(_reached(store, lives, places, {}))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Nothing that comes later is read."""
        with self._kept.open() as store:
            self._target = self._ends(store, {})

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
        with self._kept.open() as store:
            store.look(self._options.channels, begin)
            self._check_there(store, begin)
            ends = self._ends(store, begin) if self._target is None else self._within_target(begin)
            ends = {name: self._entered(store, name, begin.get(name), end) for name, end in ends.items()}
            allowance = self._allowance(limit)
            if allowance != Allowance():
                ends = self._admitted(store, begin, ends, allowance)
            return to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the channels end now, for the query's progress."""
        with self._kept.open() as store:
            return to_json(self._ends(store, {}))

    def _allowance(self, limit: ReadLimit) -> Allowance:
        if isinstance(limit, ReadAllAvailable):
            return Allowance()
        if isinstance(limit, ReadMaxBytes):
            return Allowance(None, limit.max_bytes)
        messages = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        return Allowance(messages, self._options.max_bytes)

    def _ends(self, store: Store, begin: Positions) -> Positions:
        """Where all channels end now; one that was deleted, or is not asked for any more, stays where it is."""
        names = store.look(self._options.channels, begin)
        lives: dict[str, Life] = {}
        places: dict[str, dict[int, int]] = {}
        for name in self._options.channels.among(names):
            life = store.find(name)
            if life is not None:
                with contextlib.suppress(NotFound):  # deleted since
                    places[name] = {
                        # A query may begin at an offset that is still to come: it waits for that, and does not go back.
                        number: max(store.bounds(name, number).next, _before(begin.get(name), life, number))
                        for number in range(life.partitions)
                    }
                    lives[name] = life
        ends = _reached(store, lives, places, begin)
        for name, life in lives.items():
            now = store.find(name)
            if now is None or now.incarnation != life.incarnation:
                del ends[name]  # what was looked at may have been another's
        return {**ends, **{name: begin[name] for name in begin if name not in ends}}

    def _check_there(self, store: Store, begin: Positions) -> None:
        """A channel that was read, is still asked for and is gone is not passed over."""
        meant = set(self._options.channels.among(list(begin)))
        gone = [name for name in begin if name in meant and store.find(name) is None]
        if gone and self._options.fail_on_gap:
            raise Incomplete(
                f"channel '{gone[0]}' was deleted. With option failOnGap=false the query goes on without it, and with "
                "it once it is made again."
            )

    def _entered(
        self, store: Store, name: str, before: ChannelPosition | None, end: ChannelPosition
    ) -> ChannelPosition:
        """New channels and partitions come in at their first message, and are read from the next micro-batch on.

        So where they began is written down before anything of them is read: what retention takes meanwhile is noticed.
        """
        known = {} if before is None else before.partitions
        return ChannelPosition(
            end.incarnation,
            {
                number: reached if number in known else Reached(self._first(store, name, number), "")
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

    def _admitted(self, store: Store, begin: Positions, ends: Positions, allowance: Allowance) -> Positions:
        asks = [ask for ask, _ in self._asks(store, begin, ends)]
        taken = admitted(store, asks, allowance)
        places = {name: {number: one.offset for number, one in end.partitions.items()} for name, end in ends.items()}
        for ask, end in zip(asks, taken, strict=True):
            places[ask.channel][ask.partition] = min(end, places[ask.channel][ask.partition])
        return _reached(store, ends, places, ends)

    # -- reading ------------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What each task of a micro-batch reads."""
        splits: list[InputPartition] = []
        begin, ends = from_json(start), from_json(end)
        ends = {name: end for name, end in ends.items() if end != begin.get(name)}
        with self._kept.open() as store:
            store.look(None, ends)
            there: list[Ask] = []
            for ask, told in self._asks(store, begin, ends):
                if told is not None:
                    splits.append(Split(ask.channel, ask.partition, ask.incarnation, (), told))
                if store.find(ask.channel) is None:  # its reader tells
                    splits.append(Split(ask.channel, ask.partition, ask.incarnation, (ask.stretch,)))
                else:
                    there.append(ask)
            splits += plan(store, there, Conditions(), self._options.split_bytes)
        return shared(splits, self._options.split_bytes)

    def _asks(self, store: Store, begin: Positions, ends: Positions) -> list[tuple[Ask, Missing | None]]:
        """The stretches between two positions, and what is to be told of each."""
        found: list[tuple[Ask, Missing | None]] = []
        for name, end in ends.items():
            before = begin.get(name)
            for number, reached in end.partitions.items():
                first, told = self._begin(store, name, number, before, end)
                if first < reached.offset or told is not None:
                    stretch = Stretch(min(first, reached.offset), reached.offset)
                    found.append((Ask(name, number, end.incarnation, stretch), told))
        return found

    def _begin(
        self, store: Store, name: str, number: int, before: ChannelPosition | None, end: ChannelPosition
    ) -> tuple[int, Missing | None]:
        """Where to go on in a partition, and what is to be told of it."""
        reached = None if before is None else before.partitions.get(number)
        if before is None or reached is None:  # it comes in with this micro-batch
            return end.partitions[number].offset, None
        if before.incarnation == end.incarnation or not reached.offset:
            return reached.offset, None
        if reached.id and store.find(name) and store.ids([Spot(name, number, reached.offset - 1)]) == [reached.id]:
            return reached.offset, None  # the log is the one that it was
        why = f"the channel lives anew ({before.incarnation} is {end.incarnation} now): read from its beginning"
        return self._first(store, name, number), Missing(reached.offset, reached.offset + 1, why)

    def _first(self, store: Store, name: str, number: int) -> int:
        with contextlib.suppress(NotFound):  # deleted since
            life = store.find(name)
            return 0 if life is None or number >= life.partitions else store.bounds(name, number).first
        return 0

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        return read_split(partition, self._options, self._wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is Spark's, and retention asks nobody."""

    def stop(self) -> None:
        """Let go of the hub, if there is one."""
        self._kept.close()


class Refused(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands for a reader that cannot be, and tells why when it is asked for anything.

    If there were none at all, Spark would stop it all the same, and end what it says with an error about that.
    """

    def __init__(self, error: HeliographError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint would begin."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Asked first, if a query ends."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Asked first, if a query goes on."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802 - Spark's
        """How far a micro-batch would go."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002 - Spark's
        """Asked first, if a micro-batch is repeated."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - Spark's
        """Never comes to it."""
        raise self._error


def _before(position: ChannelPosition | None, life: Life, number: int) -> int:
    """How far a query is in a partition of the channel that lives now."""
    if position is None or position.incarnation != life.incarnation or number not in position.partitions:
        return 0
    return position.partitions[number].offset


def _reached(
    store: Store,
    lives: Mapping[str, Life | ChannelPosition],
    places: Mapping[str, Mapping[int, int]],
    before: Positions,
) -> Positions:
    """Offsets with the ids of the messages before them; those that are known need not be looked up again."""
    known: dict[Spot, str] = {}
    for name, position in before.items():
        if name in lives and position.incarnation == lives[name].incarnation:
            known |= {Spot(name, number, one.offset - 1): one.id for number, one in position.partitions.items()}
    spots = [Spot(name, number, offset - 1) for name, of in places.items() for number, offset in of.items()]
    unknown = [spot for spot in spots if spot not in known]
    found = dict(zip(unknown, store.ids(unknown), strict=True))
    now = {name: store.find(name) for name in {spot.channel for spot in unknown}}
    for spot, id in found.items():
        life = now[spot.channel]
        # The channel may live anew by now: an id of that life would say that its log is the one that was read.
        known[spot] = id if life is not None and life.incarnation == lives[spot.channel].incarnation else ""
    return {
        name: ChannelPosition(
            lives[name].incarnation,
            {number: Reached(offset, known[Spot(name, number, offset - 1)]) for number, offset in of.items()},
        )
        for name, of in places.items()
    }
