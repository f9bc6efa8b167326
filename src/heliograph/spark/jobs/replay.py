"""``replay``: messages of a range, by a condition or by SQL, from archive and log back into a channel, each once."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from heliograph.errors import ConfigError, InvalidMessage
from heliograph.names import check_publishable
from heliograph.spark.pipelines.declared import Option, procedure
from heliograph.spark.pipelines.run import Progress, Result, Run
from heliograph.spark.pipelines.tables import records_of

if TYPE_CHECKING:
    from heliograph.spark.replay.record import Record

_CHUNK_ROWS: Final = 10_000
_CHUNK_S: Final = 1.0
"""With a rate: how much is published at once."""


@procedure(
    "replay",
    options=(
        Option("channel", "Channels to replay: one, several (a,b) or a pattern.", kind="channel", needed=True),
        Option("into", "The channel to publish to.", kind="channel", needed=True),
        Option("start", "Where to begin: first, an offset, a time, -1h.  [default: first]", default="first"),
        Option("end", "Where to end: new, an offset, a time, -5m.  [default: new]", default="new"),
        Option("where", "Only messages that fulfil this SQL condition on their columns."),
        Option("sql", "A SELECT over the table 'messages'; it keeps channel, partition, offset and time."),
        Option("rate", "At most so many messages a second.  [default: as fast as it can]", kind="decimal"),
        Option("new_ids", "Give messages a new id and the time of now.", kind="flag"),
        Option("name", "What the replay is called.  [default: made from what is replayed]"),
        Option("dry_run", "Only count what would be published.", kind="flag"),
    ),
    examples="""
helio pipeline run replay --channel orders --into again --start -1d --dry-run
helio pipeline run replay --channel orders --into again --start -1d --rate 500
helio pipeline run replay --channel 'logs.>' --into check --where "key = 'a'"
""",
)
def replay(run: Run, name: str | None, rate: float | None, dry_run: bool, **asked: Any) -> Result:
    """Publish messages of archive and log once more: a range of them, those that fulfil a condition, or what SQL makes.

    Messages keep their id, time, key, type and headers. Order is kept within each partition.

    A replay that was interrupted goes on where it was when the same command is run again, and once it is done the same
    command publishes nothing: --name makes it another one.
    """
    from heliograph.spark.replay import record as records
    from heliograph.spark.replay.record import Record, Said
    from heliograph.spark.replay.rows import left_of, resolved, selected

    said = Said(**asked)
    check_publishable(said.into)
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"--rate {rate:g}: leave it out to publish as fast as possible")
    called = name or hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:12]
    record = records.load(run.folder, called, said)
    if record is None:
        starts, ends = resolved(run.path, said)
        record = Record(said=said, starts=starts, ends=ends)
    if dry_run:
        return _counted(selected(run.spark, run.path, said, record.starts, record.ends), called, record)
    if record.done:
        facts = {"published": 0, "done": f"already ({record.published_after}); another --name publishes again"}
        return Result({}, {"replay": called, "into": said.into, **facts})
    records.save(run.folder, called, record)
    publishing = _Publishing(run, called, record, rate)
    starts = left_of(said, record.starts, publishing.reached.left)
    total = publishing.all(selected(run.spark, run.path, said, starts, record.ends))
    facts = {"published": publishing.now, "published before": total - publishing.now}
    return Result({}, {"replay": called, "into": said.into, **facts})


def _counted(table: Any, name: str, record: Record) -> Result:
    """What would be published."""
    from pyspark.sql import functions as F

    counts = (
        table.groupBy("channel", "type")
        .agg(F.count("*").alias("messages"), F.min("time").alias("first"), F.max("time").alias("last"))
        .orderBy("channel", "type")
    )
    rows = records_of(counts)
    facts = {
        "replay": name, "into": record.said.into, "messages": sum(row["messages"] for row in rows),
        "published already": record.published_after,
    }  # fmt: skip
    return Result({"would be published": rows}, facts)


class _Publishing:
    """The way of the rows into the channel."""

    def __init__(self, run: Run, name: str, record: Record, rate: float | None) -> None:
        from heliograph.spark.options import WriteOptions
        from heliograph.spark.replay.record import reached
        from heliograph.spark.staging import Settings

        self._run = run
        self._name = name
        self._record = record
        self._rate = rate
        self._options = WriteOptions(str(run.path), record.said.into, None, "replay")
        self._settings = Settings.load(str(run.path))
        self.reached = reached(run.path, name, record)
        self._begun = time.monotonic()
        self.now = 0

    def all(self, table: Any) -> int:
        """Publish what is left; how many messages of it there are in all."""
        from heliograph.spark.replay.record import save
        from heliograph.spark.replay.rows import chunks, joined, ordered

        batch, after, published, left = self.reached
        size = _CHUNK_ROWS if self._rate is None else max(1, min(_CHUNK_ROWS, int(self._rate * _CHUNK_S)))
        for at, rows, behind in chunks(ordered(table, after, left), size, new_ids=self._record.said.new_ids):
            if not self._paced():
                return published
            batch += 1
            self._record = msgspec.structs.replace(
                self._record, batch=batch, before=after, published_before=published, left_before=left, after=at,
                published_after=published + rows.num_rows, left_after=joined(left, behind),
            )  # fmt: skip
            self._publish(rows, batch)
            after, published, left = at, self._record.published_after, self._record.left_after
            self.now += rows.num_rows
            self._tell(batch)
        save(self._run.folder, self._name, msgspec.structs.replace(self._record, done=True))
        return published

    def _publish(self, rows: Any, batch: int) -> None:
        from heliograph.spark.replay.record import query, save
        from heliograph.spark.staging import Stage
        from heliograph.staging.publishing import publish_batch

        who = query(self._name)
        try:
            sections = Stage(self._options, who, str(batch), "0", self._settings).write(iter([rows]))
        except InvalidMessage as error:  # of another writer, whom nobody stopped
            raise InvalidMessage(
                f"batch {batch} of the replay holds a message that cannot be published: {error}. --where leaves "
                "messages out, --sql changes them, --new-ids gives them ids"
            ) from None
        save(self._run.folder, self._name, self._record)
        publish_batch(str(self._run.path), who, str(batch), sections)

    def _paced(self, sleep: Callable[[float], object] = time.sleep) -> bool:
        """Wait until more may be published; False if somebody asked to stop."""
        while not self._run.stopping():
            early = 0.0 if self._rate is None else self._begun + self.now / self._rate - time.monotonic()
            if early <= 0:
                return True
            sleep(min(early, 0.25))
        return False

    def _tell(self, batch: int) -> None:
        rate = self.now / max(1e-3, time.monotonic() - self._begun)
        self._run.tell(Progress(batches=batch, rows=self.now, rows_per_s=round(rate, 1)))
