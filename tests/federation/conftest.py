"""A CA with a hub and a station."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.federation.pki import Pki


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    made = Pki(tmp_path / "pki")
    made.issue("hub", "localhost", "127.0.0.1")
    made.issue("host1")
    return made
