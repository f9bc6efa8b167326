"""Every example runs and prints what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heliograph import config

EXAMPLES = Path(__file__).parent.parent / "examples"

PRINTED = {
    "typed_payloads.py": [
        "refused, nothing written: com.example.alert.v1: Expected `int`, got `str` - at `$.level`",
        "offset 0: alert of level 1: somebody is at the door",
        "offset 1: kitchen has 21.5 °C",
        "offset 2: alert of level 2: a dict will do",
        "without the type: com.example.alert.v1 {'message': 'somebody is at the door', 'level': 1}",
    ],
    "batch_handler.py": ["1000 sales of 1999 pieces in the database, each once"],
    "asyncio_station.py": [
        "100 published, offsets 0 to 99",
        "100 arrived, their sum is 4950",
        "read again from the log, their sum is 4950",
    ],
    "dead_letters.py": [
        "handled: greylisted@example.com, ada@example.com",
        "dead: offset 1 of mails, ValueError: 'nobody' is no address",
        "      after 3 attempts by mailer; {'to': 'nobody'}",
    ],
    "several_processes.py": [f"host1/worker-{number}: 250" for number in range(4)],
    "faststream_shop.py": [
        "ada pays 23.80",
        "a dead letter: ValueError: eve has no credit",
        "asked for a price: {'price': 42}",
    ],
    "work_queue.py": ["60 of 60 pictures are resized, though a worker was killed"],
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, tmp_path], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED[name]


def test_no_example_is_untested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*PRINTED, "demo.py"}


def test_the_example_of_a_configuration_file_is_a_valid_one() -> None:
    loaded = config.load(EXAMPLES / "heliograph.yaml", env={})
    assert loaded.storage.retention_age_s == 30 * 86_400
    assert loaded.subscribers.backoff_max_ms == 30_000
