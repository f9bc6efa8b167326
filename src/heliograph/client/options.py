"""What a subscription of a client is, by what its caller said: a plain one, or a worker at the hub."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from heliograph.arguments import check_whole
from heliograph.client.pages import Start, said
from heliograph.delivery.queues.decisions import DELIVERIES_MAX, IN_FLIGHT_MAX, seconds, whole
from heliograph.delivery.retry import Retry, check_retry
from heliograph.errors import ConfigError
from heliograph.federation.errands import Kind, Pull, Work
from heliograph.limits import LINK_WORKERS_MAX
from heliograph.names import check_name, check_ownable
from heliograph.patterns import is_pattern

Span = float | timedelta


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of ``subscribe``, checked while the caller is still there to hear it."""

    name: str | None = None
    group: bool = False
    queue: bool = False
    start: Start = "new"
    concurrency: int = 1
    retry: Retry | None = None
    visibility_s: Span | None = None
    max_in_flight: int | None = None
    max_deliveries: int | None = None

    def work(self, channel: str, number: int, *, answers: bool) -> Work | None:
        """What to ask of the hub; None for a plain subscription."""
        check_retry(self.retry)
        if answers and not is_pattern(channel):
            check_ownable(channel)
        if self.name is None:
            self._check_plain(channel)
            return None
        if is_pattern(channel):
            raise ConfigError(f"'{channel}' is a pattern; with a name, a group or a queue a client needs one channel")
        if self.group and self.queue:
            raise ConfigError("group=True and queue=True are two kinds of subscription: leave out one")
        if not 1 <= check_whole("concurrency", self.concurrency) <= LINK_WORKERS_MAX:
            raise ConfigError(f"concurrency is {self.concurrency}; use 1 to {LINK_WORKERS_MAX} at a client")
        kind: Kind = "queue" if self.queue else "group" if self.group else "alone"
        if not self.queue and any(value is not None for value in self._settings().values()):
            raise ConfigError("visibility_s, max_in_flight and max_deliveries are for queues: add queue=True")
        return Work(
            number=number, channel=check_name(channel), name=check_name(self.name, "subscription"), kind=kind,
            start=said(self.start), concurrency=self.concurrency, retry=self.retry, answers=answers,
            **self._settings(),
        )  # fmt: skip

    def pull(self, channel: str, number: int) -> Pull:
        """What to ask of the hub for a queue by pulling."""
        name = check_name(self.name, "queue")
        return Pull(
            number=number, channel=check_name(channel), name=name, start=said(self.start), **self._settings()
        )  # fmt: skip

    def _settings(self) -> dict[str, Any]:
        visibility_s = None if self.visibility_s is None else seconds(self.visibility_s, "visibility_s")
        flying, deliveries = self.max_in_flight, self.max_deliveries
        return {
            "visibility_s": visibility_s,
            "max_in_flight": None if flying is None else whole(flying, "max_in_flight", IN_FLIGHT_MAX),
            "max_deliveries": None if deliveries is None else whole(deliveries, "max_deliveries", DELIVERIES_MAX),
        }

    def _check_plain(self, channel: str) -> None:
        if self.group or self.queue:
            kind = "group=True" if self.group else "queue=True"
            raise ConfigError(f"{kind} needs a name: workers find each other by it")
        if self.concurrency != 1 or self.retry is not None:
            raise ConfigError("concurrency and retry are for workers that the hub keeps a place for: add a name")
        if not is_pattern(channel):
            check_name(channel)
