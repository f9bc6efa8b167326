"""Numbered publishers: a message that is published again, after a crash or a timeout, is recognised for ever.

A producer counts its messages per channel: 1, 2, 3 … The number travels in the envelope, so the log itself says what
is stored. Numbers are given in order and without holes: whatever is not beyond the last one was stored.

See engine/producers.py for how the numbers survive, and how a producer that was replaced is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from heliograph.engine.files import FilesEngine
from heliograph.engine.producers import Last
from heliograph.errors import HeliographError, OutOfSequence, StationClosed
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
        self._last: dict[str, int] = {}
        self._latest: dict[str, Receipt] = {}
        self._closed = False

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
            return self._stored(channel)

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
            stored = self._last.get(channel) if seq is None else None
            if stored is not None:  # whether it may publish is asked under the lock anyhow
                number = stored + 1
            else:
                last = self._stored(channel)
                number = self._checked(last, channel, seq)
                if number <= last:
                    return self._duplicate(channel, number)
            own = b'%b%d"' % (self._begin, number)
            receipt: Receipt | None = None
            try:
                if headers is None and correlation_id is None and subject is None and id is None:
                    receipt = self._publisher.publish_plain(channel, data, type, key, own, self._epoch.guard)
                if receipt is None:
                    ticket, message_id = self._publisher.prepare(
                        channel, data, type, key, headers, correlation_id, subject, id, None, own
                    )
                    partition = self._publisher.partitioner.choose(channel, key)
                    receipt = Receipt(message_id, channel, partition, self._append(channel, partition, ticket))
            except BaseException:
                self._doubt(channel)
                raise
            self._last[channel] = number
            self._latest[channel] = receipt
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
            last = self._stored(channel)
            number = self._checked(last, channel, seq)
            known = min(len(batch), max(0, last - number + 1))
            receipts = [self._duplicate(channel, number + at) for at in range(known)]
            fresh = batch[known:]
            if not fresh:
                return receipts
            numbered = Numbered(self._begin, number + known)
            ticket, ids = self._publisher.prepare_many(
                channel, fresh, type, key, headers, correlation_id, numbered=numbered
            )
            places = self._publisher.partitioner.choose_many(channel, fresh, key)
            try:
                receipts += self._append_batch(channel, places, ticket, ids)
            except BaseException:
                self._doubt(channel)
                raise
            self._last[channel] = number + len(batch) - 1
            self._latest[channel] = receipts[-1]
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
    ) -> int:
        """Publish a batch to one partition that was encoded elsewhere; how many were not stored before.

        A body is an envelope without its closing brace. ``times_us`` are the smallest and the largest event time.
        Batches for several partitions come one after the other: numbers have no holes.
        """
        with self._lock:
            last = self._stored(channel)
            known = min(len(bodies), max(0, last - self._checked(last, channel, seq) + 1))
            if known == len(bodies):
                return 0
            fresh = bodies.part(known, len(bodies))
            ticket = EncodedTicket(fresh, self._form, seq + known, self._engine.clock.time_ns() // 1000)
            ticket.min_us, ticket.max_us = times_us
            ticket.guard = self._epoch.guard
            try:
                first = self._publisher.append(channel, partition, ticket)
                self._engine.make_durable(channel, partition, first + ticket.count)
            except BaseException:
                self._doubt(channel)
                raise
            self._last[channel] = seq + len(bodies) - 1
            self._latest[channel] = Receipt("", channel, partition, first + ticket.count - 1)
            return ticket.count

    def foresee(self, channel: str, partition: int, seq: int) -> Spot:
        """Where the message of a number will stand that is the next one in a partition, if nobody comes between."""
        origin = f"{self._engine.name}.{self._engine.incarnation(channel)}".encode()
        following = self._engine.bounds(channel, partition).next
        return Spot(self._form, seq, origin_place(origin, partition), following)

    # -- numbers ----------------------------------------------------------------------------------------------

    def _stored(self, channel: str) -> int:
        """The last number that is stored in a channel."""
        if self._closed:
            raise StationClosed(f"producer '{self.id}' is closed")
        self._engine.check_writable()
        self._epoch.check()
        last = self._last.get(channel)
        if last is None:
            self._engine.partition_count_or_new(channel)
            last = self._last[channel] = self._engine.producers.last(channel, self._epoch)
        return last

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

    def _duplicate(self, channel: str, number: int) -> Receipt:
        latest = self._latest.get(channel)
        if latest is not None and number == self._last[channel]:
            return msgspec.structs.replace(latest, duplicate=True)
        return Receipt("", channel, -1, -1, duplicate=True)

    # -- appending --------------------------------------------------------------------------------------------

    def _append(self, channel: str, partition: int, ticket: Ticket) -> int:
        ticket.guard = self._epoch.guard
        return self._publisher.append(channel, partition, ticket)

    def _append_batch(self, channel: str, places: Places, ticket: Ticket, ids: list[str]) -> list[Receipt]:
        if len(places) > 1:
            return self._publisher.append_over(channel, places, ticket, ids, self._epoch)
        partition = next(iter(places))
        first = self._append(channel, partition, ticket)
        return [Receipt(one, channel, partition, first + at) for at, one in enumerate(ids)]

    def _doubt(self, channel: str) -> None:
        """After an append that failed in the middle only the log knows what is stored: ask it again."""
        self._last.pop(channel, None)
        self._latest.pop(channel, None)

    # -- life -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Save how far it has come, so that opening it again need not read what it published."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for channel in self._last:
                    self._save(channel)
                self._last = {}  # whoever publishes asks, and is told
                self._epoch.close()

    def _save(self, channel: str) -> None:
        latest = self._latest.get(channel)
        try:
            if self._engine.closed:
                return
            if latest is None or latest.offset < 0:
                self._engine.producers.renew(channel, self.id)
            else:
                last = Last(self._last[channel], latest.partition, latest.offset)
                self._engine.producers.note(channel, self._epoch, last)
        except HeliographError:
            return  # a checkpoint only: the log says the same

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_number(seq: object) -> bool:
    return isinstance(seq, int) and not isinstance(seq, bool) and seq >= 1
