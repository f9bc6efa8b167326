"""Where the rows of a pipeline go: of a table when all is read, of a stream micro-batch by micro-batch, each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heliograph.errors import ConfigError, HeliographError
from heliograph.spark.pipelines.declared import AVAILABLE, ONCE, Output, interval_s
from heliograph.spark.pipelines.run import Run, placed
from heliograph.spark.pipelines.tables import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONSOLE_ROWS: Final = 20
Show = Callable[[str, list[str], list[tuple[Any, ...]]], None]
"""Prints some rows: title, columns, rows."""


# -- tables -----------------------------------------------------------------------------------------------------------


def write(run: Run, tables: Mapping[str, DataFrame], output: Output) -> dict[str, str]:
    """Write tables somewhere; where each is."""
    written: dict[str, str] = {}
    for name, table in tables.items():
        place = output.to if len(tables) == 1 else f"{output.to}/{name}"
        if output.kind == "channel":
            run.publish(table, output.to, **output.options)
            place = output.to
        elif output.kind == "parquet":
            _write_parquet(table, place, output)
        else:
            write_delta(table, place, output, None)
        written[name] = f"{output.kind} {place}"
    return written


def _write_parquet(table: DataFrame, place: str, output: Output) -> None:
    if output.mode != "complete" and Path(place).exists():
        raise ConfigError(f"{place} is there already: choose another directory, or say mode: complete to replace it")
    mode = "overwrite" if output.mode == "complete" else "errorifexists"  # a URL is looked at by Spark alone
    table.write.mode(mode).partitionBy(*output.partition_by).options(**output.options).parquet(place)


# -- streams ----------------------------------------------------------------------------------------------------------


def start(run: Run, rows: DataFrame, output: Output, checkpoint: str, life: str, show: Show | None) -> Any:
    """Begin to write a stream; Spark's query."""
    writer = rows.writeStream.queryName(run.pipeline.name).outputMode(output.mode)
    writer = writer.option("checkpointLocation", checkpoint)
    if run.trigger == AVAILABLE:
        writer = writer.trigger(availableNow=True)
    elif run.trigger == ONCE:
        writer = writer.trigger(once=True)
    else:
        writer = writer.trigger(processingTime=f"{round(interval_s(run.trigger) * 1000)} milliseconds")
    if output.kind == "channel":
        place = placed(output.options, str(run.path))
        if output.mode == "update":  # Spark has that for no sink in Python
            return writer.foreachBatch(lambda batch, number: _publish(batch, place, output.to, life, number)).start()
        return writer.format("heliograph").options(**place).option("channel", output.to).start()
    if output.kind == "parquet":
        return writer.format("parquet").partitionBy(*output.partition_by).options(**output.options).start(output.to)
    if output.kind == "delta":
        application = f"heliograph.{run.pipeline.name}.{life}"
        return writer.foreachBatch(
            lambda batch, number: write_delta(batch, output.to, output, (application, number))
        ).start()
    assert show is not None  # whoever runs it has looked
    return writer.foreachBatch(lambda batch, number: _print(batch, number, show)).start()


def _publish(batch: DataFrame, place: Mapping[str, str], channel: str, life: str, number: int) -> None:
    """A micro-batch as the sink would publish it: once, recognised by the life of its checkpoint and its number."""
    options = {**place, "channel": channel, "query": life, "batch": str(number)}
    batch.write.format("heliograph").mode("append").options(**options).save()


def _print(batch: DataFrame, number: int, show: Show) -> None:
    found = rows_of(batch, CONSOLE_ROWS)
    if found.rows:
        show(f"batch {number}", found.columns, [tuple(row.values()) for row in found.rows])


# -- Delta ------------------------------------------------------------------------------------------------------------


def needs_delta() -> None:
    """One clear line if the package is missing."""
    try:
        import deltalake  # noqa: F401 - only whether it is there
    except ImportError:
        raise ConfigError("output delta needs the package deltalake: pip install 'heliograph[delta]'") from None


def write_delta(rows: DataFrame, place: str, output: Output, batch: tuple[str, int] | None) -> None:
    """Write rows to a Delta table; those of a batch once, recognised by the application and the batch's number."""
    needs_delta()
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    properties = None
    if batch is not None:
        application, number = batch
        if DeltaTable.is_deltatable(place):
            done = DeltaTable(place).transaction_version(application)
            if done is not None and done >= number:
                return
        properties = CommitProperties(app_transactions=[Transaction(application, number)])
    elif output.mode != "complete" and DeltaTable.is_deltatable(place):
        raise ConfigError(f"{place} is there already: choose another directory, or say mode: complete to replace it")
    found = rows.toArrow()
    if batch is not None and not found.num_rows and output.mode != "complete":
        return
    try:
        write_deltalake(
            place, found, mode="overwrite" if output.mode == "complete" else "append",
            partition_by=list(output.partition_by) or None, commit_properties=properties,
        )  # fmt: skip
    except Exception as error:
        raise HeliographError(f"cannot write the Delta table {place}: {error}") from error
