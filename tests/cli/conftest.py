"""A station in a temporary directory, and ``helio`` to use it: in this process, or in one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import heliograph as hg
from heliograph.cli.main import cli
from tests.cli.harness import Child, Helio


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def helio(data: Path) -> Helio:
    """Run a command line in this process, on the data directory of the test."""

    def run(*args: object, input: str | bytes | None = None, **options: Any) -> Result:
        return CliRunner().invoke(cli, ["-d", str(data), *map(str, args)], input=input, **options)

    return run


@pytest.fixture
def spawn(data: Path) -> Iterator[Callable[..., Child]]:
    """Run a command line in a process of its own."""
    children: list[Child] = []

    def start(*args: str, env: dict[str, str] | None = None) -> Child:
        children.append(Child(data, *args, env=env))
        return children[-1]

    yield start
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
        child.process.communicate()


@pytest.fixture
def station(data: Path) -> Iterator[hg.Station]:
    """The same station, through the API."""
    with hg.open(data, name="host1") as opened:
        yield opened
