"""What every test may ask for. How long Hypothesis searches: quickly, thoroughly with HYPOTHESIS_PROFILE=prove."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from heliograph.station.envelopes import TRACING
from tests.opening import opened, root

__all__ = ["opened", "root"]

# Disks and loaded machines stall now and then: slowness is the benchmark's subject, not the tests'.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _patient, max_examples=50)
settings.register_profile("prove", _patient, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Started in the background of a script, this process and its children would ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has loaded the tracing publishes the general way, not the short one: another test may have."""
    monkeypatch.delitem(sys.modules, TRACING, raising=False)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that lost its hub looks for it again at once."""
    monkeypatch.setattr("heliograph.client.keeper.pause_s", lambda failures, _: min(failures, 10) * 0.02)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """When tests run several at once, some stay in one process: those that share a Spark, which each process would
    start for itself, and the examples, which look for a free port and would find the same.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            alone = ("test_cluster.py", "test_connect.py", "test_declarative.py")  # these start a Spark of their own
            together = (*(f"tests/spark/{name}" for name in alone), "tests/spark/", "tests/test_examples.py")
            return next((place for place in together if nodeid.startswith(place)), nodeid)

    return Scheduling(config, log)
