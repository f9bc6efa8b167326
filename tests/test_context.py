from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from heliograph import context
from heliograph.errors import InvalidMessage


def test_blocks_nest_and_end_even_when_they_fail() -> None:
    with context.service("outer"), context.correlation("c1"):
        with pytest.raises(ZeroDivisionError), context.service("inner"), context.correlation("c2"):
            assert context.current()[:2] == ("inner", "c2")
            _ = 1 / 0
        assert context.current()[:2] == ("outer", "c1")
    assert context.current() == (None, None, None)


def test_threads_do_not_see_each_other() -> None:
    seen: dict[str, str | None] = {}
    together = threading.Barrier(2)

    def work(name: str) -> None:
        with context.correlation(name):
            together.wait(10)
            seen[name] = context.correlation_id()
            together.wait(10)

    with context.correlation("main"):
        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert context.correlation_id() == "main"
    assert seen == {"a": "a", "b": "b"}


def test_tasks_start_with_their_creators_and_do_not_see_each_other() -> None:
    async def work(name: str) -> tuple[str | None, str | None]:
        with context.correlation(name):
            await asyncio.sleep(0.001)
            return context.service_name(), context.correlation_id()

    async def main() -> list[tuple[str | None, str | None]]:
        with context.service("billing"):
            tasks = [asyncio.create_task(work(name)) for name in ("a", "b")]
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [("billing", "a"), ("billing", "b")]


@pytest.mark.parametrize("text", ["", "a\nb", "\0", "\ud800", "x" * 256, None, 7])
def test_what_cannot_stand_in_an_envelope_is_refused_at_the_block(text: str) -> None:
    with pytest.raises(InvalidMessage), context.service(text):
        pytest.fail("the block was entered")
    with pytest.raises(InvalidMessage), context.correlation(text):
        pytest.fail("the block was entered")


def test_an_active_span_gives_its_traceparent() -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    assert context.traceparent() is None
    with trace.use_span(span):
        assert context.traceparent() == "00-00000000000000000000000000000abc-0000000000000def-01"
    assert context.traceparent() is None


def test_opentelemetry_is_never_imported_for_the_user() -> None:
    code = (
        "import sys; from heliograph import context\n"
        "assert context.traceparent() is None\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_half_imported_opentelemetry_is_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", type(sys)("opentelemetry.trace"))
    assert context.traceparent() is None
