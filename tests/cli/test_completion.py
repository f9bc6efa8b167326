from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import heliograph as hg
from heliograph.cli.main import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_the_shell_accepts(shell: str, tmp_path: Path) -> None:
    script = CliRunner().invoke(cli, ["completion", shell]).stdout
    assert "_HELIO_COMPLETE" in script
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([shell, "-n", str(file)], check=True)


def complete(*words: str) -> list[str]:
    env = {"_HELIO_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["helio", *words]), "COMP_CWORD": str(len(words))}
    command = [sys.executable, "-m", "heliograph.cli"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def test_commands_options_and_channels_are_completed(data: Path) -> None:
    with hg.open(data) as station:
        station.publish("alerts", 1)
        station.publish("answers", 1)
    assert complete("chan") == ["channels"]
    assert "--follow" in complete("read", "--fo")
    assert complete("-d", str(data), "read", "al") == ["alerts"]
    assert complete("-d", str(data / "nowhere"), "read", "al") == []
