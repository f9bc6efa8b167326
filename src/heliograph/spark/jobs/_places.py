"""Where messages are that several jobs compare or follow: data directories of stations, and archives."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from heliograph.errors import ConfigError, NotFound
from heliograph.spark.archive import manifest as manifests
from heliograph.spark.pipelines import Input, Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ENVELOPE: Final = (
    "channel STRING, partition INT, offset BIGINT, time TIMESTAMP, id STRING, source STRING, type STRING, key STRING, "
    "subject STRING, correlationid STRING, traceparent STRING, headers MAP<STRING, STRING>, data STRING, bytes BINARY, "
    "expires TIMESTAMP, origin STRING, originseq STRING"
)
"""What both a log and an archive keep of a message."""
_NAMES: Final = [column.strip().split(" ")[0] for column in ENVELOPE.replace("STRING, STRING", "").split(",")]


class Place(NamedTuple):
    """A station's directory, or an archive."""

    name: str
    path: Path
    archive: bool

    def channels(self) -> list[str]:
        """What there is."""
        if self.archive:
            return manifests.channels(self.path)
        from heliograph.spark.directory import Directory

        with Directory(str(self.path)) as directory:
            return directory.engine.channel_names()

    def read(self, run: Run, channels: list[str], more: str = "") -> DataFrame:
        """The messages of some channels that are there; ``more`` columns only of a log."""
        from pyspark.sql import functions as F

        here = set(self.channels())
        found = [name for name in channels if name in here]
        if found and not self.archive:
            return run.read(Input(",".join(found), {"failOnGap": "false"}, ENVELOPE + more, str(self.path)))
        archived = {name: manifests.load(self.path, name).files for name in found}
        tables = [
            run.spark.read.parquet(*(str(manifests.find_file(self.path, name, file)) for file in files)).withColumn(
                "channel", F.lit(name)
            )
            for name, files in archived.items()
            if files
        ]
        if not tables:
            return run.spark.createDataFrame([], ENVELOPE + more)
        return reduce(lambda one, other: one.unionByName(other), tables).select(*_NAMES)


def place(path: str | Path) -> Place:
    """What a directory is."""
    root = Path(path).resolve()
    if (root / "station.json").is_file():
        return Place(str(msgspec.json.decode((root / "station.json").read_bytes())["name"]), root, False)
    if manifests.channels(root):
        return Place(root.name, root, True)
    if not root.is_dir():
        raise NotFound(f"there is no directory {path}")
    raise ConfigError(f"{path} is neither a station's data directory nor an archive")


def places(paths: list[str | Path]) -> list[Place]:
    """Several of them, by names that differ. One that is named twice would have every message twice."""
    found = [place(path) for path in paths]
    twice = [one for at, one in enumerate(found) if one in found[:at]]
    if twice:
        raise ConfigError(f"{twice[0].path} is named twice: --also names other stations, or archives")
    names = [one.name for one in found]
    return [one if names.count(one.name) == 1 else one._replace(name=str(one.path)) for one in found]
