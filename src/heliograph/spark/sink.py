"""``write`` and ``writeStream``: tasks lay messages aside, the driver publishes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from heliograph import config as configs
from heliograph.errors import ConfigError, HeliographError
from heliograph.spark.bodies import check_columns
from heliograph.spark.directory import Directory
from heliograph.spark.options import WriteOptions
from heliograph.spark.publishing import ALONE, drop_batch, publish_batch, tidy
from heliograph.spark.staging import Section, Stage


@dataclass
class Staged(WriterCommitMessage):
    """What a task laid aside."""

    query: str | None
    sections: list[Section]


def _prepared(options: WriteOptions, schema: StructType) -> int:
    """Look at everything that can be wrong before a task runs; how large a message may be."""
    check_columns(schema, options)
    Directory(options.path).close()
    return configs.load(None, data_dir=options.path).messages.max_bytes


class BatchWriter(DataSourceArrowWriter):
    """Publishes a table once."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a channel is appended to: write.mode('append'). To begin anew, delete the channel first")
        self._options = options
        self._max_bytes = _prepared(options, schema)
        self._batch = os.urandom(8).hex()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task."""
        stage = Stage(self._options, ALONE, self._batch, _task_name(), self._max_bytes)
        return Staged(None, stage.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        publish_batch(self._options.path, None, self._batch, _sections(messages))
        tidy(self._options.path)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - what failed says nothing
        """A task failed for good."""
        drop_batch(self._options.path, None, self._batch)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes every micro-batch of a query once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._max_bytes = _prepared(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise HeliographError("this Spark does not tell its tasks which query they belong to; use foreachBatch")
        return Staged(query, Stage(self._options, query, batch, _task_name(), self._max_bytes).write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of a micro-batch are done; perhaps they were before, and Spark did not live to note it."""
        for query in _queries(messages):
            publish_batch(self._options.path, query, str(batchId), _sections(messages))
        if batchId % 100 == 0:
            tidy(self._options.path)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """A task failed for good."""
        for query in _queries(messages):
            drop_batch(self._options.path, query, str(batchId))


def _task_name() -> str:
    context = TaskContext.get()
    return "0-0" if context is None else f"{context.partitionId()}-{context.attemptNumber()}"


def _sections(messages: list[WriterCommitMessage | None]) -> list[Section]:
    return [section for one in messages if isinstance(one, Staged) for section in one.sections]


def _queries(messages: list[WriterCommitMessage | None]) -> list[str]:
    """The query of a micro-batch: one, or none if no task told."""
    return list(dict.fromkeys(one.query for one in messages if isinstance(one, Staged) and one.query is not None))
