"""Every example runs and prints what it promises."""

from __future__ import annotations

import contextlib
import os
import re
import signal
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
    found = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*") if path.is_file()}
    scripts = {name for name in found if not name.endswith((".yaml", ".pyc"))}
    assert scripts == {
        *PRINTED, "demo.py", "two-hosts/run", "federation/topologies.py",
        "pipelines/orders.py",  # tests/spark/test_pipelines.py
        "pipelines/orders_and_payments.py",  # tests/spark/jobs/test_join_example.py
        "declarative/shop.py", "declarative/spark-defaults.conf",  # tests/spark/test_declarative.py
    }  # fmt: skip


# -- several hosts ------------------------------------------------------------------------------------------

SHAPES = {
    "star": [
        "host1 and host2 published 40 messages",
        *(f"{name}: 40" for name in ("dashboard", "host1", "host2", "hub")),
    ],
    "chain": [
        "field published 20 messages",
        *(f"{name}: 20" for name in ("district", "field", "headquarters", "region")),
    ],
    "diamond": ["client published 20 messages", *(f"{name}: 20" for name in ("client", "hub1", "hub2", "reader"))],
    "ring": ["a and b and c published 60 messages", *(f"{name}: 60" for name in ("a", "b", "c"))],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_message_is_everywhere_once_in_every_shape(shape: str, tmp_path: Path) -> None:
    script = EXAMPLES / "federation" / "topologies.py"
    done = subprocess.run(
        [sys.executable, script, "--once", shape, "--dir", tmp_path], capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    first, *rest = SHAPES[shape]
    assert done.stdout.splitlines()[1:] == [f"  {first}", *(f"  {line} messages, each once" for line in rest)]
    for file in (tmp_path / shape).glob("*.yaml"):
        assert config.load(file, env={}).name == file.stem


def two_hosts(*args: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [EXAMPLES / "two-hosts" / "run", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "HELIO": f"{sys.executable} -m heliograph.cli"}, start_new_session=True,
    )  # fmt: skip


def test_two_hosts_exchange_messages_and_end_by_themselves(tmp_path: Path) -> None:
    child = two_hosts("--once", tmp_path / "files")
    out, _ = child.communicate(timeout=200)
    assert child.returncode == 0, out
    for line in ("problem one", "problem two", "restart"):
        assert any(shown.endswith(f"  {line}") for shown in out.splitlines()), f"{line} did not arrive: {out}"
    assert out.count("1 of 1 link up") == 2
    assert "to hub hub: has it" in out
    logs = [(tmp_path / "files" / f"{name}.log").read_text() for name in ("hub", "host1")]
    for text in (out, *logs):
        assert "Traceback" not in text
        assert "error" not in text
    assert all(re.search(r"info +ending", log) for log in logs), "both were ended in order"


def test_two_hosts_call_the_command_of_the_path_once(tmp_path: Path) -> None:
    command, calls = tmp_path / "helio", tmp_path / "calls"
    command.write_text(f'#!/bin/sh\necho "$@" >>{calls}\nexit 7\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    env.pop("HELIO", None)
    child = subprocess.Popen([EXAMPLES / "two-hosts" / "run", "--once"], env=env, start_new_session=True)
    try:
        assert child.wait(timeout=5) == 7
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert calls.read_text().splitlines() == ["keygen ca"]


@pytest.mark.timeout(150)
def test_two_hosts_end_in_order_with_ctrl_c() -> None:
    child = two_hosts()
    assert child.stdout is not None
    shown = ""
    while "look after number 2" not in shown:
        line = child.stdout.readline()
        assert line, shown
        shown += line
    os.killpg(child.pid, signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130, shown + out
    assert "Traceback" not in shown + out
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


def test_the_example_of_a_configuration_file_is_a_valid_one() -> None:
    loaded = config.load(EXAMPLES / "heliograph.yaml", env={})
    assert loaded.storage.retention_age_s == 30 * 86_400
    assert loaded.subscribers.backoff_max_ms == 30_000
