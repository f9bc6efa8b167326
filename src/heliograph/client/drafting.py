"""Events as a client sends them: the envelope that a station would write, made without one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from heliograph import context
from heliograph.errors import InvalidMessage
from heliograph.expiry import NAME as EXPIRES
from heliograph.expiry import Expiry
from heliograph.limits import BATCH_MESSAGES_MAX
from heliograph.message import (
    Draft,
    HeaderValue,
    Timestamps,
    attributes,
    bytes_data,
    check_id,
    new_id,
    template,
    time_us,
)
from heliograph.names import check_ownable
from heliograph.payloads import Payloads, batch_of
from heliograph.schedule.times import span

BYTES_TYPE: Final = "heliograph.bytes.v1"
_BYTES = (bytes, bytearray, memoryview)


class Drafting:
    """Encodes the messages of one client."""

    def __init__(self, name: str, service: str, payloads: Payloads) -> None:
        self._name = name
        self._service = service
        self._payloads = payloads
        self._timestamps = Timestamps()

    def events(
        self, channel: str, items: Iterable[Any], common: Draft, ttl: float | timedelta | None
    ) -> tuple[list[bytes], list[str]]:  # fmt: skip
        """Lines for the hub, and the ids in them. What an item does not say itself, ``common`` says."""
        check_ownable(channel)
        batch = batch_of(items)
        if len(batch) > BATCH_MESSAGES_MAX:
            raise InvalidMessage(f"{len(batch)} messages in one batch, at most {BATCH_MESSAGES_MAX} are allowed")
        now_us = time.time_ns() // 1000
        extra: dict[str, Any] = dict(common.headers or {})
        if ttl is not None:
            extra[EXPIRES] = Expiry.after(now_us, span("ttl", ttl))
        lines, ids = [], []
        for item in batch:
            draft = item if isinstance(item, Draft) else Draft(data=item)
            line, own_id = self._event(channel, draft, common, extra, now_us)
            lines.append(line)
            ids.append(own_id)
        return lines, ids

    def _event(
        self, channel: str, draft: Draft, common: Draft, headers: Mapping[str, HeaderValue], now_us: int
    ) -> tuple[bytes, str]:  # fmt: skip
        type_name, data = self._data(draft.type or common.type, draft.data)
        own_id = draft.id or common.id or new_id()
        moment = now_us if draft.time is None else time_us(draft.time)
        begin = template(channel, type_name, self._source()) % (check_id(own_id), self._timestamps.format(moment))
        rest = attributes(
            common.key if draft.key is None else draft.key,
            draft.correlation_id or common.correlation_id or context.correlation_id(),
            context.traceparent(), draft.subject or common.subject, {**headers, **(draft.headers or {})},
        )  # fmt: skip
        return begin + rest + data + b"}", own_id

    def _data(self, type_name: str | None, data: Any) -> tuple[str, bytes]:
        if isinstance(data, _BYTES):
            type_name = BYTES_TYPE if type_name is None else type_name
            self._payloads.check_bytes(type_name, data)
            return type_name, bytes_data(data)
        type_name, encoded = self._payloads.check_and_encode(type_name, data)
        return type_name, b',"data":' + encoded

    def _source(self) -> str:
        service = context.service_name() or self._service
        return f"{self._name}/{service}" if service else self._name
