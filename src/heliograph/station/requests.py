"""Asking and being answered: requests that wait, and handlers whose answers go back.

A request is an ordinary message with the header ``replyto``, the channel of replies of whoever asks. A reply is an
ordinary message there with the header ``replyfor``, the request's id, and the request's correlation id. All
requests of a process share one such channel and one thread that reads it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from datetime import timedelta
from typing import Any, Final

import msgspec

from heliograph.delivery.invoke import refuse_awaitable
from heliograph.engine.files import FilesEngine
from heliograph.errors import (
    Busy,
    ConfigError,
    HeliographError,
    InvalidMessage,
    NotFound,
    ReplyFailed,
    ReplyTimeout,
    StationClosed,
)
from heliograph.limits import REQUESTS_MAX
from heliograph.message import Draft, HeaderValue, Message, Receipt, new_id
from heliograph.names import REPLY, check_publishable
from heliograph.station.mailbox import Mailbox

logger = logging.getLogger("heliograph.requests")
ERROR_TYPE: Final = "heliograph.reply-error.v1"
TIMEOUT_S: Final = 10.0
"""How long a reply is waited for unless told otherwise."""

_TIMEOUT_S_MAX: Final = 1_000_000.0
"""Longest time to wait: eleven days, which every operating system's timers can hold."""

Duration = float | timedelta


class _Addresses(msgspec.Struct):
    """What requests and replies say in their headers."""

    replyto: Any = None
    replyfor: Any = None


_addresses = msgspec.json.Decoder(_Addresses).decode


def seconds(timeout: Duration) -> float:
    """A time to wait, in seconds."""
    value: Any = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _TIMEOUT_S_MAX:
        raise ConfigError(f"timeout is {timeout!r}; use seconds above 0, or a timedelta, of at most eleven days")
    return float(value)


class Request:
    """One request on its way: what to publish it with, and the future of its reply."""

    def __init__(self, replyto: str, channel: str, timeout_s: float) -> None:
        self.id = new_id()
        self.future: Future[Message] = Future()
        self.replyto = replyto
        self._channel = channel
        self._timeout_s = timeout_s

    def headers(self, own: Mapping[str, HeaderValue] | None) -> dict[str, HeaderValue]:
        """The publisher's headers and the address."""
        if own and not {"replyto", "replyfor"}.isdisjoint(own):
            raise InvalidMessage("the headers 'replyto' and 'replyfor' of a request are set by the station")
        return {**(own or {}), "replyto": self.replyto}

    def timed_out(self) -> ReplyTimeout:
        """What to raise when the time is up."""
        return ReplyTimeout(
            f"nobody replied to request {self.id} on '{self._channel}' within {self._timeout_s:g} s. The request is "
            "in the log all the same, and may still be answered; is a replier running?"
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
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many requests wait for their reply."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether beginning another request touches no file."""
        return self._mailbox is not None and self._mailbox.alive

    def begin(self, channel: str, timeout: Duration) -> Request:
        """Make room for a reply. Whoever calls this calls ``end``, too."""
        timeout_s = seconds(timeout)
        self._engine.check_writable()
        check_publishable(channel)
        mailbox = self._mailbox
        if mailbox is None or not mailbox.alive:
            mailbox = self._open()
        if len(self._waiting) >= REQUESTS_MAX:
            raise Busy(f"{REQUESTS_MAX} requests wait for their replies already; nothing was asked")
        request = Request(mailbox.channel, channel, timeout_s)
        self._waiting[request.id] = request
        return request

    def _open(self) -> Mailbox:
        with self._lock:
            if self._mailbox is not None and not self._mailbox.alive:  # somebody deleted its channel
                self._mailbox.close()
                self._mailbox = None
            if self._mailbox is None:
                self._mailbox = Mailbox(self._engine, self._take)
            return self._mailbox

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

    def _take(self, messages: list[Message]) -> None:
        """Replies have come."""
        for message in messages:
            answered = _addresses(message.raw).replyfor
            request = self._waiting.pop(answered, None) if isinstance(answered, str) else None
            try:
                if request is None:
                    raise InvalidStateError
                if message.type == ERROR_TYPE:
                    request.future.set_exception(_failure(message))
                else:
                    request.future.set_result(message)
            except InvalidStateError:
                self.late += 1
                logger.info("a reply to request %s came too late", answered)

    def close(self) -> None:
        """Tell everybody who waits, and let go of the channel of replies."""
        with self._lock:
            mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.close()
        for request in list(self._waiting.values()):
            self.end(request)
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(StationClosed("the station was closed before the reply came"))


def _failure(message: Message) -> ReplyFailed:
    said = message.data if isinstance(message.data, Mapping) else {}
    error = str(said.get("error", "no reason given"))
    return ReplyFailed(f"the handler gave up: {error}", str(said.get("error_type", "")), message)


# -- the other side -------------------------------------------------------------------------------------------


class Replier:
    """A handler whose answers are published to where the request says. Messages that ask for none get none.

    ``bury`` writes dead letters: when the handler gives up, whoever asked is told as well.
    """

    def __init__(
        self,
        handler: Callable[[Message], Any],
        publish: Callable[..., Receipt],
        bury: Callable[[str, dict[str, Any], str | None], object],
    ) -> None:
        self._handler = handler
        self._publish = publish
        self._bury = bury

    def __call__(self, message: Message) -> None:
        """Handle a request and send the answer."""
        answer = self._handler(message)
        refuse_awaitable(answer)
        self._answer(message, answer)

    def _answer(self, message: Message, answer: Any) -> None:
        draft = answer if isinstance(answer, Draft) else Draft(data=answer)
        self._send(_addresses(message.raw).replyto, message.id, message.correlationid, draft)

    def _send(self, replyto: Any, request_id: str, correlation_id: str | None, draft: Draft) -> None:
        if replyto is None:
            return
        if not isinstance(replyto, str) or not replyto.startswith(REPLY):
            logger.warning("request %s wants its reply in %r, which is no channel of replies", request_id, replyto)
            return
        headers = {**(draft.headers or {}), "replyfor": request_id}
        correlation_id = draft.correlation_id or correlation_id
        try:
            self._publish(
                replyto, draft.data, draft.type, draft.key, headers, correlation_id, draft.subject, draft.id, None
            )
        except NotFound:
            logger.info("whoever sent request %s has gone", request_id)

    def bury(self, channel: str, payload: dict[str, Any], key: str | None) -> object:
        """Tell whoever asked, then write the dead letter: a reply that comes twice does no harm, a letter would."""
        original = payload.get("original")
        if original is not None:
            self._apologise(bytes(original), payload)
        return self._bury(channel, payload, key)

    def _apologise(self, line: bytes, payload: dict[str, Any]) -> None:
        try:
            envelope = msgspec.json.decode(line, type=dict[str, Any])
            told = {field: payload[field] for field in ("error", "error_type", "attempts")}
            draft = Draft(data=told, type=ERROR_TYPE)
            self._send(envelope.get("replyto"), str(envelope.get("id")), envelope.get("correlationid"), draft)
        except (HeliographError, msgspec.MsgspecError) as error:
            logger.error("an error could not be told to whoever asked: %s", error)


class AsyncReplier(Replier):
    """The same for a coroutine function; the answer is published in a thread, not in the event loop."""

    async def __call__(self, message: Message) -> None:  # type: ignore[override]
        """Handle a request and send the answer."""
        import asyncio

        answer = await self._handler(message)
        if _addresses(message.raw).replyto is not None:  # a change of threads costs more than looking
            await asyncio.to_thread(self._answer, message, answer)
