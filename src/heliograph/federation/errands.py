"""What a hub and the workers at its clients say to each other: the bodies of CALL and REPLY (docs/protocol.md).

The hub runs groups and queues as for its own workers: leases, positions, retries and dead letters are its business. A
worker at a client gets messages to handle and says what became of them. Pure: both ends use it.
"""

from __future__ import annotations

import functools
import math
import traceback
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from heliograph.delivery.retry import Retry
from heliograph.errors import Reject, RetryLater
from heliograph.federation.frames import Name, Number, Partition
from heliograph.limits import LINK_WORKERS_MAX

WORK: Final = "work"
PULL: Final = "pull"
LEAVE: Final = "leave"
RECEIVE: Final = "receive"
SETTLE: Final = "settle"
REQUEST: Final = "request"
ANSWER: Final = "answer"
# what a hub asks of a client
RUN: Final = "run"
GAP: Final = "gap"
ENDED: Final = "ended"

RUN_S: Final = 0.05
"""A client says how far it has come after so long, when the message at hand is done."""
_TEXT_CHARS_MAX: Final = 2_000
_TRACE_CHARS_MAX: Final = 8_000
_TYPE_CHARS_MAX: Final = 200

Kind = Literal["group", "queue", "alone"]


class Nothing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """There is nothing to say."""


class Work(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Let a client be a worker; it is given messages by ``run``. The number is the client's."""

    number: Number
    channel: Name
    name: Name
    kind: Kind
    start: str | Number = "new"
    concurrency: Annotated[int, Meta(ge=1, le=LINK_WORKERS_MAX)] = 1
    """How many runs it takes at once."""
    retry: Retry | None = None
    answers: bool = False
    """It answers requests: whoever asked is told when the handler gave up."""
    visibility_s: float | None = None
    max_in_flight: int | None = None
    max_deliveries: int | None = None


class Pull(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Let a client be a worker of a queue that receives and settles by itself. The number is the client's."""

    number: Number
    channel: Name
    name: Name
    start: str | Number = "new"
    visibility_s: float | None = None
    max_in_flight: int | None = None
    max_deliveries: int | None = None


class Joined(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """It is one now."""

    worker: str
    visibility_s: float = 0.0
    max_in_flight: int = 0
    max_deliveries: int = 0


class Leave(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """It is none any more: what it has not finished is for others."""

    number: Number
    timeout_s: Annotated[float, Meta(ge=0, le=1_000_000)] = 10.0
    """How long the message at hand has time."""


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Handle these messages of a partition in order; their lines follow."""

    number: Number
    partition: Partition
    offsets: list[Number]


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a handler raised."""

    text: Annotated[str, Meta(max_length=_TEXT_CHARS_MAX)]
    type: Annotated[str, Meta(max_length=_TYPE_CHARS_MAX)] = "Exception"
    module: Annotated[str, Meta(max_length=_TYPE_CHARS_MAX)] = "builtins"
    traceback: Annotated[str, Meta(max_length=_TRACE_CHARS_MAX)] = ""
    verdict: Literal["failed", "reject", "later"] = "failed"
    seconds: float = 0.0
    """``later``: after so long."""


class Ran(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """So many are done. With an error: that is what the next one ended with. Without: it was not begun."""

    done: Number
    error: Failure | None = None


class Missing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Offsets that a worker will not get."""

    number: Number
    partition: Partition
    first: Number
    next: Number
    reason: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client is no worker any more, unasked, and why."""

    number: Number
    error: str
    message: str


class Receive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lease some messages of a queue."""

    number: Number
    count: Number = 1
    wait_s: Annotated[float, Meta(ge=0)] = 0.0


class Leased(msgspec.Struct, frozen=True, array_like=True):
    """A message, and the number its lease is known by on this connection."""

    job: Number
    partition: Partition
    offset: Number
    deliveries: Number


class Received(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The messages; their lines follow."""

    jobs: list[Leased]


class Settle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Say what becomes of leases."""

    number: Number
    jobs: list[Number]
    how: Literal["ack", "nack", "extend", "back"]
    seconds: float | None = None
    """How long to wait before it is handed out again, or how long to keep it."""
    error: Failure | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Publish the event that follows, and send back what is replied to it."""

    channel: Name
    timeout_s: Annotated[float, Meta(gt=0, le=1_000_000)]
    again_s: Annotated[float, Meta(ge=0)] | None = None
    """So many seconds ago it was asked for the first time, and the connection was lost."""


class Replied(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply; its line follows."""

    partition: Partition
    offset: Number


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Send the event that follows to whoever published this request."""

    channel: Name
    partition: Partition
    offset: Number
    id: str


class Answered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether anybody waits for it."""

    sent: bool = True


class _Elsewhere(Exception):
    """What a handler at a client raised."""


def failure_of(error: BaseException) -> Failure:
    """An error as it is told.

    >>> failure_of(ValueError("boom")).text
    'boom'
    """
    verdict: Literal["failed", "reject", "later"] = "failed"
    seconds = 0.0
    if isinstance(error, RetryLater) and math.isfinite(error.seconds):
        verdict, seconds = "later", error.seconds
    elif isinstance(error, Reject):
        verdict, error = "reject", error.__cause__ or error
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the text of a broken error must not break the delivery
        text = "(its text cannot be shown)"
    trace = "".join(traceback.format_exception(error)) if error.__traceback__ is not None else ""
    return Failure(
        text=_clean(text)[:_TEXT_CHARS_MAX], type=type(error).__qualname__[:_TYPE_CHARS_MAX],
        module=type(error).__module__[:_TYPE_CHARS_MAX], traceback=_clean(trace)[-_TRACE_CHARS_MAX:], verdict=verdict,
        seconds=seconds,
    )  # fmt: skip


def error_of(failure: Failure) -> Exception:
    """What was told as an error of ours, which has the name and the text of the other one.

    >>> error_of(failure_of(ValueError("boom")))
    ValueError('boom')
    """
    if failure.verdict == "later":
        return RetryLater(failure.seconds, failure.text)
    error = _named(failure.module, failure.type)(failure.text)
    if failure.traceback:
        error.add_note(f"at the client:\n{failure.traceback}")
    if failure.verdict == "failed":
        return error
    rejected = Reject(failure.text)
    rejected.__cause__ = error
    return rejected


@functools.lru_cache(256)
def _named(module: str, name: str) -> type[Exception]:
    """An error that looks like the one that was raised elsewhere."""
    kind = type(name.rpartition(".")[2].replace("\0", "") or "Exception", (_Elsewhere,), {"__module__": module})
    kind.__qualname__ = name or "Exception"
    return kind


def _clean(text: str) -> str:
    """Without lone surrogates, which JSON cannot carry."""
    return text.encode("utf-8", "backslashreplace").decode()
