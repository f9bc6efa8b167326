"""``spark.read.format("heliograph")`` and its relatives: what Spark asks a data source for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from heliograph.errors import HeliographError, NotFound
from heliograph.spark.archive.covering import FileSplit, check_wanted
from heliograph.spark.archive.together import plan, whole
from heliograph.spark.columns import Wanted, check_schema, default_schema
from heliograph.spark.filters import Conditions, conditions
from heliograph.spark.offsets import Places
from heliograph.spark.options import ReadOptions, read_options, write_options
from heliograph.spark.splits import Ask, Shared, Split, Stretch, shared
from heliograph.spark.store import Store


class HeliographSource(DataSource):
    """Channels as tables and streams, and a place for rows to become messages. See docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """What ``format(…)`` says."""
        return "heliograph"

    def schema(self) -> StructType:
        """The columns of whoever names none."""
        options = read_options(self.options, streaming=None)
        return default_schema(_payload(options), gaps=not options.fail_on_gap)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there."""
        options = read_options(self.options, streaming=False)
        return (FilteringReader if options.pushdown else Reader)(options, check_schema(schema))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        """Reads what comes."""
        from heliograph.spark.stream import Refused, StreamReader

        try:
            return StreamReader(read_options(self.options, streaming=True), check_schema(schema))
        except HeliographError as error:
            return Refused(error)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Publishes rows."""
        from heliograph.spark.sink import BatchWriter

        return BatchWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002, N802 - Spark's names
        """Publishes rows, batch by batch, each once."""
        from heliograph.spark.sink import StreamWriter

        return StreamWriter(write_options(self.options), schema)


def _payload(options: ReadOptions) -> DataType | None:
    """The type of column ``data``: that of a registered payload type, as the newest schema of each channel has it."""
    if options.payload_type is None:
        return None
    from heliograph.spark.payload import common_type, spark_type

    with whole(options) as store:
        schemas = store.schemas(store.among(options.channels), options.payload_type)
    if schemas:
        return functools.reduce(common_type, map(spark_type, schemas))
    raise NotFound(
        f"no channel of {options.channels.text!r} knows a schema of type '{options.payload_type}'; 'helio types list' "
        "shows which there are. Types are registered by publishing: without one, say .schema('…, data STRUCT<…>')"
    )


def wanted(options: ReadOptions, schema: StructType) -> Wanted:
    """What a task has to make of the lines."""
    if options.archive is not None:
        check_wanted(schema.fieldNames())
    arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return Wanted(arrow, options.payload_type, options.fail_on_mismatch)


class Reader(DataSourceReader):
    """Reads what is there now, from some offsets to others."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._wanted = wanted(options, schema)
        self._conditions = Conditions()

    def partitions(self) -> list[InputPartition]:
        """What each task reads."""
        options = self._options
        starting = Places("startingOffsets", options.starting, "first")
        ending = Places("endingOffsets", options.ending, "new")
        with whole(options) as store:
            names = store.among(options.channels)
            for places in (starting, ending):
                places.check_channels(store, names)
            splits = plan(store, asks(store, names, starting, ending), self._conditions, options.split_bytes)
        return shared(splits, options.split_bytes) or [
            Split("", 0, "", ())
        ]  # Spark takes an empty list for one task without a split

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        return read_split(partition, self._options, self._wanted)


def read_split(partition: InputPartition, options: ReadOptions, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """In a task: rows of the log, or of the archive. What decodes is loaded here only: planning is quicker without."""
    if isinstance(partition, FileSplit):
        from heliograph.spark.archive.reading import read_file

        return read_file(partition, wanted)
    if isinstance(partition, Shared):
        return itertools.chain.from_iterable(read_split(one, options, wanted) for one in partition.splits)
    assert isinstance(partition, Split)
    if not partition.stretches and partition.told is None:
        return iter(())
    from heliograph.spark.reading import Stored, Task

    if options.hub is None:
        return Task(Stored(options.path), wanted, fail_on_gap=options.fail_on_gap).read(partition)
    from heliograph.spark.fetching import Fetched

    fetched = Fetched(options.hub, "appended" in wanted.names)
    return Task(fetched, wanted, fail_on_gap=options.fail_on_gap).read(partition)


class FilteringReader(Reader):
    """A reader that filters choose the splits of.

    Not for everybody: Spark 4.3 keeps what was pushed down for all other queries on the same ``load()``, which then
    miss rows. And it refuses a reader with this method unless the session enables it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """What the rows are filtered by: Spark looks at each as well."""
        self._conditions = conditions(filters)
        return filters


def asks(store: Store, names: list[str], starting: Places, ending: Places) -> list[Ask]:
    """The stretches of all partitions of some channels."""
    found: list[Ask] = []
    for name in names:
        life = store.channel(name)
        for number in range(life.partitions):
            end = min(ending.offset(store, name, number), store.bounds(name, number).next)
            start = starting.offset(store, name, number)
            if start < end:
                found.append(Ask(name, number, life.incarnation, Stretch(start, end)))
    return found
