"""A station reduced to what delivery needs of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.delivery.harness import MiniStation


@pytest.fixture
def station() -> Iterator[MiniStation]:
    station = MiniStation()
    yield station
    station.close()
