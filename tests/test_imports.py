"""``import heliograph`` is quick, because it brings in little."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LATER = (
    "yaml",
    "tomllib",
    "click",
    "rich",
    "asyncio",
    "ctypes",
    "pydantic",
    "opentelemetry",
    "difflib",
    "subprocess",
    "sqlite3",
    "zoneinfo",
    "cronsim",
    "hashlib",
    "faststream",
    "textual",
    "ssl",
    "cryptography",
)

# Rooms of ours that most programs never enter.
SELDOM = (
    "heliograph.admin",
    "heliograph.aio",
    "heliograph.cli",
    "heliograph.delivery.member",
    "heliograph.delivery.queues",
    "heliograph.engine.queuestore",
    "heliograph.engine.sifting",
    "heliograph.faststream",
    "heliograph.log.compact",
    "heliograph.log.compress",
    "heliograph.log.keys",
    "heliograph.log.readonly",
    "heliograph.log.retention",
    "heliograph.log.shorten",
    "heliograph.schedule.cron",
    "heliograph.schedule.database",
    "heliograph.schemas",
    "heliograph.station.atomic",
    "heliograph.station.merging",
    "heliograph.station.producer",
    "heliograph.station.queues",
    "heliograph.station.seeking",
    "heliograph.station.tidying",
    "heliograph.station.wildcards",
)

PLAIN = """
import json, sys, threading
import heliograph as hg

heard = threading.Event()
with hg.open(sys.argv[1], name="host1") as station:
    station.publish("alerts", {"message": "system problem!"}, key="cpu", headers={"region": "eu"})
    station.publish_many("alerts", [1, 2, 3])
    with station.subscribe("alerts", lambda message: heard.set(), name="pager", start="first"):
        assert heard.wait(60)
    station.subscribe("alerts", lambda message: None).close()
print(json.dumps(sorted(sys.modules)))
"""

TIMED = """
import json, time
start = time.process_time(); import msgspec
middle = time.process_time(); import heliograph; heliograph.open
end = time.process_time()
print(json.dumps([middle - start, end - start]))
"""


def run(code: str, *arguments: str, **env: str) -> str:
    env = {**os.environ, **env}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True, env=env
    ).stdout


def test_import_brings_in_nothing_that_is_only_needed_later() -> None:
    loaded = json.loads(run("import json, sys, heliograph; print(json.dumps(sorted(sys.modules)))"))
    assert "heliograph" in loaded
    assert not [name for name in (*LATER, *SELDOM, "msgspec", "heliograph.log", "heliograph.station") if name in loaded]


def test_publishing_and_subscribing_bring_in_nothing_that_is_seldom_needed(tmp_path: Path) -> None:
    loaded = json.loads(run(PLAIN, str(tmp_path / "data")))
    assert "heliograph.delivery.loop" in loaded
    needed = {"ctypes"}  # to wait for other processes' messages
    assert not [name for name in (*LATER, *SELDOM) if name in loaded and name not in needed]


@pytest.mark.parametrize("module", SELDOM)
def test_what_is_seldom_needed_is_there(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def test_import_costs_a_small_multiple_of_msgspec_alone(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    # A ratio of two best times, each in fresh interpreters: the machine and its load cancel out. Compiled
    # modules are kept, as in an installation, whatever the environment says.
    kept = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    run(TIMED, **kept)
    times = [json.loads(run(TIMED, **kept)) for _ in range(7)]
    alone, all_of_it = (min(column) for column in zip(*times, strict=True))
    record_property("import_ratio", round(all_of_it / alone, 2))
    assert all_of_it / alone < 5, f"import heliograph takes {all_of_it / alone:.1f} times import msgspec"


def test_every_public_name_can_be_reached() -> None:
    import heliograph

    for name in heliograph.__all__:
        assert getattr(heliograph, name) is not None
