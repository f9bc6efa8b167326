"""What every test needs, those in docstrings and documents included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _examples_run_in_an_empty_directory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example may say ``hg.open("data")``: it gets a directory of its own."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("HELIOGRAPH_"):
            monkeypatch.delenv(name)
