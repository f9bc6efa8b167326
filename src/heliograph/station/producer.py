"""Numbered publishers: a message that is published again, after a crash or a timeout, is recognised for ever.

A producer counts its messages per channel: 1, 2, 3 … The number travels in the envelope, so the log itself says what
is stored. Numbers are given in order and without holes: whatever is not beyond the last one was stored.

See engine/producers.py for how the numbers survive, and how a producer that was replaced is refused.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from heliograph.engine.files import FilesEngine
from heliograph.engine.producers import Last
from heliograph.errors import Busy, HeliographError, NotFound, OutOfSequence, StationClosed
from heliograph.log.groups import Guard
from heliograph.log.head import STATE
from heliograph.log.lines import origin_place
from heliograph.log.packed import EncodedTicket, Packed, Spot
from heliograph.log.stamping import NumberForm
from heliograph.log.tickets import Ticket
from heliograph.message import HeaderValue, Receipt
from heliograph.names import check_name
from heliograph.payloads import batch_of
from heliograph.station.envelopes import Numbered
from heliograph.station.partitioning import Places
from heliograph.station.publisher import Publisher

_T = TypeVar("_T")
_TRIES = 8


class _NewLife(HeliographError):
    """Said under the append lock: the channel was made anew since its numbers were read."""


class _Known:
    """How far a producer has come in one life of a channel."""

    __slots__ = ("guard", "last", "latest", "life", "state", "words")

    def __init__(self, last: int, life: str, guard: Guard) -> None:
        self.last = last
        self.latest: Receipt | None = None
        self.life = life
        self.guard = guard
        self.words: memoryview | None = None  # of partition 0's head, as it was open when we last looked
        self.state = 0

    def add(self, count: int, latest: Receipt) -> None:
        """So many more are stored."""
        self.last += count
        self.latest = latest


class Producer:
    """A publisher whose retries are recognised. Made by ``Station.producer``; safe to use from several threads.

    Publishing is one after the other: whoever wants more throughput publishes batches, or has several producers.
    """

    def __init__(self, engine: FilesEngine, publisher: Publisher, id: str) -> None:
        self.id = check_name(id, "producer")
        self._engine = engine
        self._publisher = publisher
        self._lock = threading.Lock()
        self._epoch = engine.producers.begin(self.id)
        self._begin = b',"producer":"%b","producerseq":"%d/' % (self.id.encode(), self._epoch.number)
        self._form = NumberForm(self._begin, b'"')
        self._known: dict[str, _Known] = {}
        self._closed = False
        _producers.add(self)

    def abandon(self) -> None:
        """In a forked child: whoever publishes is a thread that does not exist here."""
        self._lock = threading.Lock()

    def last(self, channel: str) -> int:
        """The number of its last message that is stored in a channel; 0 if there is none.

        >>> import heliograph as hg, tempfile
        >>> with hg.open(tempfile.mkdtemp(), name="host1") as station, station.producer("importer") as producer:
        ...     receipt = producer.publish("orders", {"order": 1})
        ...     again = producer.publish("orders", {"order": 1}, seq=1)
        ...     producer.last("orders"), again.duplicate, len(list(station.read("orders")))
        (1, True, 1)
        """
        with self._lock:
            return self._stored(channel).last

    def publish(
        self,
        channel: str,
        data: Any = None,
        *,
        seq: int | None = None,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None,
        subject: str | None = None,
        id: str | None = None,
    ) -> Receipt:
        """Publish one message under the next number, or under ``seq``: a number that is stored already is not stored
        again (the receipt says ``duplicate``), one beyond the next raises OutOfSequence.
        """
        with self._lock:
            known = self._known.get(channel) if seq is None and isinstance(channel, str) else None
            if known is not None and headers is None and correlation_id is None and subject is None and id is None:
                receipt = self._publish_next(known, channel, data, type, key)
                if receipt is not None:
                    return receipt
            return self._in_one_life(
                channel, lambda: self._publish(channel, data, seq, type, key, headers, correlation_id, subject, id)
            )

    def _publish_next(
        self, known: _Known, channel: str, data: Any, type_name: str | None, key: str | None
    ) -> Receipt | None:
        """Publish what is plain, in as few steps as possible; None if it has to go the general way."""
        try:  # whether it may publish is asked under the append lock anyhow
            own = b'%b%d"' % (self._begin, known.last + 1)
            receipt = self._publisher.publish_plain(channel, data, type_name, key, own, known.guard)
        except _NewLife:
            return None
        except BaseException:
            self._doubt(channel)
            raise
        if receipt is not None:
            known.last += 1
            known.latest = receipt
        return receipt

    def _publish(
        self, channel: str, data: Any, seq: int | None, type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, subject: str | None, id: str | None,
    ) -> Receipt:  # fmt: skip
        known = self._stored(channel)
        number = self._checked(known.last, channel, seq)
        if number <= known.last:
            return _duplicate(known, channel, number)
        own = b'%b%d"' % (self._begin, number)
        receipt: Receipt | None = None
        if headers is None and correlation_id is None and subject is None and id is None:
            receipt = self._publisher.publish_plain(channel, data, type_name, key, own, known.guard)
        if receipt is None:
            ticket, message_id = self._publisher.prepare(
                channel, data, type_name, key, headers, correlation_id, subject, id, None, own
            )
            partition = self._publisher.partitioner.choose(channel, key)
            receipt = Receipt(message_id, channel, partition, self._append(channel, partition, ticket, known))
        known.add(1, receipt)
        return receipt

    def publish_many(
        self,
        channel: str,
        payloads: Iterable[Any],
        *,
        seq: int | None = None,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None,
    ) -> list[Receipt]:
        """Publish a batch under the next numbers, or from ``seq`` on; those that are stored already are left out."""
        batch = batch_of(payloads)
        with self._lock:
            return self._in_one_life(
                channel, lambda: self._publish_many(channel, batch, seq, type, key, headers, correlation_id)
            )

    def _publish_many(
        self, channel: str, batch: list[Any], seq: int | None, type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None,
    ) -> list[Receipt]:  # fmt: skip
        known = self._stored(channel)
        number = self._checked(known.last, channel, seq)
        stored = min(len(batch), max(0, known.last - number + 1))
        receipts = [_duplicate(known, channel, number + at) for at in range(stored)]
        fresh = batch[stored:]
        if not fresh:
            return receipts
        numbered = Numbered(self._begin, number + stored)
        ticket, ids = self._publisher.prepare_many(
            channel, fresh, type_name, key, headers, correlation_id, numbered=numbered
        )
        places = self._publisher.partitioner.choose_many(channel, fresh, key)
        receipts += self._append_batch(channel, places, ticket, ids, known)
        known.add(len(fresh), receipts[-1])
        return receipts

    def partitions(self, channel: str) -> int:
        """How many partitions a channel has; one that is not there is made."""
        return self._engine.partition_count_or_new(channel)

    def publish_encoded(
        self,
        channel: str,
        partition: int,
        bodies: Packed,
        *,
        seq: int,
        times_us: tuple[int, int],
        passing: bool = False,
    ) -> int:
        """Publish a batch to one partition that was encoded elsewhere; how many were not stored before.

        A body is an envelope without its closing brace. ``times_us`` are the smallest and the largest event time.
        Batches for several partitions come one after the other: numbers have no holes. ``passing``: it is so much
        that it is not kept in memory.
        """
        with self._lock:
            return self._in_one_life(
                channel, lambda: self._publish_encoded(channel, partition, bodies, seq, times_us, passing=passing)
            )

    def _publish_encoded(
        self, channel: str, partition: int, bodies: Packed, seq: int, times_us: tuple[int, int], *, passing: bool
    ) -> int:
        known = self._stored(channel)
        stored = min(len(bodies), max(0, known.last - self._checked(known.last, channel, seq) + 1))
        if stored == len(bodies):
            return 0
        fresh = bodies.part(stored, len(bodies))
        now_us = self._engine.clock.time_ns() // 1000
        ticket = EncodedTicket(fresh, self._form, seq + stored, now_us, passing=passing)
        ticket.min_us, ticket.max_us = times_us
        first = self._append(channel, partition, ticket, known)
        self._engine.make_durable(channel, partition, first + ticket.count)
        known.add(ticket.count, Receipt("", channel, partition, first + ticket.count - 1))
        return ticket.count

    def foresee(self, channel: str, partition: int, seq: int) -> Spot:
        """Where the message of a number will stand that is the next one in a partition, if nobody comes between."""
        origin = f"{self._engine.name}.{self._engine.incarnation(channel)}".encode()
        following = self._engine.bounds(channel, partition).next
        return Spot(self._form, seq, origin_place(origin, partition), following)

    # -- numbers ----------------------------------------------------------------------------------------------

    def _in_one_life(self, channel: str, action: Callable[[], _T]) -> _T:
        """Publish; once more if the channel was deleted and made anew, where other numbers are stored, or none."""
        for _ in range(_TRIES):
            try:
                return action()
            except _NewLife:
                self._doubt(channel)
            except BaseException:
                self._doubt(channel)
                raise
        raise Busy(f"channel '{channel}' is being deleted and made again all the time; try again")

    def _stored(self, channel: str) -> _Known:
        """What is stored in a channel."""
        if self._closed:
            raise StationClosed(f"producer '{self.id}' is closed")
        self._engine.check_writable()
        self._epoch.check()
        known = self._known.get(check_name(channel))
        if known is None or not self._lives_on(channel, known):
            self._engine.partition_count_or_new(channel)
            state = self._engine.producers.last(channel, self._epoch)
            guard = self._guard(channel, state.incarnation)
            known = self._known[channel] = _Known(state.seq, state.incarnation, guard)
        return known

    def _lives_on(self, channel: str, known: _Known) -> bool:
        """Whether the channel is the one whose numbers are known: its head tells as long as nothing changed."""
        words = self._engine.words_if_open(channel, 0)
        try:
            state = -1 if words is None else words[STATE]
        except ValueError:  # closed in this moment
            words, state = None, -1
        if words is not None and words is known.words and state == known.state:
            return True
        try:
            lives = self._engine.incarnation(channel) == known.life
        except NotFound:
            return False
        known.words, known.state = words, state
        return lives

    def _guard(self, channel: str, life: str) -> Guard:
        """Asked under the append lock: these numbers are of one epoch, and of one life of the channel."""
        present, valid = self._engine.life, self._epoch.guard

        def guard() -> HeliographError | None:
            return valid() if present(channel) == life else _NewLife(channel)

        return guard

    def _checked(self, last: int, channel: str, seq: int | None) -> int:
        if seq is None:
            return last + 1
        if not _is_number(seq):
            raise OutOfSequence(f"{seq!r} is not a producer's number: they are whole and begin at 1")
        if seq > last + 1:
            raise OutOfSequence(
                f"producer '{self.id}' has stored {last} messages in '{channel}': the next is {last + 1}, not {seq}. "
                "Publish those between first."
            )
        return seq

    # -- appending --------------------------------------------------------------------------------------------

    def _append(self, channel: str, partition: int, ticket: Ticket, known: _Known) -> int:
        ticket.guard = known.guard
        return self._publisher.append(channel, partition, ticket)

    def _append_batch(
        self, channel: str, places: Places, ticket: Ticket, ids: list[str], known: _Known
    ) -> list[Receipt]:
        if len(places) > 1:
            return self._publisher.append_over(channel, places, ticket, ids, self._epoch)
        partition = next(iter(places))
        first = self._append(channel, partition, ticket, known)
        return [Receipt(one, channel, partition, first + at) for at, one in enumerate(ids)]

    def _doubt(self, channel: str) -> None:
        """After an append that failed in the middle only the log knows what is stored: ask it again."""
        self._known.pop(channel, None)

    # -- life -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Save how far it has come, so that opening it again need not read what it published."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for channel, known in self._known.items():
                    self._save(channel, known)
                self._known = {}  # whoever publishes asks, and is told
                self._epoch.close()

    def _save(self, channel: str, known: _Known) -> None:
        latest = known.latest
        try:
            if self._engine.closed:
                return
            if latest is None or latest.offset < 0 or not self._lives_on(channel, known):
                self._engine.producers.renew(channel, self.id)
            else:
                last = Last(known.last, latest.partition, latest.offset)
                self._engine.producers.note(channel, self._epoch, last)
        except HeliographError:
            return  # a checkpoint only: the log says the same

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _duplicate(known: _Known, channel: str, number: int) -> Receipt:
    if known.latest is not None and number == known.last:
        return msgspec.structs.replace(known.latest, duplicate=True)
    return Receipt("", channel, -1, -1, duplicate=True)


def _is_number(seq: object) -> bool:
    return isinstance(seq, int) and not isinstance(seq, bool) and seq >= 1


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for producer in list(_producers):
        producer.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
