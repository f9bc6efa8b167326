"""What is true for a block of code: which service publishes, and which correlation its messages belong to.

Context variables carry it, so every thread has its own and every task starts with its creator's::

    with context.service("billing"), context.correlation(order_id):
        station.publish("invoices", invoice)      # source host1/billing, correlationid of the order

The trace comes from OpenTelemetry, if the application uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from heliograph.errors import InvalidMessage

CONTEXT_CHARS_MAX = 255
"""Longest service name or correlation id."""

_service: ContextVar[str | None] = ContextVar("heliograph_service", default=None)
_correlation: ContextVar[str | None] = ContextVar("heliograph_correlation", default=None)

# Without OpenTelemetry this lookup is all that a publish pays.
_module = sys.modules.get


class Current(NamedTuple):
    """What a message published now would carry; None where nothing was said."""

    service: str | None
    correlation_id: str | None
    traceparent: str | None


@contextmanager
def service(name: str) -> Iterator[None]:
    """Messages published in this block come from the service ``name``.

    >>> with service("billing"):
    ...     service_name()
    'billing'
    """
    token = _service.set(_checked("a service name", name))
    try:
        yield
    finally:
        _service.reset(token)


@contextmanager
def correlation(correlation_id: str) -> Iterator[None]:
    """Messages published in this block carry ``correlation_id``, unless publish is given another.

    >>> with correlation("order-17"):
    ...     current()
    Current(service=None, correlation_id='order-17', traceparent=None)
    """
    token = _correlation.set(_checked("a correlation id", correlation_id))
    try:
        yield
    finally:
        _correlation.reset(token)


service_name: Callable[[], str | None] = _service.get
"""The service of the innermost :func:`service` block. The variable's own method: every publish asks."""

correlation_id: Callable[[], str | None] = _correlation.get
"""The id of the innermost :func:`correlation` block."""


def traceparent() -> str | None:
    """The W3C ``traceparent`` of the active OpenTelemetry span, if there is one.

    An application that traces has imported OpenTelemetry already; it is never imported here.
    """
    trace = _module("opentelemetry.trace")
    if trace is None:
        return None
    try:
        span = trace.get_current_span().get_span_context()
    except AttributeError:  # another thread is importing it this very moment: no span can be active yet
        return None
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"


def current() -> Current:
    """Everything at once."""
    return Current(service_name(), correlation_id(), traceparent())


def _checked(what: str, text: object) -> str:
    if not isinstance(text, str) or not text or not text.isprintable() or len(text) > CONTEXT_CHARS_MAX:
        raise InvalidMessage(f"{what} is a printable text of 1 to {CONTEXT_CHARS_MAX} characters, not {text!r}")
    return text
