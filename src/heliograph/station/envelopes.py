"""From what is handed to ``publish`` to the publisher's part of a line: checked and encoded, before any lock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import google_crc32c
import uuid_utils

from heliograph import context
from heliograph.config import Config
from heliograph.engine.files import FilesEngine
from heliograph.errors import HeliographError, InvalidMessage, MessageTooLarge
from heliograph.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, ROUTES_MAX
from heliograph.log.commit import GroupCommit
from heliograph.log.lines import TAIL_BYTES_MAX, Column, Form, bytes_in, decimals, longest_in
from heliograph.log.partition import Partition
from heliograph.log.tickets import ColumnsTicket, Ticket
from heliograph.message import (
    Draft,
    HeaderValue,
    IdRun,
    Timestamps,
    attributes,
    bytes_data,
    check_id,
    ids_of,
    new_ids,
    template,
    time_us,
)
from heliograph.names import check_publishable
from heliograph.payloads import DEFAULT_TYPE, Payloads, batch_of, encode
from heliograph.station.partitioning import Partitioner
from heliograph.station.stats import ChannelMeter, Meters
from heliograph.station.types import Types

_crc = google_crc32c.value
_modules = sys.modules
TRACING = "opentelemetry.trace"
service_name = context.service_name
context_correlation_id = context.correlation_id
_uuid7 = uuid_utils.uuid7
_BYTES = (bytes, bytearray, memoryview)
SPECIAL = {Draft, *_BYTES}
BYTES_TYPE = "heliograph.bytes.v1"
NO_WORDS = memoryview(b"")
_UNCHECKED = ""  # no type's name: the route of a registered type before its schema was looked at
Callback = Callable[[list[Ticket]], None]


class Numbered(NamedTuple):
    """What a producer says in its messages: what comes before the number, and the first number of a batch."""

    begin: bytes
    first: int

    def one(self, at: int) -> bytes:
        """What the message has that is so many after the first."""
        return b'%b%d"' % (self.begin, self.first + at)


class Route:
    """What is the same for every message that a publisher sends to a channel with a type and a service."""

    __slots__ = (
        "alone", "baked", "hole_bytes_max", "known_state", "layout", "line", "logs", "meter", "plain", "template",
        "type_name", "words",
    )  # fmt: skip

    def __init__(
        self, template: bytes, type_name: str, meter: ChannelMeter, *, body_bytes_max: int, plain: bool
    ) -> None:
        self.template = template
        self.line = template + b',"data":%b'
        self.hole_bytes_max = body_bytes_max - len(self.line)  # what comes after the channel may have so many
        self.type_name = type_name
        self.meter = meter
        self.plain = plain  # data of no registered type: encoded as it is
        self.alone = -1  # the same as `layout`, if plain messages without a key have but one partition to go to
        self.layout = -1  # of the engine when this route last looked at the channel, which then had
        self.logs: list[Partition | GroupCommit | None] = []  # so many partitions, of which these were published to,
        self.words = NO_WORDS  # and the head of the first of which
        self.known_state = -1  # held this word: it moves when the number of partitions does
        # When the second began that the forms have in them, the form for messages that have nothing but data, and that
        # for messages that have other attributes before it. Threads share them, hence all in one.
        self.baked = (0, Form(b""), Form(b""))

    def bake(self, now_us: int, timestamps: Timestamps) -> tuple[int, Form, Form]:
        """Put the second into the forms, which then serve for the rest of it."""
        second_us = now_us - now_us % 1_000_000
        template = self.template.replace(b"%%", b"%%%%")  # what is a % in a name stays one: forms are filled once more
        begin = template % (b"%b", timestamps.format(second_us).replace(b"000000Z", b"%06dZ"))
        self.baked = baked = (second_us, Form(begin + b',"data":%b'), Form(begin + b"%b"))
        return baked


class Envelopes:
    """Encodes messages, each once."""

    def __init__(self, engine: FilesEngine, payloads: Payloads, types: Types, config: Config, meters: Meters) -> None:
        self._engine = engine
        self._payloads = payloads
        self._types = types
        self._meters = meters
        self._max_body_bytes = config.messages.max_bytes - TAIL_BYTES_MAX
        self._service = config.service
        self._station = engine.name
        self.partitioner = Partitioner(engine)
        self._timestamps = Timestamps()
        self._ids = IdRun.draw(0)
        self._routes: dict[tuple[str, str | None, str | None], Route] = {}
        self._time_ns = engine.clock.time_ns
        self._monotonic_ns = engine.clock.monotonic_ns
        publishing = config.publishing
        self._wait_s = publishing.busy_timeout_s if publishing.when_full == "wait" else 0.0

    def forget_routes(self) -> None:
        """A type was registered: look again how each is encoded, and at its schema."""
        self._routes = {}
        self._types.forget()

    def forget_channel(self, channel: str) -> None:
        """A channel was deleted, or made anew: look at the schemas again that it has."""
        self._routes = {key: route for key, route in self._routes.items() if key[0] != channel}
        self._types.forget(channel)

    def _source(self) -> str:
        service = service_name() or self._service
        return f"{self._station}/{service}" if service else self._station

    def _route(self, channel: str, type_name: str | None) -> Route:
        """Check channel and type, once for all messages that have them."""
        self._engine.check_writable()
        check_publishable(channel)
        name = DEFAULT_TYPE if type_name is None else self._payloads.checked(type_name)
        key = (channel, type_name, service_name())
        route = self._routes.get(key)
        if route is not None:
            return route
        infers = type_name is None and self._payloads.registered > 0
        registered = self._payloads.decoder(name) is not None
        route = Route(
            template(channel, name, self._source()), _UNCHECKED if registered else name, self._meters.of(channel),
            body_bytes_max=self._max_body_bytes, plain=not infers and not registered,
        )  # fmt: skip
        if len(self._routes) >= ROUTES_MAX:
            self._routes = {}
        self._routes[key] = route
        return route

    def _body(
        self, route: Route, channel: str, data: Any, type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, subject: str | None,
        message_id: str | None, now_us: int, own: bytes = b"",
    ) -> tuple[bytes, str]:  # fmt: skip
        """The publisher's part of a line, and the message's id. ``own`` are attributes that only we may set."""
        if message_id is None:
            message_id = str(_uuid7())
            id_bytes = message_id.encode()
        else:
            id_bytes = check_id(message_id)
        stamp = self._timestamps.format(now_us)
        if correlation_id is None:
            correlation_id = context_correlation_id()
        traceparent = context.traceparent() if TRACING in _modules else None
        simple = key is None and not (correlation_id or traceparent or subject or headers or own)
        if simple and route.plain and not isinstance(data, _BYTES):
            body = route.line % (id_bytes, stamp, encode(data))
        else:
            name, encoded = self._data(type_name, data)
            begin = route.template
            if name != route.type_name:
                begin = self._begin(route, channel, type_name, name)
            extra = attributes(key, correlation_id, traceparent, subject, headers) + own
            body = begin % (id_bytes, stamp) + extra + encoded
        if len(body) > self._max_body_bytes:
            self._too_large(len(body), channel)
        return body, message_id

    def _begin(self, route: Route, channel: str, said: str | None, type_name: str) -> bytes:
        """The template for the first message of a registered type, or one whose data told its type."""
        self._types.check(channel, type_name)
        if said is None:
            return template(channel, type_name, self._source())
        route.type_name = type_name  # nobody has to look again
        return route.template

    def body(
        self, channel: str, data: Any, type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, subject: str | None,
        message_id: str | None,
    ) -> tuple[bytes, str]:  # fmt: skip
        """The publisher's part of a line, checked and encoded but not appended, and the message's id."""
        route = self._route(channel, type_name)
        now_us = self._time_ns() // 1000
        return self._body(route, channel, data, type_name, key, headers, correlation_id, subject, message_id, now_us)

    def prepare(
        self, channel: str, data: Any, type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, subject: str | None,
        message_id: str | None, callback: Callback | None, own: bytes = b"",
    ) -> tuple[Ticket, str]:  # fmt: skip
        """A ticket for one message, with the time that is in it, and its id; another thread may commit it."""
        route = self._route(channel, type_name)
        now_us = self._time_ns() // 1000
        try:
            body, message_id = self._body(
                route, channel, data, type_name, key, headers, correlation_id, subject, message_id, now_us, own
            )
        except HeliographError:
            route.meter.refused += 1
            raise
        return Ticket((body,), (_crc(body),), now_us, callback=callback), message_id

    def _data(self, type_name: str | None, data: Any) -> tuple[str, bytes]:
        if isinstance(data, _BYTES):
            type_name = BYTES_TYPE if type_name is None else type_name
            self._payloads.check_bytes(type_name, data)
            return type_name, bytes_data(data)
        type_name, encoded = self._payloads.check_and_encode(type_name, data)
        return type_name, b',"data":' + encoded

    def _check_size(self, size: int, channel: str) -> None:
        if size > self._max_body_bytes:
            self._too_large(size, channel)

    def _too_large(self, size: int, channel: str) -> None:
        raise MessageTooLarge(
            f"a message for '{channel}' has about {size + TAIL_BYTES_MAX} bytes, messages.max_bytes is "
            f"{self._max_body_bytes + TAIL_BYTES_MAX}. Publish a reference to the data instead, or raise the limit."
        )

    def prepare_many(
        self, channel: str, payloads: Iterable[Any], type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, callback: Callback | None = None,
        numbered: Numbered | None = None,
    ) -> tuple[Ticket, list[str]]:  # fmt: skip
        """A ticket for an atomic batch, and the ids in it. Everything is checked before anything is written."""
        self._route(channel, type_name)
        batch = batch_of(payloads)
        if len(batch) > BATCH_MESSAGES_MAX:
            raise InvalidMessage(f"{len(batch)} messages in one batch, at most {BATCH_MESSAGES_MAX} are allowed")
        now_us = self._engine.clock.time_ns() // 1000
        correlation_id = correlation_id or context.correlation_id()
        extra = attributes(key, correlation_id, context.traceparent(), None, headers)
        ticket: Ticket | None = None
        if SPECIAL.isdisjoint(map(type, batch)):
            ticket, ids = self._plain_ticket(channel, batch, type_name, extra, numbered, now_us, callback)
        if ticket is None:
            bodies, ids = self._mixed_bodies(channel, batch, type_name, key, headers, correlation_id, now_us, numbered)
            self._check_size(max(map(len, bodies), default=0), channel)
            ticket = Ticket(bodies, list(map(_crc, bodies)), now_us, atomic=True, callback=callback)
            self._set_event_times(ticket, batch)
        if ticket.size > BATCH_BYTES_MAX:
            raise MessageTooLarge(f"the batch has {ticket.size} bytes, at most {BATCH_BYTES_MAX} fit one atomic append")
        return ticket, ids

    def _plain_ticket(
        self, channel: str, batch: list[Any], type_name: str | None, extra: bytes, numbered: Numbered | None,
        now_us: int, callback: Callback | None,
    ) -> tuple[Ticket | None, list[str]]:  # fmt: skip
        """A ticket for a batch whose messages differ only in their data; None if their types differ, too."""
        names, encoded = self._payloads.check_and_encode_many(type_name, batch)
        if len(set(names)) > 1:
            return None, []
        name = names[0] if names else DEFAULT_TYPE
        self._types.check(channel, name)
        count = len(encoded)
        id_begin, id_ends = new_ids(count)
        begin = template(channel, name, self._source()) % (id_begin + b"\n", self._timestamps.format(now_us))
        before, after = begin.split(b"\n")
        columns: list[Column] = [before, id_ends, after + extra + b',"data":', encoded]
        if numbered is not None:
            numbers = decimals(range(numbered.first, numbered.first + count))
            columns[2:3] = [after + extra + numbered.begin, numbers, b'","data":']
        ticket = ColumnsTicket(columns, count, bytes_in(columns, count), now_us, callback=callback)
        if ticket.size > self._max_body_bytes:  # all of them together are more than one may be
            self._check_size(longest_in(columns), channel)
        return ticket, ids_of(id_begin, id_ends)

    def _mixed_bodies(
        self, channel: str, batch: list[Any], type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, now_us: int,
        numbered: Numbered | None,
    ) -> tuple[list[bytes], list[str]]:  # fmt: skip
        bodies, ids = [], []
        source, traceparent = self._source(), context.traceparent()
        for at, item in enumerate(batch):
            draft = item if isinstance(item, Draft) else Draft(data=item)
            try:
                name, encoded = self._data(draft.type or type_name, draft.data)
                self._types.check(channel, name)
                extra = attributes(
                    key if draft.key is None else draft.key, draft.correlation_id or correlation_id, traceparent,
                    draft.subject, {**(headers or {}), **(draft.headers or {})},
                )  # fmt: skip
                message_id = str(_uuid7()) if draft.id is None else draft.id
                moment = now_us if draft.time is None else time_us(draft.time)
                begin = template(channel, name, source) % (check_id(message_id), self._timestamps.format(moment))
            except InvalidMessage as error:
                raise type(error)(f"message {at} of the batch: {error}") from error.__cause__
            own = b"" if numbered is None else numbered.one(at)
            bodies.append(begin + extra + own + encoded)
            ids.append(message_id)
        return bodies, ids

    def _set_event_times(self, ticket: Ticket, batch: list[Any]) -> None:
        moments = [time_us(item.time) for item in batch if isinstance(item, Draft) and item.time is not None]
        if moments:
            ticket.min_us = min(ticket.now_us, *moments)
            ticket.max_us = max(moments) if len(moments) == len(batch) else max(ticket.now_us, *moments)
