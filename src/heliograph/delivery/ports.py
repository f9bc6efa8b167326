"""What delivery needs from the rooms below, and nothing more.

Any engine with these methods fits; the tests use one that lives in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from heliograph.delivery.deadletter import DeadLetterIdentity
    from heliograph.engine.port import Batch, Bounds, Kind, Position
    from heliograph.filters import Sieve
    from heliograph.message import Gap

Handler = Callable[[Any], Any]
"""Called with a message, or with a list of messages when ``batch=True``; may be a coroutine function."""

OnGap = Callable[["Gap"], Any]
"""Told of offsets that will never be delivered. May be a coroutine function if the handler is one."""

OverflowPolicy = Literal["block", "drop_oldest", "drop_newest"]

PublishDeadLetter = Callable[[str, dict[str, Any], str | None], object]
"""``(channel, payload, key)``: returns when the letter is durable, raises when it may not be."""

RecentDeadLetters = Callable[[str, int], Iterable["DeadLetterIdentity"]]
"""``(channel, since_us)``: the identities of the letters appended to the channel since then."""


class Cursor(Protocol):
    """Reads one partition forwards. Used by one thread only."""

    @property
    def offset(self) -> int: ...  # noqa: D102 - the next offset to be read
    def pull(self) -> Batch | None:
        """What comes next, or None when there is nothing new now."""

    def seek(self, offset: int) -> None:
        """Read on from there."""

    def close(self) -> None:
        """Give back what it holds."""


class Lease(Protocol):
    """The right to be the one live subscriber of a name."""

    def release(self) -> None:
        """Let the next one have it."""


class PartitionLease(Protocol):
    """The right to deliver one partition of a group."""

    def valid(self) -> bool:
        """Whether it is still held."""

    def release(self) -> None:
        """Let another worker have it."""


class Membership(Protocol):
    """A worker's place in a group."""

    @property
    def worker(self) -> str: ...  # noqa: D102 - its name
    def alone(self) -> AbstractContextManager[None]:
        """No other worker joins or begins positions meanwhile."""

    def members(self) -> dict[str, list[int]]:
        """What every live worker says it holds."""

    def say(self, partitions: list[int], /) -> None:
        """Tell the others what this one holds."""

    def lease(self, partition: int, /) -> PartitionLease | None:
        """The right to deliver a partition, if nobody else has it."""

    def listen(self, listener: Callable[[], object], /) -> None:
        """Call this whenever something changes."""

    def leave(self) -> None:
        """Be a worker no longer; every lease was given back."""


class Engine(Protocol):
    """Where logs, positions and leases live."""

    @property
    def name(self) -> str: ...  # noqa: D102 - the station's
    def partition_count(self, channel: str, /) -> int:
        """How many partitions the channel has, now or a moment ago."""

    def bounds(self, channel: str, partition: int = 0, /) -> Bounds:
        """What readers may see."""

    def cursor(
        self, channel: str, partition: int, offset: int, sieve: Sieve | None = None, birth: Any = None, /
    ) -> Cursor:
        """A reader that begins at the offset; with a sieve it skips what that holds back.

        Of another channel than that of the ``birth`` it raises NotFound.
        """

    def wait(self, channel: str, partition: int, offset: int, timeout_s: float, /) -> None:
        """Return as soon as there is something at the offset, or somebody said so, or the time is over."""

    def wake(self, channel: str, partition: int, /) -> None:
        """End every wait of this process on the partition."""

    def birth(self, channel: str, /) -> Any:
        """What tells the channel from one that is made anew under its name."""

    def incarnation(self, channel: str, /) -> str:
        """The channel's present life."""

    def load_position(self, channel: str, subscription: str, partition: int, /) -> Position | None:
        """The committed position, if one was ever saved."""

    def save_position(self, channel: str, subscription: str, partition: int, position: Position, /) -> None:
        """Commit durably."""

    def forget_position(self, channel: str, subscription: str, /) -> None:
        """Remove what was committed."""

    def fit_position(self, channel: str, partition: int, position: Position, /) -> tuple[int, Gap | None]:
        """Where to resume, and what cannot be delivered any more."""

    def claim_kind(self, channel: str, subscription: str, kind: Kind, /) -> None:
        """Refuse a subscription that is there already and is of another kind."""

    def join_group(self, channel: str, subscription: str, /) -> Membership:
        """Become a worker of a group, or raise SubscriptionBusy."""

    def subscription_lease(self, channel: str, subscription: str, /) -> Lease:
        """Become the live subscriber of that name, or raise SubscriptionBusy."""
