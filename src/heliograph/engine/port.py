"""What the rooms above see of any engine: the values that cross the port."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from heliograph.message import Message


class Bounds(NamedTuple):
    """The offsets of a partition that readers may see: ``first <= offset < next``."""

    first: int
    next: int


Kind = Literal["plain", "group", "queue"]
"""What a durable subscription is: one reader, workers that share partitions, or workers that share messages."""


class Position(msgspec.Struct, frozen=True):
    """How far a subscription has come: everything before ``offset`` is done."""

    incarnation: str
    offset: int
    id: str = ""  # of the last message done, to recognise a log that is not the one it was
    time_us: int = 0  # when it was saved
    awaits: bool = False  # nothing is done: it was asked to begin here when the log ended before it


class MemberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker of a group, and the partitions it says it holds."""

    worker: str
    process: int
    since: datetime
    partitions: list[int]


class Problem(NamedTuple):
    """A range of a log that holds no deliverable message."""

    offset: int
    next: int
    kind: Literal["missing", "undecodable", "mismatch"]
    reason: str
    line: bytes


class Batch:
    """Some messages in offset order. Shared between subscribers, hence never changed."""

    __slots__ = ("__weakref__", "filtered", "first", "lag_base_us", "last_id", "messages", "next", "place", "problems")

    def __init__(
        self,
        first: int,
        following: int,
        messages: list[Message],
        problems: list[Problem],
        lag_base_us: int,
        place: tuple[int, int, int],
    ) -> None:
        self.first = first
        self.next = following
        self.messages = messages
        self.problems = problems
        self.lag_base_us = lag_base_us
        self.place = place  # where in its segment it ends, for other cursors
        self.filtered = 0  # messages that a filter left out
        self.last_id = ""  # of the message before `next`, if a filter may have left it out
