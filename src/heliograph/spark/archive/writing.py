"""What a task does for the archive: writes its rows into Parquet files that nobody sees yet, and tells of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.spark.archive.manifest import STAGED

TOLD: Final = (
    "channel STRING, partition INT, date STRING, name STRING, rows BIGINT, bytes BIGINT, first BIGINT, next BIGINT, "
    "min_us BIGINT, max_us BIGINT, reason STRING"
)
"""What a task tells: a row for each file, and one with a reason for messages that could not be read."""
_UTC: Final = pa.timestamp("us", "UTC")
KEPT: Final = pa.schema([
    ("partition", pa.int32()), ("offset", pa.int64()), ("time", _UTC), ("id", pa.string()), ("source", pa.string()),
    ("type", pa.string()), ("key", pa.string()), ("subject", pa.string()), ("correlationid", pa.string()),
    ("traceparent", pa.string()), ("headers", pa.map_(pa.string(), pa.string())), ("data", pa.string()),
    ("bytes", pa.binary()), ("expires", _UTC), ("origin", pa.string()), ("originseq", pa.string()),
    ("headers_json", pa.string()),
])  # fmt: skip
"""The columns of a file; the channel and the date are in its path. Files of earlier versions lack the last one."""
_OPEN_MAX: Final = 16
_GROUP_ROWS: Final = 128 * 1024


def as_kept(rows: pa.Table) -> pa.Table:
    """Rows of a file; what its version did not keep is null."""
    for field in KEPT:
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(KEPT.names).cast(KEPT)


class StagedFile:
    """One file while it is written."""

    def __init__(self, root: Path, channel: str, partition: int, date: str, first: int) -> None:
        self.channel, self.partition, self.date = channel, partition, date
        self.name = f"{partition}-{first:020d}-{os.urandom(6).hex()}.parquet"
        self.path = root / STAGED / self.name
        self.rows = 0
        self.first, self.last = first, first
        self.times: list[int] = []
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._writer: Any = None

    def add(self, rows: pa.Table) -> None:
        """More rows; they are written in groups of a size that readers like."""
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self.rows += rows.num_rows
        bounds = pc.min_max(rows["offset"])
        self.first, self.last = min(self.first, bounds["min"].as_py()), max(self.last, bounds["max"].as_py())
        moments = pc.min_max(rows["time"].cast(pa.int64()))
        if moments["min"].is_valid:
            self.times += [moments["min"].as_py(), moments["max"].as_py()]
        if self._waiting_rows >= _GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self.path, KEPT, compression="zstd")
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=_GROUP_ROWS)
        self._waiting, self._waiting_rows = [], 0

    def size(self) -> int:
        """How much of it is written, about."""
        return self.path.stat().st_size if self._writer is not None else 0

    def finish(self) -> dict[str, Any]:
        """Make it durable; what there is to tell of it."""
        self._write()
        self._writer.close()
        fd = SYSTEM_DISK.open(self.path, os.O_RDWR)
        try:
            SYSTEM_DISK.fdatasync(fd)
            size = SYSTEM_DISK.fstat(fd).st_size
        finally:
            SYSTEM_DISK.close(fd)
        SYSTEM_DISK.sync_directory(self.path.parent)
        return {
            "channel": self.channel, "partition": self.partition, "date": self.date, "name": self.name,
            "rows": self.rows, "bytes": size, "first": self.first, "next": self.last + 1,
            "min_us": min(self.times, default=0), "max_us": max(self.times, default=0), "reason": None,
        }  # fmt: skip


class Writing:
    """For ``mapInArrow``: rows of channels become files, at most ``file_bytes`` large, about."""

    def __init__(self, root: str, file_bytes: int, told: pa.Schema) -> None:
        self._root = root
        self._file_bytes = file_bytes
        self._told = told

    @explaining("cannot write to the archive")
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In a task."""
        told = list(self._written(batches))
        if told:
            yield pa.RecordBatch.from_pylist(told, schema=self._told)

    def _written(self, batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        files: dict[tuple[str, int, str], StagedFile] = {}
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            missing = pc.is_valid(rows["gap"])
            yield from _holes(rows.filter(missing))
            rows = rows.filter(pc.invert(missing))
            for place, part in _parted(rows):
                if place not in files:
                    if len(files) >= _OPEN_MAX:
                        yield files.pop(next(iter(files))).finish()
                    files[place] = StagedFile(Path(self._root), *place, part["offset"][0].as_py())
                files[place].add(part)
                if files[place].size() >= self._file_bytes:
                    yield files.pop(place).finish()
        for file in files.values():
            yield file.finish()


def _holes(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for row in rows.select(["channel", "partition", "offset", "gap"]).to_pylist():
        yield {
            "channel": row["channel"], "partition": row["partition"], "first": row["offset"],
            "next": row["gap"]["next"], "reason": row["gap"]["reason"],
        }  # fmt: skip


def _parted(rows: pa.Table) -> Iterator[tuple[tuple[str, int, str], pa.Table]]:
    """Rows by channel, partition and date, as the archive keeps them."""
    if not rows.num_rows:
        return
    times = rows["time"].cast(_UTC)
    days = pc.floor_temporal(times, unit="day").cast(pa.int64()).combine_chunks()
    columns = [rows[field.name].cast(field.type) for field in KEPT]
    kept = pa.Table.from_arrays(columns, schema=KEPT)
    places = pa.table({"channel": rows["channel"], "partition": rows["partition"], "day": days})
    for place in places.group_by(["channel", "partition", "day"], use_threads=False).aggregate([]).to_pylist():
        fits = pc.and_(
            pc.and_(pc.equal(rows["channel"], place["channel"]), pc.equal(rows["partition"], place["partition"])),
            pc.equal(days, place["day"]),
        )
        yield (place["channel"], place["partition"], _date(place["day"])), kept.filter(fits)


def _date(day_us: int) -> str:
    from datetime import UTC, datetime, timedelta

    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=day_us):%Y-%m-%d}"
