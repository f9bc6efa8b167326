"""A session, or one line that says what is missing."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from heliograph.errors import ConfigError
from heliograph.spark import session
from heliograph.spark.session import find_java


def java(folder: Path, version: str) -> str:
    folder.mkdir(parents=True)
    file = folder / "java"
    file.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    file.chmod(0o755)
    return str(file)


def test_the_java_of_the_path_or_of_java_home_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    there = java(tmp_path / "path", "17.0.15")
    assert find_java() == there
    newer = java(tmp_path / "home" / "bin", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == newer


def test_what_is_missing_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match="needs Java 17 or newer, and none was found: install one"):
        find_java()
    old = java(tmp_path / "old", "1.8.0_452")
    monkeypatch.setenv("PATH", str(tmp_path / "old"))
    with pytest.raises(ConfigError, match=f"{old} is older"):
        find_java()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pyarrow is missing\): pip install 'heliograph\[spark\]'"):
        session()


def test_the_master_is_what_spark_submit_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder:
        def __init__(self) -> None:
            self.masters: list[str] = []

        def master(self, url: str) -> Builder:
            self.masters.append(url)
            return self

        def appName(self, _: str) -> Builder:
            return self

        def config(self, *_: str) -> Builder:
            return self

        def getOrCreate(self) -> list[str]:
            return self.masters

    def masters(**how: str) -> object:
        return session(**how)

    module = importlib.import_module("heliograph.spark.session")
    monkeypatch.setattr(module, "_builder", Builder)
    monkeypatch.setattr(module, "find_java", lambda: "java")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert masters() == ["local[*]"]
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert masters() == []
    assert masters(master="yarn") == ["yarn"]
