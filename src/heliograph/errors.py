"""Everything Heliograph raises.

The tree::

    HeliographError
    ├── ConfigError            a setting is unknown, misspelt or out of range
    │   └── InvalidArgument    an argument is of a kind that cannot be meant, such as text for seconds
    ├── InvalidName            a channel, subscription or station name that must not become a path
    ├── InvalidMessage         what was handed to publish cannot be stored
    │   ├── MessageTooLarge    larger than messages.max_bytes
    │   ├── PayloadMismatch    does not fit the type registered under its name
    │   ├── SchemaConflict     the registered type cannot read what the channel holds under its name
    │   └── OutOfSequence      a producer's number that leaves some out
    ├── NotFound               no such channel, subscription, message or file
    ├── AlreadyExists          the channel is there already
    ├── Incomplete             some of the messages asked for cannot be read any more
    ├── Busy                   a bound was hit or a lock was not had in time; try again
    │   └── SubscriptionBusy   another live subscriber has this name
    ├── ProducerFenced         somebody else is this producer now
    ├── LeaseLost              the message of a queue was handed to somebody else meanwhile
    ├── StationClosed          the station or subscription was closed
    │   └── Forked             the station was opened before fork(); open it again in the child
    ├── ReadOnly               opened with read_only=True, or the directory is
    ├── WrongStation           the directory belongs to a station of another name
    ├── UnsupportedFormat      written by a newer Heliograph
    ├── StorageError           the disk said no; nothing was published
    │   ├── DiskFull           no space left; publishing resumes when there is
    │   ├── OutcomeUnknown     a sync failed, or a hub did not answer: the message may or may not survive
    │   ├── Fenced             an earlier sync failed; repair before publishing again
    │   └── Damaged            bytes on disk do not match their checksums
    ├── CertificateError       a certificate, key or revocation list is wrong, or a peer's is refused
    ├── ProtocolError          the other end of a link said what the protocol does not allow
    ├── NotAllowed             the hub's rules do not allow this client to do that
    ├── Unreachable            the hub, or a Spark cluster, was not reached in time
    ├── ReplyTimeout           nobody replied to a request in time
    ├── ReplyFailed            the handler of a request gave up
    ├── RetryLater             raised by a handler: deliver this message again, after some seconds
    └── Reject                 raised by a handler: trying again cannot help, a dead letter at once
"""

from __future__ import annotations

from datetime import timedelta


class HeliographError(Exception):
    """The root of everything Heliograph raises."""


class ConfigError(HeliographError):
    """A setting is unknown, misspelt or out of range."""


class InvalidArgument(ConfigError, TypeError):
    """An argument is of a kind that cannot be meant, such as text for seconds."""


class InvalidName(HeliographError, ValueError):
    """A name that must not become a path."""


class InvalidMessage(HeliographError, ValueError):
    """What was handed to publish cannot be stored."""


class MessageTooLarge(InvalidMessage):
    """The encoded message is larger than ``messages.max_bytes``."""


class PayloadMismatch(InvalidMessage):
    """The payload does not fit the type registered under its name."""


class SchemaConflict(InvalidMessage):
    """The registered type cannot read what the channel holds under its name. Nothing was published."""


class OutOfSequence(InvalidMessage):
    """A producer's message has a number beyond the next: those between would be taken for stored, and be lost."""


class NotFound(HeliographError, LookupError):
    """There is no such channel, subscription, message or file."""


class AlreadyExists(HeliographError):
    """The thing to be made is there already."""


class Incomplete(HeliographError):
    """Some of the messages asked for cannot be read any more: deleted, damaged, or of another life of the channel."""


class Busy(HeliographError):
    """A bound was hit, or a lock was not had in time. Nothing was published; try again."""


class SubscriptionBusy(Busy):
    """Another live subscriber has this name."""


class ProducerFenced(HeliographError):
    """A producer of the same id was opened since, here or elsewhere: that one goes on. Nothing was published."""


class LeaseLost(HeliographError):
    """The message of a queue was handed to somebody else, or done, meanwhile. Nothing was changed."""


class StationClosed(HeliographError):
    """The station or subscription was closed."""


class Forked(StationClosed):
    """The station was opened before fork(); open it again in the child."""


class ReadOnly(HeliographError):
    """The station was opened with ``read_only=True``, or its directory cannot be written."""


class WrongStation(HeliographError):
    """The directory belongs to a station of another name."""


class UnsupportedFormat(HeliographError):
    """The directory was written by a newer Heliograph."""


class StorageError(HeliographError):
    """The disk refused. Nothing was published unless the subclass says otherwise."""


class DiskFull(StorageError):
    """No space left on the device (or quota exceeded). Publishing resumes when there is."""


class OutcomeUnknown(StorageError):
    """The message may or may not survive: a sync failed (the log is fenced until it is repaired), a hub that a client
    published to did not answer in time, or before the client was closed or refused, or a process that was to append it
    with its own messages is stopped."""


class Fenced(StorageError):
    """An earlier sync failed. Run ``helio verify --repair`` before publishing again."""


class Damaged(StorageError):
    """Bytes on disk do not match their checksums."""


class CertificateError(HeliographError):
    """A certificate, key or revocation list cannot be used, or a peer's certificate is refused."""


class ProtocolError(HeliographError):
    """The other end of a link said what the protocol does not allow. The link is closed, and made again."""


class NotAllowed(HeliographError, PermissionError):
    """The hub's rules do not allow this client to do that. Nothing was published."""


class Unreachable(HeliographError, ConnectionError):
    """The hub, or a Spark cluster, was not reached in time. Nothing was published."""


class ReplyTimeout(HeliographError, TimeoutError):
    """Nobody replied in time. The request is in the log all the same; a reply that comes later is ignored."""


class ReplyFailed(HeliographError):
    """The handler of a request gave up. ``error_type`` names what it raised; ``reply`` is the whole message."""

    def __init__(self, reason: str, error_type: str = "", reply: object = None) -> None:
        super().__init__(reason)
        self.error_type = error_type
        self.reply = reply


class RetryLater(HeliographError):
    """Raised by a handler: deliver this message again after ``seconds``, or a timedelta (counts as an attempt)."""

    def __init__(self, seconds: float | timedelta, reason: str = "") -> None:
        self.seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        super().__init__(reason or f"retry in {self.seconds:g} s")


class Reject(HeliographError):
    """Raised by a handler: trying again cannot help. The message becomes a dead letter at once.

    With ``raise Reject(…) from error`` the letter tells of that error.
    """
