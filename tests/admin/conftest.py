"""Nobody else changes most of these stations: looking again needs no pause."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _look_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.admin.verify.PAUSE_S", 0.01)
