"""One step of archiving: what is new, up to some size, written by Spark, and then there all at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from heliograph.clock import SYSTEM_CLOCK
from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.errors import Busy, NotFound
from heliograph.log.locks import FileLock
from heliograph.names import REPLY
from heliograph.spark.admission import Allowance, admitted
from heliograph.spark.archive import manifest as manifests
from heliograph.spark.archive.manifest import File, Hole, Life, Manifest, Range
from heliograph.spark.archive.writing import TOLD, Writing
from heliograph.spark.columns import kept_schema
from heliograph.spark.directory import Directory
from heliograph.spark.options import Channels
from heliograph.spark.positions import Reached
from heliograph.spark.splits import Ask, Stretch
from heliograph.station import archived

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Done(NamedTuple):
    """What a step did."""

    rows: int
    files: int
    bytes: int
    left: int  # messages that are there and not archived yet
    holes: list[tuple[str, Hole]]


class Planned(NamedTuple):
    """What a step takes of a channel."""

    manifest: Manifest
    life: Life | None  # None: a new one begins
    incarnation: str
    ranges: dict[int, Range]
    waiting: int


@contextlib.contextmanager
def held(root: Path) -> Iterator[None]:
    """Be the one who changes an archive, and finish what the one before did not live to finish."""
    with explaining(f"cannot open the archive {root}"):
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / "_lock", SYSTEM_DISK)
    try:
        if not lock.try_exclusive():
            raise Busy(f"the archive {root} is being changed by another process; try again when it is done")
        for channel in manifests.channels(root):
            manifests.settle(root, manifests.load(root, channel))
        yield
    finally:
        lock.release()


class _Found(NamedTuple):
    """A channel, as it was looked at."""

    manifest: Manifest
    life: Life | None
    incarnation: str
    asks: list[Ask]


def plan(directory: Directory, root: Path, channels: Channels, step_bytes: int) -> list[Planned]:
    """What is there and not archived, of every channel, up to some bytes in all."""
    found: list[_Found] = []
    for name in directory.look(channels):
        if name.startswith(REPLY):
            continue  # gone in a moment
        try:
            found.append(_look(directory, root, name))
        except NotFound:
            if name in channels.names or directory.find(name) is not None:
                raise  # else it was deleted between two looks
    flat = [ask for one in found for ask in one.asks]
    ends = iter(admitted(directory, flat, Allowance(bytes=step_bytes)))
    planned: list[Planned] = []
    for manifest, life, incarnation, asks in found:
        ranges = {ask.partition: Range(ask.stretch.first, next(ends)) for ask in asks}
        waiting = sum(ask.stretch.next - ask.stretch.first for ask in asks)
        if waiting or life is None or life.incarnation != incarnation or ranges.keys() - life.reached.keys():
            planned.append(Planned(manifest, life, incarnation, ranges, waiting))
    return planned


def _look(directory: Directory, root: Path, name: str) -> _Found:
    """What of a channel is archived, and what is there."""
    file = directory.channel(name)
    manifest = manifests.load(root, name)
    manifests.check_there(root, manifest, archived.load(directory.root, name), file.incarnation)
    manifests.check_owner(root, manifest, directory.engine.name, file.incarnation)
    life = manifests.current(manifest, file.incarnation, _looking(directory, name))
    asks = []
    for number in range(file.partitions):
        bounds = directory.bounds(name, number)
        reached = None if life is None else life.reached.get(number)
        first = bounds.first if reached is None else reached.offset
        asks.append(Ask(name, number, file.incarnation, Stretch(first, max(first, bounds.next))))
    return _Found(manifest, life, file.incarnation, asks)


def _looking(directory: Directory, channel: str) -> Any:
    def id_at(partition: int, offset: int) -> str:
        return directory.id_at(channel, partition, offset)

    return id_at


def step(spark: SparkSession, path: Path, root: Path, channels: Channels, step_bytes: int, file_bytes: int) -> Done:
    """Archive what is new, about ``step_bytes`` of it. The caller holds the archive."""
    with Directory(str(path)) as directory:
        planned = plan(directory, root, channels, step_bytes)
        told = _written(spark, directory, root, planned, file_bytes)
        done = Done(0, 0, 0, 0, [])
        for one in planned:
            done = _plus(done, _commit(directory, root, one, told))
    return done


def _written(
    spark: SparkSession, directory: Directory, root: Path, planned: list[Planned], file_bytes: int
) -> list[Any]:
    """What tasks tell who wrote what is planned, without channels that were deleted before they could."""
    while True:
        options = asked(directory.root, planned, file_bytes)
        if options is None:
            return []
        try:
            return write(spark, options, root, file_bytes)
        except Exception:
            there = [one for one in planned if _lives(directory, one)]
            if len(there) == len(planned):
                raise
            planned = there


def _lives(directory: Directory, one: Planned) -> bool:
    """Whether a channel is still the one that it was when its step was planned."""
    file = directory.find(one.manifest.channel)
    return file is not None and file.incarnation == one.incarnation


def asked(path: Path, planned: list[Planned], file_bytes: int) -> dict[str, str] | None:
    """The options with which the source reads what a step takes; None if there is nothing."""
    wanted = {
        one.manifest.channel: {str(number): range for number, range in one.ranges.items()}
        for one in planned
        if any(range.first < range.next for range in one.ranges.values())
    }
    if not wanted:
        return None
    starts, ends = ({name: {n: r[at] for n, r in parts.items()} for name, parts in wanted.items()} for at in (0, 1))
    return {
        "path": str(path), "channel": ",".join(wanted), "startingOffsets": msgspec.json.encode(starts).decode(),
        "endingOffsets": msgspec.json.encode(ends).decode(), "failOnGap": "false", "splitBytes": str(2 * file_bytes),
    }  # fmt: skip


def write(spark: SparkSession, options: dict[str, str], root: Path, file_bytes: int) -> list[Any]:
    """Have tasks write the files; what they tell."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    told = to_arrow_schema(StructType.fromDDL(TOLD))
    rows = spark.read.format("heliograph").schema(kept_schema(gaps=True)).options(**options).load()
    return list(rows.mapInArrow(Writing(str(root), file_bytes, told), TOLD).collect())


def _commit(directory: Directory, root: Path, one: Planned, told: list[Any]) -> Done:
    """Make what was written of a channel, and its new position, true at once."""
    channel = one.manifest.channel
    left = one.waiting - sum(range.next - range.first for range in one.ranges.values())
    if not _lives(directory, one):
        return Done(0, 0, 0, one.waiting, [])  # it lives anew: the next step sees how
    # A partition that was added after the planning was read as well: the next step archives it.
    mine = [row for row in told if row["channel"] == channel and row["partition"] in one.ranges]
    number = len(one.manifest.lives) - (one.life is not None)
    files = [_file(row, number) for row in mine if row["reason"] is None]
    holes = [
        Hole(life=number, partition=row["partition"], range=Range(row["first"], row["next"]), reason=row["reason"])
        for row in mine
        if row["reason"] is not None
    ]
    manifest = Manifest(
        channel=channel, station=directory.engine.name, lives=[*one.manifest.lives[:number], _life(directory, one)],
        files=[*one.manifest.files, *files], holes=[*one.manifest.holes, *holes],
    )  # fmt: skip
    manifests.save(root, manifest)
    manifests.settle(root, manifest)
    note(directory.root, root, manifest)
    return Done(
        sum(file.rows for file in files), len(files), sum(file.bytes for file in files), left,
        [(channel, hole) for hole in holes],
    )  # fmt: skip


def _file(row: Any, life: int) -> File:
    return File(
        name=row["name"], date=row["date"], life=life, rows=row["rows"], bytes=row["bytes"],
        times_us=(row["min_us"], row["max_us"]), ranges={row["partition"]: Range(row["first"], row["next"])},
    )  # fmt: skip


def _life(directory: Directory, one: Planned) -> Life:
    before = one.life
    reached = {
        number: Reached(range.next, directory.id_at(one.manifest.channel, number, range.next - 1))
        for number, range in one.ranges.items()
    }
    firsts = {number: range.first for number, range in one.ranges.items()}
    if before is not None:
        firsts |= before.firsts
        reached = {**before.reached, **reached}
    return Life(incarnation=one.incarnation, firsts=firsts, reached=reached)


def note_all(path: Path, root: Path) -> None:
    """Tell a station how far each of its channels is archived."""
    with Directory(str(path)) as directory:
        for name in manifests.channels(root):
            manifest = manifests.load(root, name)
            if manifest.station in {"", directory.engine.name}:
                note(path, root, manifest)


def note(station: Path, root: Path, manifest: Manifest) -> None:
    """Tell the station how far a channel is archived: retention may wait for that."""
    life = manifest.last
    if life is not None:
        archived.save(
            station, manifest.channel,
            archived.Archived(
                archive=str(root), incarnation=life.incarnation, time=SYSTEM_CLOCK.time_ns() / 1e9,
                positions={str(number): reached.offset for number, reached in life.reached.items()},
            ),
        )  # fmt: skip


def _plus(one: Done, other: Done) -> Done:
    return Done(
        one.rows + other.rows, one.files + other.files, one.bytes + other.bytes, one.left + other.left,
        [*one.holes, *other.holes],
    )  # fmt: skip
