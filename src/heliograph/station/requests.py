"""Asking: requests that wait for their replies. Who answers them is in ``answers.py``.

A request is an ordinary message with the header ``replyto``, the channel of replies of whoever asks. A reply is an
ordinary message there with the header ``replyfor``, the request's id, and the request's correlation id. All
requests of a process share one such channel and one thread that reads it. What is answered at another station comes
by a link, in the one channel ``_reply.to.NAME`` of this station; all processes that ask read it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from datetime import timedelta
from typing import Any, Final

import msgspec

from heliograph.engine.files import FilesEngine
from heliograph.errors import (
    AlreadyExists,
    Busy,
    ConfigError,
    InvalidMessage,
    ReplyFailed,
    ReplyTimeout,
    StationClosed,
)
from heliograph.limits import REQUESTS_MAX
from heliograph.message import HeaderValue, Message, Receipt, check_headers, new_id
from heliograph.names import REPLY_TO, check_publishable
from heliograph.station import links
from heliograph.station.mailbox import Listener, Mailbox
from heliograph.station.reader import MessageRange

logger = logging.getLogger("heliograph.requests")
ERROR_TYPE: Final = "heliograph.reply-error.v1"
TIMEOUT_S: Final = 10.0
"""How long a reply is waited for unless told otherwise."""

_TIMEOUT_S_MAX: Final = 1_000_000.0
"""Longest time to wait: eleven days, which every operating system's timers can hold."""

Duration = float | timedelta


class Addresses(msgspec.Struct):
    """What requests and replies say in their headers."""

    replyto: Any = None
    replyfor: Any = None


addresses = msgspec.json.Decoder(Addresses).decode


def seconds(timeout: Duration) -> float:
    """A time to wait, in seconds."""
    value: Any = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _TIMEOUT_S_MAX:
        raise ConfigError(f"timeout is {timeout!r}; use seconds above 0, or a timedelta, of at most eleven days")
    return float(value)


class Request:
    """One request on its way: what to publish it with, and the future of its reply."""

    def __init__(
        self, replyto: str, channel: str, timeout_s: float, own_id: str | None, why: Callable[[], str]
    ) -> None:
        self.id = own_id or new_id()
        self.future: Future[Message] = Future()
        self.replyto = replyto
        self._channel = channel
        self._timeout_s = timeout_s
        self._why = why

    def headers(self, own: Mapping[str, HeaderValue] | None) -> dict[str, HeaderValue]:
        """The publisher's headers and the address."""
        if own is not None:
            check_headers(own)
        if own and not {"replyto", "replyfor"}.isdisjoint(own):
            raise InvalidMessage("the headers 'replyto' and 'replyfor' of a request are set by the station")
        return {**(own or {}), "replyto": self.replyto}

    def timed_out(self) -> ReplyTimeout:
        """What to raise when the time is up."""
        return ReplyTimeout(
            f"nobody replied to request {self.id} on '{self._channel}' within {self._timeout_s:g} s. The request is "
            f"in the log all the same, and may still be answered; {self._why() or 'is a replier running?'}"
        )


class Requests:
    """The requests of one station that wait for their replies. Safe to use from any number of threads."""

    def __init__(self, engine: FilesEngine, publish: Callable[..., Receipt]) -> None:
        self.late = 0
        """Replies that nobody waited for any more."""
        self._engine = engine
        self._publish = publish
        self._waiting: dict[str, Request] = {}
        self._mailbox: Mailbox | None = None
        self._far: Listener | None = None
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many requests wait for their reply."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether beginning another request touches no file."""
        return self._mailbox is not None and self._mailbox.alive

    def begin(self, channel: str, timeout: Duration, own_id: str | None = None) -> Request:
        """Make room for a reply. Whoever calls this calls ``end``, too."""
        timeout_s = seconds(timeout)
        self._engine.check_writable()
        check_publishable(channel)
        mailbox = self._mailbox
        if mailbox is None or not mailbox.alive:
            mailbox = self._open()
        if (self._far is None or not self._far.alive) and links.linked(self._engine.root):
            self._listen_afar()
        if len(self._waiting) >= REQUESTS_MAX:
            raise Busy(f"{REQUESTS_MAX} requests wait for their replies already; nothing was asked")
        request = Request(mailbox.channel, channel, timeout_s, own_id, lambda: links.why_away(self._engine, channel))
        if self._waiting.setdefault(request.id, request) is not request:
            raise AlreadyExists(f"request {request.id} waits for its reply already; ids are for one message each")
        return request

    def _open(self) -> Mailbox:
        with self._lock:
            if self._mailbox is not None and not self._mailbox.alive:  # somebody deleted its channel
                self._mailbox.close()
                self._mailbox = None
            if self._mailbox is None:
                self._mailbox = Mailbox(self._engine, self._take)
            return self._mailbox

    def _listen_afar(self) -> None:
        """Hear of replies that come by links."""
        with self._lock:
            if self._far is None or not self._far.alive:
                channel = REPLY_TO + self._engine.name
                self._engine.ensure(channel)
                self._far = Listener(self._engine, channel, self._take_far, self._engine.bounds(channel).next)

    def end(self, request: Request) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(request.id, None)

    def ask(
        self, channel: str, data: Any, timeout: Duration, type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, subject: str | None,
    ) -> Message:  # fmt: skip
        """Publish a request and wait for its reply, in this thread."""
        clock = self._engine.clock
        until = clock.monotonic() + seconds(timeout)
        request = self.begin(channel, timeout)
        try:
            self._publish(
                channel, data, type_name, key, request.headers(headers), correlation_id, subject, request.id, None
            )
            return request.future.result(max(0.0, until - clock.monotonic()))
        except TimeoutError:
            raise request.timed_out() from None
        finally:
            self.end(request)

    def look(self, request: Request) -> None:
        """Take a reply that came before anybody waited for it (again)."""
        for channel in (request.replyto, *([] if self._far is None else [self._far.channel])):
            bounds = self._engine.bounds(channel)
            for message in MessageRange(self._engine, channel, 0, bounds.first, bounds.next, None):
                if addresses(message.raw).replyfor == request.id:
                    self._take([message])
                    return

    def _take_far(self, messages: list[Message]) -> None:
        """Replies have come from other stations, to requests of any process."""
        found = [(message, addresses(message.raw).replyfor) for message in messages]
        own = [message for message, answered in found if isinstance(answered, str) and answered in self._waiting]
        self._take(own)

    def _take(self, messages: list[Message]) -> None:
        """Replies have come."""
        for message in messages:
            answered = addresses(message.raw).replyfor
            request = self._waiting.pop(answered, None) if isinstance(answered, str) else None
            try:
                if request is None:
                    raise InvalidStateError
                if message.type == ERROR_TYPE:
                    request.future.set_exception(failure(message))
                else:
                    request.future.set_result(message)
            except InvalidStateError:
                self.late += 1
                logger.info("a reply to request %s came too late", answered)

    def close(self) -> None:
        """Tell everybody who waits, and let go of the channel of replies."""
        with self._lock:
            mailbox, self._mailbox = self._mailbox, None
            far, self._far = self._far, None
        for listener in (mailbox, far):
            if listener is not None:
                listener.close()
        for request in list(self._waiting.values()):
            self.end(request)
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(StationClosed("the station was closed before the reply came"))


def failure(message: Message) -> ReplyFailed:
    """What a reply says that tells of an error."""
    said = message.data if isinstance(message.data, Mapping) else {}
    error = str(said.get("error", "no reason given"))
    return ReplyFailed(f"the handler gave up: {error}", str(said.get("error_type", "")), message)
