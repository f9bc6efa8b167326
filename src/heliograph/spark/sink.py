"""``write`` and ``writeStream``: tasks lay messages aside, the driver publishes them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from heliograph.errors import ConfigError, HeliographError
from heliograph.spark.aside import Aside, aside
from heliograph.spark.bodies import check_columns
from heliograph.spark.options import WriteOptions

logger = logging.getLogger("heliograph.spark")


@dataclass
class Staged(WriterCommitMessage):
    """What a task laid aside."""

    query: str | None
    laid: list[Any]


def _prepared(options: WriteOptions, schema: StructType) -> Aside:
    """Look at everything that can be wrong before a task runs; where messages are laid aside."""
    check_columns(schema, options)
    place = aside(options)
    place.prepare()
    return place


class BatchWriter(DataSourceArrowWriter):
    """Publishes a table once."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a channel is appended to: write.mode('append'). To begin anew, delete the channel first")
        self._place = _prepared(options, schema)
        self._query = options.query
        self._batch = options.batch or os.urandom(8).hex()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task."""
        return Staged(self._query, self._place.lay(self._query, self._batch, _task_name(), iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        _publish(self._place, self._query, self._batch, _laid(messages))
        _tidy(self._place)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - what failed says nothing
        """A task failed for good."""
        self._place.drop(self._query, self._batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes every micro-batch of a query once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.query is not None:
            raise ConfigError("options 'query' and 'batch' are for tables in foreachBatch; a stream has its own")
        self._place = _prepared(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise HeliographError("this Spark does not tell its tasks which query they belong to; use foreachBatch")
        return Staged(query, self._place.lay(query, batch, _task_name(), iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of a micro-batch are done; perhaps they were before, and Spark did not live to note it."""
        for query in _queries(messages):
            _publish(self._place, query, str(batchId), _laid(messages))
        if batchId % 100 == 0:
            _tidy(self._place)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """A task failed for good."""
        for query in _queries(messages):
            self._place.drop(query, str(batchId))


def _tidy(place: Aside) -> None:
    """Look after what others left. Whatever is in the way of that, ours is published, and not to be repeated."""
    try:
        place.tidy()
    except HeliographError as error:
        logger.warning("%s", error)


def _publish(place: Aside, query: str | None, batch: str, laid: list[Any]) -> None:
    """Spark repeats its last batch and no other; rows under an older number are others than those that had it."""
    newest = place.publish(query, batch, laid)
    if not laid or newest is None or newest <= int(batch):
        return
    raise ConfigError(
        f"the checkpoint is older than what was published: it is at batch {batch}, and batch {newest} of the same "
        "query is there. It was restored from a copy, lost its end, or a copy of it is in use as well. Nothing of this "
        "batch was published, since it would be taken for the one that had its number. Use another checkpointLocation, "
        "with startingOffsets that say where to go on"
    )


def _task_name() -> str:
    context = TaskContext.get()
    return "0-0" if context is None else f"{context.partitionId()}-{context.attemptNumber()}"


def _laid(messages: list[WriterCommitMessage | None]) -> list[Any]:
    return [one for message in messages if isinstance(message, Staged) for one in message.laid]


def _queries(messages: list[WriterCommitMessage | None]) -> list[str]:
    """The query of a micro-batch: one, or none if no task told."""
    return list(dict.fromkeys(one.query for one in messages if isinstance(one, Staged) and one.query is not None))
