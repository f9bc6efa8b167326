"""Archiving without a Spark: what its tasks do, done here; everything else is the real thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from heliograph.spark.archive import steps
from heliograph.spark.archive.manifest import Range
from heliograph.spark.archive.steps import Done
from heliograph.spark.archive.writing import Writing
from heliograph.spark.columns import kept_schema
from heliograph.spark.options import Channels, read_options
from heliograph.spark.source import Reader
from tests.spark.reading_back import reader, rows

LARGE = 1 << 30
TOLD = pa.schema([
    ("channel", pa.string()), ("partition", pa.int32()), ("date", pa.string()), ("name", pa.string()),
    *((name, pa.int64()) for name in ("rows", "bytes", "first", "next", "min_us", "max_us")), ("reason", pa.string()),
])  # fmt: skip


def write_here(_: Any, options: dict[str, str], root: Path, file_bytes: int) -> list[Any]:
    """As Spark would: a split after the other."""
    one = Reader(read_options(options, streaming=False), kept_schema(gaps=True))
    told = []
    for split in one.partitions():
        for batch in Writing(str(root), file_bytes, TOLD)(one.read(split)):
            told += batch.to_pylist()
    return told


def archive(
    path: Path, root: Path | None = None, *, channel: str = ">", step_bytes: int = LARGE, file_bytes: int = LARGE
) -> Done:
    """Archive everything; what the last step did."""
    root = root or path / "archive"
    with steps.held(root):
        while True:
            done = steps.step(None, path, root, Channels(channel), step_bytes, file_bytes)  # type: ignore[arg-type]
            if not done.left:
                return done


def whole(path: Path, channel: str, **options: Any) -> list[dict[str, Any]]:
    """Archive and log as one table."""
    return rows(reader(path, channel, includeArchive="true", **options))


def places(found: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return sorted((row["channel"], row["partition"], row["offset"]) for row in found)


__all__ = ["LARGE", "Range", "archive", "places", "whole", "write_here"]
