"""What a user may say with ``.option(…)``: read once, checked, and refused with a suggestion if it is misspelt."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from heliograph.config import units
from heliograph.context import CONTEXT_CHARS_MAX
from heliograph.errors import ConfigError
from heliograph.limits import SPARK_SPLIT_BYTES
from heliograph.names import check_name
from heliograph.patterns import Pattern, is_pattern
from heliograph.payloads import check_type_name
from heliograph.spark.remote import OPTIONS as HUB
from heliograph.spark.remote import Remote, remote
from heliograph.staging.queries import ALONE

_READ: Final = (
    "path", "channel", "startingOffsets", "endingOffsets", "failOnGap", "payloadType", "mode", "splitBytes", "pushdown",
    "maxBytesPerTrigger", "maxMessagesPerTrigger", "includeArchive", *HUB,
)  # fmt: skip
_WRITE: Final = ("path", "channel", "type", "service", "query", "batch", *HUB)
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "header", "inferschema"})
_QUERY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)
_TRUTH: Final = {"true": True, "false": False}
_CATALOG: Final = frozenset({"provider", "owner"})
"""What Spark hands over when it makes a table of its catalog."""
_NO_TABLES: Final = (
    "a table of Spark's catalog keeps no options: use CREATE TEMPORARY VIEW … USING heliograph OPTIONS (…), or "
    "spark.read.format('heliograph') and df.write.format('heliograph')"
)


class Channels:
    """Which channels are meant: names and patterns."""

    def __init__(self, text: str) -> None:
        words = [word.strip() for word in text.split(",") if word.strip()]
        if not words:
            raise ConfigError("option 'channel' is empty: name one, several (a,b) or a pattern (sensors.>)")
        self.text = text
        self.names = [check_name(word) for word in words if not is_pattern(word)]
        self.patterns = [word for word in words if is_pattern(word)]
        self._matching = [Pattern(word) for word in self.patterns]

    def among(self, there: list[str]) -> list[str]:
        """The channels of a station that are meant; those that are named, there or not, come first."""
        more = [name for name in there if any(pattern.matches(name) for pattern in self._matching)]
        return list(dict.fromkeys([*self.names, *more]))


class ReadOptions(NamedTuple):
    """How a channel is read."""

    path: str  # empty if there is a hub
    channels: Channels
    starting: str
    ending: str
    fail_on_gap: bool
    payload_type: str | None
    fail_on_mismatch: bool
    split_bytes: int
    pushdown: bool
    max_bytes: int | None
    max_messages: int | None
    archive: str | None = None  # where the archive is that is read as well; empty: where it was made
    hub: Remote | None = None


class WriteOptions(NamedTuple):
    """How rows become messages."""

    path: str  # empty if there is a hub
    channel: str | None
    type: str | None
    service: str | None
    hub: Remote | None = None
    query: str | None = None  # of foreachBatch: who writes this table, and
    batch: str | None = None  # which of its batches it is


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """What was said, checked; for a stream, a batch, or (None) before that is known.

    >>> read_options({"path": "data", "chanel": "alerts"}, streaming=False)
    Traceback (most recent call last):
    heliograph.errors.ConfigError: there is no option 'chanel'; did you mean 'channel'?
    """
    if not given:
        raise ConfigError(f"options 'path' and 'channel' are missing; {_NO_TABLES}")
    said = _checked(given, _READ)
    if "channel" not in said:
        raise ConfigError("option 'channel' is missing: name one, several (a,b) or a pattern (sensors.>)")
    mode = said.get("mode", "PERMISSIVE").upper()
    if mode not in {"PERMISSIVE", "FAILFAST"}:
        raise ConfigError(f"mode is {mode}: use PERMISSIVE (data is null if it does not fit) or FAILFAST")
    if streaming is False:
        for name in ("maxBytesPerTrigger", "maxMessagesPerTrigger"):
            if name in said:
                raise ConfigError(f"option '{name}' is for streams; a batch reads everything between its offsets")
    elif streaming and "endingOffsets" in said:
        raise ConfigError("option 'endingOffsets' is for batches; a stream has no end. Use trigger(availableNow=True)")
    return ReadOptions(
        _path(said), Channels(said["channel"]), said.get("startingOffsets", "first"), said.get("endingOffsets", "new"),
        _truth(said, "failOnGap", default=True), said.get("payloadType"), mode == "FAILFAST",
        _size(said, "splitBytes") or SPARK_SPLIT_BYTES, _truth(said, "pushdown", default=False),
        _size(said, "maxBytesPerTrigger"), _count(said, "maxMessagesPerTrigger"), _archive(said), remote(said),
    )  # fmt: skip


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """What was said, checked."""
    if not given:
        raise ConfigError(f"option 'path' is missing; {_NO_TABLES}")
    said = _checked(given, _WRITE)
    if "channel" in said:
        check_name(said["channel"])
    if "type" in said:
        check_type_name(said["type"])
    service = said.get("service", "")
    if not service.isprintable() or len(service) > CONTEXT_CHARS_MAX:
        raise ConfigError(
            f"option 'service' is a printable text of at most {CONTEXT_CHARS_MAX} characters, not {service!r}"
        )
    return WriteOptions(
        _path(said), said.get("channel"), said.get("type"), said.get("service"), remote(said), *_numbered(said)
    )


def _numbered(said: dict[str, str]) -> tuple[str | None, str | None]:
    """The batch of a query that a table is, if it is one."""
    query, batch = said.get("query"), said.get("batch")
    if (query is None) != (batch is None):
        raise ConfigError("options 'query' and 'batch' go together: whose batch it is, and its number")
    if query is not None and (not _QUERY.fullmatch(query) or query == ALONE):
        raise ConfigError(f"option 'query' is {query!r}: use a name of 1 to 64 letters, digits, '_' and '-'")
    if batch is not None and not (batch.isascii() and batch.isdecimal() and len(batch) <= 18):
        raise ConfigError(f"option 'batch' is {batch!r}: use the number that foreachBatch gives")
    return query, batch


def _checked(given: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """The options by the names that we give them: Spark does not tell upper from lower case."""
    names = {name.lower(): name for name in known}
    if {name.lower() for name in given} >= _CATALOG:
        raise ConfigError(_NO_TABLES)
    said: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in names:
            said[names[name.lower()]] = str(value)
        elif name.lower() not in _SPARKS_OWN and not name.lower().startswith("spark."):
            close = difflib.get_close_matches(name.lower(), names, 1)
            raise ConfigError(
                f"there is no option '{name}'"
                + (f"; did you mean '{names[close[0]]}'?" if close else f"; there are {', '.join(known)}")
            )
    return said


def _path(said: dict[str, str]) -> str:
    path = _local(said.get("path", ""))
    if not path and "hub" not in said:
        raise ConfigError("option 'path' is missing: the data directory of a station (or 'hub': wss://HOST:PORT)")
    return path


def _archive(said: dict[str, str]) -> str | None:
    """Which archive is read as well: None for none, empty for the one that the station knows."""
    text = said.get("includeArchive", "false")
    if "hub" in said and text.lower() != "false":
        raise ConfigError("option 'includeArchive' needs 'path': an archive lies beside its station")
    if text.lower() in _TRUTH:
        return "" if _TRUTH[text.lower()] else None
    if not text:
        raise ConfigError("option 'includeArchive' is empty: use true, false, or the directory of an archive")
    return _local(text)


def _local(text: str) -> str:
    """A directory, as Spark may write it."""
    return text.removeprefix("file://").removeprefix("file:")


def _truth(said: dict[str, str], name: str, *, default: bool) -> bool:
    text = said.get(name)
    if text is None:
        return default
    if text.lower() not in _TRUTH:
        raise ConfigError(f"option '{name}' is {text!r}: use true or false")
    return _TRUTH[text.lower()]


def _size(said: dict[str, str], name: str) -> int | None:
    text = said.get(name)
    if text is None:
        return None
    try:
        size = int(units.parse_size(text))
    except ValueError as error:
        raise ConfigError(f"option '{name}' is {text!r}: {error}") from None
    if size < 1:
        raise ConfigError(f"option '{name}' is {text!r}: it must be at least 1 byte")
    return size


def _count(said: dict[str, str], name: str) -> int | None:
    text = said.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ConfigError(f"option '{name}' is {text!r}: use a whole number from 1 on")
    return int(text)
