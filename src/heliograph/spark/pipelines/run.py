"""What a pipeline has in its hands while it runs, and what it leaves to be shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from heliograph.spark.pipelines.declared import Input, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_STREAMS: Final = frozenset({"maxbytespertrigger", "maxmessagespertrigger"})
"""Options that bound micro-batches: whoever reads a table does not mean them."""


class Result(msgspec.Struct, frozen=True):
    """What is to be shown at the end: tables (DataFrames, or lists of mappings) and facts, by name."""

    tables: Mapping[str, Any] = {}
    facts: Mapping[str, Any] = {}
    bad: bool = False
    """Whether what was looked for was found and is no good news: the command's exit code is 1 then."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come."""

    batches: int = 0
    rows: int = 0
    """How many rows it has read, or for a procedure dealt with, since it was started."""
    rows_per_s: float = 0.0
    lag: int | None = None
    """How many messages are there that it has not read."""
    watermark: str | None = None
    """Events older than this come too late for its windows."""
    note: str = ""


class Run:
    """A run of a pipeline: its session and its station. Procedures are given one."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        folder: Path,
        pipeline: Pipeline,
        *,
        trigger: str,
        stopping: Callable[[], bool] = lambda: False,
        tell: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self.spark = spark
        self.path = path
        """The station's directory."""
        self.folder = folder
        """The pipeline's own, for whatever it has to keep."""
        self.pipeline = pipeline
        self.trigger = trigger
        self.stopping = stopping
        """Whether somebody asked it to end: look between two steps, and return."""
        self.tell = tell
        """Say how far it has come."""

    def read(self, table: Input) -> DataFrame:
        """What is there of some channels."""
        options = {name: value for name, value in table.options.items() if name.lower() not in _STREAMS}
        return self._options(self.spark.read, msgspec.structs.replace(table, options=options)).load()

    def stream(self, table: Input) -> DataFrame:
        """What comes in some channels."""
        return self._options(self.spark.readStream, table).load()

    def publish(self, rows: DataFrame, channel: str | None = None, **options: str) -> None:
        """Publish rows, all of them or none, to a channel or to those that column ``channel`` names."""
        writer = rows.write.format("heliograph").mode("append").options(**placed(options, str(self.path)))
        (writer if channel is None else writer.option("channel", channel)).save()

    def _options(self, reader: Any, table: Input) -> Any:
        place = placed(table.options, table.station or str(self.path))
        reader = reader.format("heliograph").options(**place).option("channel", table.channel)
        return reader if table.schema is None else reader.schema(table.schema)


def placed(options: Mapping[str, str], path: str) -> dict[str, str]:
    """Options of the source or the sink, with a station's directory unless they name a hub.

    >>> placed({"maxMessagesPerTrigger": "9"}, "data"), placed({"hub": "wss://hub:7740"}, "data")
    ({'path': 'data', 'maxMessagesPerTrigger': '9'}, {'hub': 'wss://hub:7740'})
    """
    return dict(options) if any(name.lower() == "hub" for name in options) else {"path": path, **options}
