"""``archive``: channels as Parquet files by channel and date, each message once; ``compact``: fewer, larger files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heliograph.config.units import MIB
from heliograph.errors import ConfigError
from heliograph.spark.pipelines.declared import AVAILABLE, Option, procedure
from heliograph.spark.pipelines.run import Progress, Result, Run

if TYPE_CHECKING:
    from heliograph.spark.archive.steps import Done

STEP_BYTES: Final = 1024 * MIB
FILE_BYTES: Final = 128 * MIB
OLD_S: Final = 3600.0
"""How long files that were merged into others stay for whoever still reads them."""

_TO: Final = Option("to", "The directory of the archive.  [default: archive, in the station's]", kind="path")
_FILE_BYTES: Final = Option(
    "file_bytes", "How large a file becomes, about.  [default: 128MiB]", kind="size", default=FILE_BYTES
)


def place(path: Path, to: str | None, file_bytes: int) -> Path:
    """The archive's directory. What can be wrong with it, or with the size of its files, is said here."""
    from heliograph.spark.archive.manifest import DEFAULT
    from heliograph.spark.pipelines.running import check_apart

    if file_bytes < 1:
        raise ConfigError(f"--file-bytes {file_bytes}: a file has at least one byte")
    found = Path(to).resolve() if to else path / DEFAULT
    check_apart(path, found, "archive", but=DEFAULT)
    if found.exists() and not found.is_dir():
        raise ConfigError(f"archive {found}: that is a file, and an archive is a directory. Choose another")
    return found


@procedure(
    "archive",
    options=(
        Option("channel", "Channels, one or several (a,b) or a pattern.  [default: all]", kind="channel", default=">"),
        _TO,
        _FILE_BYTES,
        Option(
            "step_bytes", "How much of the logs is archived in one step.  [default: 1GiB]", kind="size",
            default=STEP_BYTES,
        ),
    ),
    trigger=AVAILABLE,
    examples="""
helio pipeline run archive
helio pipeline run archive --channel 'sensors.>' --to /mnt/archive
helio pipeline run archive --trigger '1 minute'   # goes on until stopped
""",
)  # fmt: skip
def archive(run: Run, channel: str, to: str | None, file_bytes: int, step_bytes: int) -> Result:
    """Keep channels as Parquet files, by channel and date: each message once, whatever is killed when.

    The archive remembers how far it has come in each partition, so the next run goes on there; other channels may be
    named every time. Read it with any tool that reads Parquet (DIR/channel=NAME/date=DAY/*.parquet), or together
    with the log: spark.read.format("heliograph").option("includeArchive", "true").

    With the setting retention_archived a channel's segments are deleted only once they are archived.
    """
    from heliograph.spark.archive import manifest as manifests
    from heliograph.spark.archive.steps import held, note_all, step
    from heliograph.spark.options import Channels
    from heliograph.spark.pipelines.running import rounds

    root = place(run.path, to, file_bytes)
    total = Total()
    with held(root):
        note_all(run.path, root)  # a run before may have died before it could
        for _ in rounds(run, time.sleep):
            while not run.stopping():
                done = step(run.spark, run.path, root, Channels(channel), step_bytes, file_bytes)
                total.add(done)
                run.tell(total.progress(done))
                if not done.left:
                    break
        manifests.sweep(root, OLD_S, time.time())
    return total.result(root)


class Total:
    """What all steps of a run did."""

    def __init__(self) -> None:
        self.rows = self.files = self.bytes = self.steps = 0
        self.holes: list[dict[str, Any]] = []
        self._begun = time.monotonic()

    def add(self, done: Done) -> None:
        """One more."""
        self.rows += done.rows
        self.files += done.files
        self.bytes += done.bytes
        self.steps += bool(done.rows)
        self.holes += [
            {
                "channel": channel, "partition": hole.partition, "first": hole.range.first,
                "last": hole.range.next - 1, "reason": hole.reason,
            }
            for channel, hole in done.holes
        ]  # fmt: skip

    def progress(self, done: Done) -> Progress:
        """For whoever watches."""
        rate = self.rows / max(1e-3, time.monotonic() - self._begun)
        return Progress(batches=self.steps, rows=self.rows, rows_per_s=round(rate, 1), lag=done.left)

    def result(self, root: Path) -> Result:
        """For whoever reads the last line."""
        facts = {"archive": str(root), "messages": self.rows, "files": self.files, "bytes": self.bytes}
        return Result({"missing": self.holes} if self.holes else {}, facts, bad=bool(self.holes))


@procedure(
    "compact",
    options=(
        Option("channel", "Channels, one or several (a,b) or a pattern.  [default: all]", kind="channel", default=">"),
        _TO,
        _FILE_BYTES,
    ),
    examples="""
helio pipeline run compact
helio pipeline run compact --channel alerts --file-bytes 256MiB
""",
)
def compact(run: Run, channel: str, to: str | None, file_bytes: int) -> Result:
    """Merge the small files of the archive into larger ones, day by day.

    Whoever reads meanwhile reads each message once: the old files stay out of the way for an hour.
    """
    from heliograph.spark.archive import manifest as manifests
    from heliograph.spark.archive.merging import merge
    from heliograph.spark.archive.steps import held
    from heliograph.spark.options import Channels

    root = place(run.path, to, file_bytes)
    before = after = 0
    with held(root):
        names = manifests.channels(root)
        for at, name in enumerate(one for one in Channels(channel).among(names) if one in names):
            if run.stopping():
                break
            merged = merge(run.spark, root, name, file_bytes)
            before, after = before + merged.before, after + merged.after
            run.tell(Progress(batches=at + 1, rows=before, note=name))
        manifests.sweep(root, OLD_S, time.time())
    return Result({}, {"archive": str(root), "files before": before, "files after": after})
