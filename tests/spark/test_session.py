"""A session, or one line that says what is missing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heliograph.errors import ConfigError
from heliograph.spark import session
from heliograph.spark.session import find_java

module = importlib.import_module("heliograph.spark.session")


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

    monkeypatch.setattr(module, "_builder", Builder)
    monkeypatch.setattr(module, "find_java", lambda: "java")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert masters() == ["local[*]"]
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert masters() == []
    assert masters(master="yarn") == ["yarn"]


def test_processes_on_this_machine_do_not_import_from_zips(spark: Any, tmp_path: Path) -> None:
    """Compiling pyspark anew takes each of them most of a second."""

    def where(batches: Any) -> Any:
        import pyarrow as pa
        import pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(where, "file STRING").collect()
    assert Path(row["file"]).exists(), "not inside of a zip"
    (tmp_path / "x").mkdir()
    path = f"/spark/python/lib/pyspark.zip:{tmp_path}/with space:/spark/python/lib/py4j-0.10.9.9-src.zip:{tmp_path}/?"
    command = [
        str(Path(module.__file__ or "").with_name("python.sh")),
        "-c",
        "import os; print(os.environ['PYTHONPATH'])",
    ]
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_REAL_PYTHON": sys.executable}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert told.strip() == f"{tmp_path}/with space:{tmp_path}/?"


def test_a_spark_that_was_only_unpacked_is_imported_from_its_zips() -> None:
    """As findspark does it, or PYTHONPATH: the Python that runs has no other."""
    code = """if True:
        import glob, importlib.util, os, sys
        (home,) = importlib.util.find_spec("pyspark").submodule_search_locations
        sys.path[:0] = glob.glob(os.path.join(home, "python", "lib", "py4j-*-src.zip"))
        with importlib.import_module("heliograph.spark.session")._with_python(here=True):
            print(os.environ["PYSPARK_PYTHON"])
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == sys.executable


def test_the_python_that_somebody_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./env/bin/python")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    for here, chosen in ((True, "python.sh"), (False, Path(sys.executable).name)):
        with module._with_python(here=here):
            assert os.environ["PYSPARK_PYTHON"] == "./env/bin/python"
            assert Path(os.environ["PYSPARK_DRIVER_PYTHON"]).name == chosen
        assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable, "the next session may be for other machines"
        monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
