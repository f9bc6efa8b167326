"""What a client says that lays messages aside at a hub until all of a batch are published (docs/protocol.md).

The bodies of CALL and REPLY. Each may be asked any number of times, as after a cut. Pure: both ends use it.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from heliograph.errors import InvalidName
from heliograph.federation.frames import Name, Number
from heliograph.names import check_name
from heliograph.staging.queries import ALONE, HUB, is_numbered

STAGE: Final = "stage"
COMMIT: Final = "commit"
ABORT: Final = "abort"

Word: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_-]*\Z", max_length=64)]
"""A part of a path: no dot, so that it is clear where the name of a peer ends."""


class File(NamedTuple):
    """Messages that are laid aside: their name in a batch, and what the hub said of them."""

    name: Word
    crc: Number


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lay the events that follow aside, one a line. Without any: may I?"""

    batch: Word
    name: Word
    channel: Name
    query: Word = ALONE


class Staged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """They are durable, under that name alone: whatever was laid aside there before is gone."""

    crc: Number = 0


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Publish a batch: these files are all of it."""

    batch: Word
    files: list[File] = []
    query: Word = ALONE


class Committed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether all of it is published. Else something of it may be, and more when it is asked again."""

    done: bool
    waiting: bool = False
    """Nothing was done: somebody else publishes a batch of this query just now."""
    newest: Number | None = None
    """The last batch of this query that has happened, if batches have numbers: whoever comes with an older one may be
    a copy."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Remove what is laid aside for a batch, unless it has begun to be published."""

    batch: Word
    query: Word = ALONE


def own_query(peer: str, ask: Stage | Commit | Abort) -> str:
    """Whom this station takes a peer's query for: nobody else's has that name.

    >>> own_query("host1", Abort(query="6f1e", batch="7"))
    'hub.host1.6f1e'
    >>> own_query("host1", Abort(query="6f1e", batch="x"))
    Traceback (most recent call last):
    heliograph.errors.InvalidName: 'x' is no number: batches of a query are 0, 1, 2 …
    """
    query = check_name(f"{HUB}{peer}.{ask.query}", "query")
    check_name(ask.batch, "batch")
    if is_numbered(query) and not (ask.batch.isdecimal() and len(ask.batch) <= 18):
        raise InvalidName(f"{ask.batch!r} is no number: batches of a query are 0, 1, 2 …")
    return query
