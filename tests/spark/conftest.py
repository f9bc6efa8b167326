"""One Spark for all tests of this folder: starting one takes longer than most of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever comes first waits for Spark to start, which a loaded machine takes its time for."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def java() -> str:
    """The Java of this machine; without one there is no Spark."""
    from heliograph.errors import ConfigError
    from heliograph.spark.session import find_java

    try:
        return find_java()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, java: str) -> Iterator[Any]:
    """A real Spark on this machine, which is not in UTC."""
    from heliograph.spark import session

    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/St_Johns"  # half an hour beside the others
    time.tzset()
    place = tmp_path_factory.mktemp("spark")
    found = session(
        "tests", master="local[2]", spark__sql__shuffle__partitions=2, spark__sql__warehouse__dir=place / "warehouse",
        spark__local__dir=place / "local", spark__sql__streaming__pollingDelay="20ms", spark__driver__memory="1g",
    )  # fmt: skip
    yield found
    found.stop()
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()
