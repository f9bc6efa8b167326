"""The shortest way to publish one message: for those that have nothing but data, and perhaps a key or a number.

What is the same for all of them is in a form that is made once a second; what is left is filled in under the lock, in
one step. Whatever is out of the ordinary goes the general way (publisher.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import count, repeat
from typing import Any

import uuid_utils

from heliograph import context
from heliograph.errors import HeliographError
from heliograph.limits import BATCH_MESSAGES_MAX
from heliograph.log.groups import Guard
from heliograph.log.head import STATE
from heliograph.log.held import ChannelGone, Evicted
from heliograph.log.lines import Form
from heliograph.log.tickets import ColumnsTicket, OneTicket
from heliograph.message import IdRun, Receipt, ids_of, key_attribute, new_ids
from heliograph.nesting import SHALLOW_BYTES_MAX
from heliograph.plain import NEWLINE, encode, encode_batch, encode_unchecked, look_closer
from heliograph.station.envelopes import SPECIAL, TRACING, Callback, Envelopes, Route

_modules = sys.modules
service_name = context.service_name
context_correlation_id = context.correlation_id
_uuid7 = uuid_utils.uuid7


class Shortcut(Envelopes):
    """Publishes what is plain."""

    def publish_plain(
        self, channel: str, data: Any, type_name: str | None, key: str | None, own: bytes = b"",
        guard: Guard | None = None,
    ) -> Receipt | None:  # fmt: skip
        """Publish data from this thread; None if that has to go the general way.

        ``own`` are attributes that only we may set; ``guard`` is asked before they are written.
        """
        try:
            route = self._routes[channel, type_name, service_name()]
        except (KeyError, TypeError):
            route = self._route(channel, type_name)
        logs, meter = route.logs, route.meter
        before = meter.published
        started_ns = 0 if before & 31 else self._monotonic_ns()  # looking at the clock costs, too
        partition = 0
        if (
            key is None and route.alone == self._engine.layout and not own and context_correlation_id() is None
            and TRACING not in _modules and data.__class__ not in SPECIAL
        ):  # fmt: skip
            # What `_filled` does, in fewer steps: this is the way of nearly every message.
            now_us = self._time_ns() // 1000
            second_us, form, _ = route.baked
            microseconds = now_us - second_us
            if not 0 <= microseconds < 1_000_000:
                second_us, form, _ = route.bake(now_us, self._timestamps)
                microseconds = now_us - second_us
            try:
                hole = encode_unchecked(data)
                size = len(hole)
                if size > SHALLOW_BYTES_MAX or hole.rfind(b"null") != -1 or NEWLINE in hole:  # suspicious
                    look_closer(hole, data)
            except (TypeError, ValueError, RecursionError, HeliographError):
                return None  # the general way says what is wrong with it
            if size > route.hole_bytes_max:
                return None
        else:
            filled = self._filled(route, channel, data, key, own, may_open=True)
            if filled is None:
                return None
            form, microseconds, hole, now_us = filled
            size = len(hole)
            logs = route.logs
            partition = 0 if len(logs) == 1 else self.partitioner.among(len(logs), channel, key)
        begins_us, ends_us, begin, next_end = self._ids
        try:
            message_id = begin + next_end() if begins_us <= now_us < ends_us else self._id_of(now_us)
            log = logs[partition]
            if log is None:
                log = logs[partition] = self._engine.appender(channel, partition)
            offset = log.append_one(form, message_id.encode(), microseconds, hole, now_us, guard)
        except (ChannelGone, Evicted, StopIteration):  # the last: all ids of this millisecond are given out
            route.layout = route.alone = -1
            self._engine.drop_closed(channel, partition)
            return None
        except HeliographError:
            meter.refused += 1
            raise
        meter.published = before + 1
        meter.bytes += form.bytes + size
        if started_ns:
            meter.latency.add((self._monotonic_ns() - started_ns) // 1000)
        return Receipt(message_id, channel, partition, offset)

    def _id_of(self, now_us: int) -> str:
        """An id for a message of this moment: the first one of a new run."""
        self._ids = run = IdRun.draw(now_us)
        return run.begin + run.next_end()

    def publish_batch(
        self, channel: str, payloads: Iterable[Any], type_name: str | None, key: str | None
    ) -> list[Receipt] | None:
        """As `publish_plain`, for an atomic batch that one append can hold."""
        started_ns = self._monotonic_ns()
        try:
            route = self._routes[channel, type_name, service_name()]
        except (KeyError, TypeError):
            return None
        if payloads.__class__ is not list or not self._short(route, channel, key, may_open=True):
            return None
        meter, logs = route.meter, route.logs
        partition = 0
        receipts: list[Receipt] = []

        def answer() -> None:
            receipts[:] = map(Receipt, ids_of(*ids), repeat(channel), repeat(partition), count(ticket.first))
            ticket.columns = ()  # it is written: who frees a hundred texts does so while the disk is busy

        try:
            prepared = self._columns(route, payloads, key)
            if prepared is None:
                return None
            ticket, ids = prepared
            if len(logs) > 1:
                partition = self.partitioner.among(len(logs), channel, key)
            log = logs[partition]
            if log is None:
                log = logs[partition] = self._engine.appender(channel, partition)
            ticket.meanwhile = answer
            first = log.append_batch(ticket)
            ticket.meanwhile = None  # which knows the ticket, in a circle: it would stay until somebody sweeps
        except (ChannelGone, Evicted):
            route.layout = route.alone = -1
            self._engine.drop_closed(channel, partition)
            return None
        except HeliographError:
            meter.refused += 1
            raise
        meter.published += ticket.count
        meter.bytes += ticket.size
        meter.latency.add((self._monotonic_ns() - started_ns) // 1000)
        if not receipts or receipts[0].offset != first:  # nobody had time for it while the disk was busy
            answer()
        return receipts

    def _columns(
        self, route: Route, batch: list[Any], key: str | None
    ) -> tuple[ColumnsTicket, tuple[bytes, list[bytes]]] | None:
        """A ticket for a batch, and its ids; None if the general way has to look at it, or to say what is wrong."""
        if not 0 < len(batch) <= BATCH_MESSAGES_MAX or not SPECIAL.isdisjoint(map(type, batch)):
            return None
        together = encode_batch(batch)
        if together is None:
            return None
        encoded, data_bytes = together
        now_us = self._time_ns() // 1000
        second_us, form, loose = route.baked
        if not 0 <= now_us - second_us < 1_000_000:
            second_us, form, loose = route.bake(now_us, self._timestamps)
        begin, ends = ids = new_ids(len(batch))
        hole = b""
        if key is not None:
            form, hole = loose, key_attribute(key) + b',"data":'
        before, after = (form.body % (begin + b"\n", now_us - second_us, hole)).split(b"\n")
        each = len(before) + len(ends[0]) + len(after)
        if each + data_bytes > self._max_body_bytes:
            return None  # one of them may be too large
        columns = (before, ends, after, encoded)
        return ColumnsTicket(columns, len(batch), each * len(batch) + data_bytes, now_us), ids

    def prepare_plain(
        self, channel: str, data: Any, type_name: str | None, key: str | None, callback: Callback
    ) -> tuple[OneTicket, str, int] | None:
        """As `publish_plain`, for another thread to commit: the ticket, the id and the partition.

        None also if a file would have to be opened, which is not done in an event loop.
        """
        try:
            route = self._routes[channel, type_name, service_name()]
        except (KeyError, TypeError):
            return None
        filled = self._filled(route, channel, data, key, b"", may_open=False)
        if filled is None:
            return None
        form, microseconds, hole, now_us = filled
        partitions = len(route.logs)
        partition = 0 if partitions == 1 else self.partitioner.among(partitions, channel, key)
        message_id = str(_uuid7())
        ticket = OneTicket(form, message_id.encode(), microseconds, hole, now_us, None, callback)
        return ticket, message_id, partition

    def _filled(
        self, route: Route, channel: str, data: Any, key: str | None, own: bytes, *, may_open: bool
    ) -> tuple[Form, int, bytes, int] | None:
        """A form, what goes into its holes, and the time; None if the message has to go the general way."""
        if data.__class__ in SPECIAL or not self._short(route, channel, key, may_open=may_open):
            return None
        now_us = self._time_ns() // 1000
        second_us, form, loose = route.baked
        if not 0 <= now_us - second_us < 1_000_000:
            second_us, form, loose = route.bake(now_us, self._timestamps)
        try:
            hole = encode(data)
            if key is not None or own:
                form, hole = loose, b'%b%b,"data":%b' % (b"" if key is None else key_attribute(key), own, hole)
        except HeliographError:
            route.meter.refused += 1
            raise
        if len(hole) > route.hole_bytes_max:
            return None
        return form, now_us - second_us, hole, now_us

    def _short(self, route: Route, channel: str, key: str | None, *, may_open: bool) -> bool:
        """Whether plain messages have nothing but data, and the route knows the channel's partitions."""
        if not route.plain or context_correlation_id() is not None or TRACING in _modules:
            return False
        if route.layout == self._engine.layout:
            if key is None and len(route.logs) == 1:
                return True  # whoever appends to the only partition looks at the channel anyhow
            try:
                if route.words[STATE] == route.known_state:
                    return True
            except ValueError:  # closed for room
                pass
        try:
            if may_open:
                self._engine.writer(channel, 0)  # whose head tells when there are more
            return self._look(route, channel)
        except (HeliographError, ValueError):  # the general way says what is wrong, or opens it again
            return False

    def _look(self, route: Route, channel: str) -> bool:
        layout = self._engine.layout
        words = self._engine.words_if_open(channel, 0)
        if words is None:
            return False
        state = words[STATE]
        partitions = self._engine.partition_count(channel)  # after the state: if it moves now, it is seen later
        route.words, route.known_state, route.logs = words, state, [None] * partitions
        route.layout = layout
        route.alone = layout if route.plain and partitions == 1 else -1
        return True
