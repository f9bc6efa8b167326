"""The demonstration runs, and would say so if something were lost."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("heliograph_demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demo_kills_two_processes_and_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DEMO, "--seconds", "3", "--directory", tmp_path / "data"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SIGKILL") == 2
    assert "lost: 0" in done.stdout
    assert "Nothing acknowledged is lost" in done.stdout
    assert done.stdout.count('"partitionkey":"publisher-2"') == 3, "the command, and two lines of its output"
    assert not done.stderr


def test_a_clean_run_is_called_clean(demo: ModuleType) -> None:
    log = [("a", 1), ("b", 1), ("a", 2)]
    told = [(order, at) for at, order in enumerate(log)]
    found = demo.tally([("a", 1), ("b", 1)], log, {"ledger": [told], "mailer": [told[:2], told[1:]]})
    assert found.clean
    assert (found.unconfirmed, found.subscribers["mailer"]["again"]) == (1, 1)


@pytest.mark.parametrize(
    ("acked", "log", "told"),
    [
        ([("a", 1), ("a", 2)], [("a", 1)], [[(("a", 1), 0)]]),  # acknowledged, not in the log
        ([("a", 1)], [("a", 1), ("a", 1)], [[(("a", 1), 0)]]),  # twice in the log
        ([("a", 1), ("a", 2)], [("a", 1), ("a", 2)], [[(("a", 1), 0)]]),  # not delivered
        ([("a", 1), ("a", 2)], [("a", 1), ("a", 2)], [[(("a", 2), 1), (("a", 1), 0)]]),  # out of order
        ([], [], [[]]),  # nothing happened at all
    ],
)
def test_whatever_is_wrong_is_not_called_clean(
    demo: ModuleType, acked: list[object], log: list[object], told: list[object]
) -> None:
    assert not demo.tally(acked, log, {"ledger": told}).clean
