"""``import heliograph`` is quick, because it brings in little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
    "ssl",
    "cryptography",
)

TIMED = """
import json, time
start = time.process_time(); import msgspec
middle = time.process_time(); import heliograph
end = time.process_time()
print(json.dumps([middle - start, end - start]))
"""


def run(code: str, **env: str) -> str:
    env = {**os.environ, **env}
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env).stdout


def test_import_brings_in_nothing_that_is_only_needed_later() -> None:
    loaded = json.loads(run("import json, sys, heliograph; print(json.dumps(sorted(sys.modules)))"))
    assert "heliograph" in loaded
    assert not [name for name in LATER if name in loaded]


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
