"""How far a replay has come: ``DATA/pipelines/replay/NAME.json``.

Rows are published in batches, in one order that is the same every time. Before a batch is published its number and the
place of its last row are written down, synced; whether it was published then, the sink's own record says (see
``staging/publishing.py``). So whoever comes after a crash goes on behind the last batch that is published, whatever
died when.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.errors import ConfigError, Damaged
from heliograph.names import check_name
from heliograph.staging.publishing import Publishing

Offsets = dict[str, dict[str, int]]
"""An offset for each partition of each channel."""


class At(NamedTuple):
    """A row's place in the order: times never go back within a partition."""

    time_us: int
    channel: str
    partition: int
    offset: int


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    channel: str
    into: str
    start: str
    end: str
    where: str | None = None
    sql: str | None = None
    new_ids: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """NAME.json."""

    said: Said
    starts: Offsets
    """The offsets that the words meant when it began, so that they mean the same when it goes on."""
    ends: Offsets
    batch: int = 0
    """The last batch that was begun; 0 if there was none."""
    before: At | None = None
    published_before: int = 0
    left_before: Offsets | None = None
    """Where what is not published begins, in each partition of which something is: a place in the order does not say
    so for ever, because messages whose times it was made from may be removed. An earlier version did not note it."""
    after: At | None = None
    published_after: int = 0
    left_after: Offsets | None = None
    done: bool = False


class Reached(NamedTuple):
    """Everything up to here is published."""

    batch: int
    at: At | None
    published: int
    left: Offsets | None


_decode: Final = msgspec.json.Decoder(Record).decode


def query(name: str) -> str:
    """Who the sink takes a replay for."""
    return f"replay.{check_name(name, 'replay')}"


def load(folder: Path, name: str, said: Said) -> Record | None:
    """What is known of a replay; None if it is new. ConfigError if the name is that of another."""
    path = folder / f"{check_name(name, 'replay')}.json"
    try:
        found = _decode(SYSTEM_DISK.read_file(path))
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise Damaged(f"{path} cannot be read ({error}): it says how far the replay is. Use another --name") from None
    if found.said != said:
        raise ConfigError(
            f"there is a replay '{name}' already, of something else ({_told(found.said)}): use another --name"
        )
    return found


def _told(said: Said) -> str:
    return " ".join(f"--{name} {value}" for name, value in msgspec.structs.asdict(said).items() if value)


def save(folder: Path, name: str, record: Record) -> None:
    """Write it down, durably."""
    with explaining(f"cannot note how far replay '{name}' is"):
        SYSTEM_DISK.replace_file(folder / f"{name}.json", msgspec.json.encode(record) + b"\n")


def reached(path: Path, name: str, record: Record) -> Reached:
    """Finish a batch that was begun, and say how far everything is published."""
    if not record.batch:
        return Reached(0, None, 0, {})
    with Publishing(str(path), query(name)) as publishing:
        sink = publishing.finished()
    if sink is not None and int(sink.batch) >= record.batch:
        return Reached(record.batch, record.after, record.published_after, record.left_after)
    return Reached(record.batch - 1, record.before, record.published_before, record.left_before)
