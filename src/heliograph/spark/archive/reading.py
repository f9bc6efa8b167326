"""Rows from the archive: what a task does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from heliograph.errors import Incomplete
from heliograph.spark.archive.covering import FileSplit, path_of
from heliograph.spark.archive.manifest import Range
from heliograph.spark.archive.writing import KEPT
from heliograph.spark.columns import Wanted
from heliograph.spark.payload import typed
from heliograph.spark.rows import fitting

_ELSEWHERE: Final = frozenset({"channel", "gap", "appended"})
"""Columns that no file has: its path tells, or nobody."""
_raws: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode: Final = msgspec.json.Decoder().decode


def read_file(split: FileSplit, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The rows of a split."""
    columns = sorted({"partition", "offset", *_needed(wanted)})
    for _ in range(3):  # it may be moved between the look and the opening
        try:
            file = pq.ParquetFile(path_of(split))
            break
        except FileNotFoundError:
            continue
    else:
        raise Incomplete(f"{split.file.name} of channel '{split.channel}' is not in the archive {split.root} any more")
    with file:
        for batch in file.iter_batches(columns=[name for name in columns if name in file.schema_arrow.names]):
            rows = pa.Table.from_batches([batch]).filter(_within(batch, split.ranges))
            if wanted.payload_type is not None:
                rows = rows.filter(pc.fill_null(pc.equal(rows["type"], wanted.payload_type), False))
            if rows.num_rows:
                yield from _shaped(rows, split, wanted).to_batches()


def _needed(wanted: Wanted) -> set[str]:
    names = {name for name in wanted.schema.names if name in KEPT.names}
    if any(name not in KEPT.names and name not in _ELSEWHERE for name in wanted.schema.names):
        names |= {"headers", "headers_json"}
    return names | ({"type"} if wanted.payload_type is not None else set())


def _within(batch: pa.RecordBatch, ranges: dict[int, Range]) -> Any:
    fits = None
    for number, (first, following) in ranges.items():
        offsets = batch["offset"]
        one = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, following))
        one = pc.and_(one, pc.equal(batch["partition"], number))
        fits = one if fits is None else pc.or_(fits, one)
    return fits


def _shaped(rows: pa.Table, split: FileSplit, wanted: Wanted) -> pa.Table:
    return pa.Table.from_arrays([_column(field, rows, split, wanted) for field in wanted.schema], schema=wanted.schema)


def _column(field: pa.Field, rows: pa.Table, split: FileSplit, wanted: Wanted) -> Any:
    name = field.name
    if name == "channel":
        return pa.repeat(pa.scalar(split.channel, pa.string()), rows.num_rows)
    if name == "data" and not pa.types.is_string(field.type):
        offsets = rows["offset"]

        def place(at: int) -> str:
            return f"{split.channel}, archived, offset {offsets[at].as_py()}"

        return typed(rows["data"].combine_chunks(), field.type, place, fail=wanted.fail_on_mismatch)
    if name in rows.column_names:
        return rows[name].cast(field.type)
    if name in _ELSEWHERE or name in KEPT.names:  # a file of an earlier version may not have it
        return pa.nulls(rows.num_rows, field.type)
    texts = [dict(headers or ()).get(name) for headers in rows["headers"].to_pylist()]
    exact = rows["headers_json"].to_pylist() if "headers_json" in rows.column_names else [None] * rows.num_rows
    values = [_header(name, text, known, field.type) for text, known in zip(texts, exact, strict=True)]
    return pa.array(values, field.type)


def _header(name: str, text: str | None, known: str | None, kind: pa.DataType) -> Any:
    """A header as what is asked for; None if it is not that. An earlier version kept it as text alone."""
    raw = None if text is None or known is None else _raws(known)[name]
    if text is None or (raw is not None and bytes(raw) == b"null"):
        return None
    if pa.types.is_string(kind):
        return text
    try:
        return pc.cast(pa.scalar(text), kind).as_py() if raw is None else fitting(_decode(raw), kind)
    except (pa.ArrowInvalid, msgspec.MsgspecError):
        return None
