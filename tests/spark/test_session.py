"""A session, or one line that says what is missing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from heliograph.errors import ConfigError
from heliograph.spark import session
from heliograph.spark.session import find_java

module = importlib.import_module("heliograph.spark.session")


class Builder:
    """Notes what a session would be made of."""

    def __init__(self) -> None:
        self.masters: list[str] = []
        self.settings: dict[str, str] = {}

    def master(self, url: str) -> Builder:
        self.masters.append(url)
        return self

    def appName(self, _: str) -> Builder:
        return self

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> None:
        return None


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Builder:
    """What sessions are made of from now on, instead of sessions."""
    builder = Builder()
    monkeypatch.setattr(module, "_builder", lambda: builder)
    monkeypatch.setattr(module, "find_java", lambda: "java")
    return builder


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


def test_a_java_of_tomorrow_and_one_that_tells_of_its_options_are_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name, said in {
        "early": 'openjdk version "26-ea" 2026-03-17',
        "options": 'Picked up JAVA_TOOL_OPTIONS: -XX:OnError="kill %p"\nopenjdk version "17.0.15" 2025-04-15',
        "plain": 'java version "21" 2023-09-19',
    }.items():
        file = java(tmp_path / name, "17")
        Path(file).write_text(f"#!/bin/sh\ncat >&2 << END\n{said}\nEND\n")
        monkeypatch.setenv("PATH", f"{Path(file).parent}:/usr/bin:/bin")
        assert find_java() == file
    monkeypatch.setenv("PATH", f"{Path(java(tmp_path / 'old', '1.8.0_412')).parent}:/usr/bin:/bin")
    with pytest.raises(ConfigError, match="is older"):
        find_java()


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


def test_the_master_is_what_spark_submit_was_told(made: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    def masters(**how: str) -> list[str]:
        made.masters.clear()
        session(**how)
        return made.masters

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


def test_java_and_python_talk_over_sockets_that_nobody_else_can_reach(spark: Any) -> None:
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.python.unix.domain.socket.enabled") == "true"
    folder = Path(settings.get("spark.python.unix.domain.socket.dir"))
    spark.range(2).mapInArrow(lambda batches: batches, "id BIGINT").collect()
    assert any(file.is_socket() for file in folder.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700


def test_sockets_on_this_machine_are_not_the_way_of_a_later_session_on_a_cluster(spark: Any) -> None:
    """One Java serves all sessions of a process, and keeps what it was started with."""
    from pyspark import SparkConf

    assert spark.sparkContext.getConf().get("spark.python.unix.domain.socket.enabled") == "true"
    assert not [name for name, _ in SparkConf().getAll() if "socket" in name]


def test_a_folder_of_sockets_that_somebody_tidied_up_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        module._socket_folder.cache_clear()
        try:
            folder = Path(module._sockets()["spark.python.unix.domain.socket.dir"])
            folder.rmdir()
            assert Path(module._sockets()["spark.python.unix.domain.socket.dir"]).is_dir()
        finally:
            module._socket_folder.cache_clear()


SOCKETS = """
import importlib, os, sys
module = importlib.import_module("heliograph.spark.session")
print(module._sockets().get("spark.python.unix.domain.socket.dir", ""))
if os.fork() == 0:
    sys.exit()
os.wait()
print(*os.listdir(os.environ["TMPDIR"]))
"""


@pytest.mark.parametrize("long", [False, True])
def test_the_folder_of_the_sockets_is_gone_at_the_end_and_none_is_made_where_its_path_is_too_long(long: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, *["x" * 40] * long)
        folder.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(folder)}
        run = subprocess.run(
            [sys.executable, "-c", SOCKETS], env=environment, capture_output=True, text=True, check=True
        )
        where, there = run.stdout.split("\n")[:2]
        assert Path(where).name == there, "as long as its process lives, whatever was forked meanwhile"
        assert bool(there) is not long
        assert not list(folder.iterdir())


def test_a_setting_that_nobody_would_read_is_refused(made: Builder) -> None:
    with pytest.raises(
        ConfigError, match="no setting 'spark_driver_memory': with '__' for each dot it may be spark__dr"
    ):
        session(spark_driver_memory="4g")


def test_whoever_chooses_how_java_and_python_talk_has_the_choice(made: Builder) -> None:
    session(spark__python__unix__domain__socket__enabled="false")
    assert made.settings["spark.python.unix.domain.socket.enabled"] == "false"
    made.settings.clear()
    session(spark__python__unix__domain__socket__dir="/run/mine")
    assert made.settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert made.settings["spark.python.unix.domain.socket.dir"] == "/run/mine"
    made.settings.clear()
    session(master="spark://elsewhere:7077")
    assert not [name for name in made.settings if "socket" in name], "its directories are the cluster's"


UNSTOPPED = """
from heliograph.spark import session
spark = session("unstopped", spark__driver__memory="512m")
print(spark.range(2).mapInArrow(lambda batches: batches, "id BIGINT").count())
"""


@pytest.mark.timeout(300)
def test_a_spark_that_nobody_stops_ends_without_a_word(java: str) -> None:
    """Its Python processes would write of broken pipes, sometimes, and leave their sockets behind."""
    with tempfile.TemporaryDirectory() as place:
        run = subprocess.run(
            [sys.executable, "-c", UNSTOPPED], env={**os.environ, "TMPDIR": place}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert run.stdout == "2\n"
        assert "Traceback" not in run.stderr
        assert not list(Path(place).glob("heliograph-*"))
