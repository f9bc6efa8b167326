"""``helio`` in a process of its own, and what tests ask of its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from heliograph.cli.main import cli

Helio = Callable[..., Result]


class Child:
    """``helio`` as a process of its own."""

    def __init__(self, data: Path, *args: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "heliograph.cli", "-d", str(data), *args]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None and self.process.stderr is not None
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, stdin: str | None = None) -> tuple[int, str, str]:
        """Exit code, what is left of stdout, and of stderr."""
        if stdin is not None:
            out, err = self.process.communicate(stdin, timeout=60)
        else:  # communicate() would pass over what readline() has buffered already
            out, err = self.stdout.read(), self.stderr.read()
        return self.process.wait(60), out, err


def lines(result: Result) -> list[Any]:
    """Each line of the output, as JSON."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def one_line_error(result: Result, code: int) -> str:
    """The error of a command that failed as it should."""
    assert result.exit_code == code, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert "Traceback" not in result.output
    return errors[0]


def error_without(module: str, *args: object, code: int = 1) -> str:
    """The one line that a command prints on a machine where a library is missing.

    In a process of its own: taking modules out of this one would leave other tests with halves of them.
    """
    program = f"import sys; sys.modules[{module!r}] = None; from heliograph.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return error


def helio_in(empty: Path, monkeypatch: pytest.MonkeyPatch) -> Helio:
    """Run a command line without --data, in an empty directory that has to stay empty."""
    empty.mkdir()
    monkeypatch.chdir(empty)

    def run(*args: object, input: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(cli, [*map(str, args)], input=input)
        assert list(empty.iterdir()) == [], "nothing is made here"
        return result

    return run
