"""``helio top``: on a terminal through textual's pilot, and without one as a table or JSON."""

from __future__ import annotations

import asyncio
import builtins
import json
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

import heliograph as hg
from heliograph.admin import overview
from heliograph.admin.overview import Watching
from heliograph.cli import panes, top
from heliograph.cli.screen import Help, Top
from tests.cli.harness import Child, Helio, lines, one_line_error, wait_until

SIZES = [(80, 24), (160, 40)]
Story = Callable[[Pilot[None], Top], Awaitable[None]]


@pytest.fixture
def filled(station: hg.Station) -> hg.Station:
    station.publish_many("alerts", range(7))
    station.publish_many("sensors.kitchen.temperature", range(30))
    station.create_channel("logs", retention_age_s="7d", retention_bytes="1GiB", compress=True)
    station.subscribe("alerts", print, name="pager", start=4, paused=True).close()
    return station


@pytest.fixture
def looking(filled: hg.Station) -> Iterator[hg.Station]:
    with hg.open(filled.path, read_only=True) as opened:
        yield opened


def play(looking: hg.Station, story: Story, size: tuple[int, int] = (80, 24), **options: Any) -> None:
    """Run the screen; a story goes on when what it waits for is shown."""

    async def run() -> None:
        app = Top(Watching(looking), interval_s=0.05, **options)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: "/s" in summary(app))
            await story(pilot, app)

    asyncio.run(run())


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    for _ in range(600):
        if condition():
            return
        await pilot.pause(0.05)
    pytest.fail("it was never shown")


def summary(app: Top) -> str:
    return str(app.query_one("#summary", Static).render())


def names(app: Top) -> list[str]:
    table = app.query_one("#channels", DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


def detail(app: Top) -> str:
    console = Console(width=70, no_color=True)
    with console.capture() as captured:
        console.print(app.query_one("#about", Static).content)
    return captured.get()


# -- the screen -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_channels_numbers_and_details_are_shown(looking: hg.Station, size: tuple[int, int]) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        assert names(app)[:2] == ["alerts", "logs"]
        assert "3 channels" in summary(app)
        assert app.query_one("#body").has_class("wide") == (size[0] >= 120)
        table = app.query_one("#channels", DataTable)
        cells = [str(cell) for cell in table.get_row_at(0)]
        assert (cells[2], cells[4], cells[6], cells[7]) == ("7", "3", "0/1", "-")
        assert "pager" in detail(app)
        assert "offsets 0 to 6; keeps everything" in detail(app)
        await pilot.press("down")
        await until(pilot, lambda: "keeps at most 7d and 1GiB, compressed" in detail(app))
        assert table.virtual_size.width <= table.size.width, "nothing is cut off at the side"

    play(looking, story, size)


def test_rates_are_those_of_other_processes(looking: hg.Station, filled: hg.Station) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        table = app.query_one("#channels", DataTable)
        filled.publish_many("alerts", range(1000))
        await until(pilot, lambda: str(table.get_row_at(0)[2]) == "1,007")
        await until(pilot, lambda: "≤" in detail(app))

    play(looking, story)


def test_a_channel_that_comes_and_goes_is_shown_and_the_cursor_stays(looking: hg.Station, filled: hg.Station) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("down")
        assert app.chosen is not None
        assert app.chosen.name == "logs"
        filled.publish("aaa", 1)
        await until(pilot, lambda: names(app)[0] == "aaa")
        assert app.chosen.name == "logs"
        filled.delete_channel("logs")
        await until(pilot, lambda: "logs" not in names(app))
        assert app.chosen is not None

    play(looking, story)


def test_sorting_by_keys(looking: hg.Station) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("3")
        assert names(app)[0].startswith("sensors")
        await pilot.press("r")
        assert names(app)[0] == "logs"
        await pilot.press("5")
        assert names(app)[0] == "alerts"
        await pilot.press("1", "r")
        assert names(app)[-1] == "alerts"
        for _ in panes.ORDER_OF_COLUMN:
            await pilot.press("s")
        assert len(names(app)) == 3

    play(looking, story)


def test_a_click_on_a_heading_sorts(looking: hg.Station) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        await pilot.click("#channels", offset=(36, 0))
        await until(pilot, lambda: names(app)[0].startswith("sensors"))
        await pilot.click("#channels", offset=(36, 0))
        await until(pilot, lambda: names(app)[0] == "logs")

    play(looking, story)


def test_the_filter_takes_text_and_gives_all_back(looking: hg.Station) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("slash", *"kit")
        await until(pilot, lambda: len(names(app)) == 1)
        assert "1 of 3 channels" in summary(app)
        await pilot.press("enter", "down")
        assert app.query_one("#filter", Input).value == "kit"
        await pilot.press("slash", *"zz", "enter")
        await until(pilot, lambda: names(app) == [])
        assert "no channel matches" in detail(app)
        await pilot.press("escape")
        await until(pilot, lambda: len(names(app)) == 3)

    play(looking, story)


def test_it_may_begin_filtered_and_sorted(looking: hg.Station) -> None:
    async def story(_: Pilot[None], app: Top) -> None:
        assert names(app) == ["sensors.ki…temperature", "alerts"]

    play(looking, story, contains="e", sort="messages")


def test_pause_holds_the_picture_and_resume_goes_on(looking: hg.Station, filled: hg.Station) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("p")
        assert "PAUSED" in summary(app)
        filled.publish_many("alerts", range(100))
        await pilot.pause(0.5)
        table = app.query_one("#channels", DataTable)
        assert str(table.get_row_at(0)[2]) == "7"
        await pilot.press("space")
        await until(pilot, lambda: str(table.get_row_at(0)[2]) == "107")
        assert "PAUSED" not in summary(app)

    play(looking, story)


def test_help_and_any_key_closes_it_and_does_nothing_else(looking: hg.Station) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        await pilot.pause(0.3)  # looks go on below
        await pilot.press("p", "escape")
        assert not isinstance(app.screen, Help)
        assert "PAUSED" not in summary(app)

    play(looking, story)


def test_details_and_dead_letters_on_and_off(looking: hg.Station, filled: hg.Station) -> None:
    filled.publisher.publish_own("alerts.dead-letter", "heliograph.dead-letter.v1", {}, None)

    async def story(pilot: Pilot[None], app: Top) -> None:
        assert "alerts.dead-letter" not in names(app)
        assert "1 dead letter" in detail(app)
        assert "dead 1" in summary(app)
        await pilot.press("x")
        await until(pilot, lambda: len(names(app)) == 4)
        await pilot.press("d")
        assert not app.query_one("#detail").display
        await pilot.press("d")
        assert app.query_one("#detail").display

    play(looking, story)


def test_several_partitions_have_a_table_that_scrolls(looking: hg.Station, monkeypatch: pytest.MonkeyPatch) -> None:
    real = overview.look

    def many(station: hg.Station) -> overview.Look:
        found = real(station)
        (one,) = found.channels["alerts"]
        found.channels["alerts"] = [msgspec.structs.replace(one, partition=number) for number in range(64)]
        return found

    monkeypatch.setattr(overview, "look", many)

    async def story(pilot: Pilot[None], app: Top) -> None:
        assert "64 partitions; keeps everything" in detail(app)
        assert len(re.findall(r"^\d+ +\d", detail(app), re.MULTILINE)) == 64
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: app.query_one("#detail").scroll_y > 0)
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: app.query_one("#detail").scroll_y == 0)

    play(looking, story)


def test_how_often_it_looks(looking: hg.Station) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("minus")
        await until(pilot, lambda: "every 0.25 s" in summary(app))
        await pilot.press("minus", "minus", "plus")
        await until(pilot, lambda: "every 0.5 s" in summary(app))

    play(looking, story)


def test_trouble_is_shown_and_it_goes_on(looking: hg.Station, filled: hg.Station) -> None:
    (filled.path / "subscriptions" / "alerts" / "pager" / "0.json").write_bytes(b"{")

    async def story(_: Pilot[None], app: Top) -> None:
        trouble = app.query_one("#trouble", Static)
        assert trouble.display
        assert "pager" in str(trouble.render())
        assert len(names(app)) == 3

    play(looking, story)


def test_an_empty_station(station: hg.Station) -> None:
    async def story(_: Pilot[None], app: Top) -> None:
        assert "no channels yet" in detail(app)

    play(station, story)


def test_it_can_be_made_larger_and_smaller(looking: hg.Station) -> None:
    async def story(pilot: Pilot[None], app: Top) -> None:
        for width, wide in ((160, True), (80, False), (40, False), (121, True)):
            await pilot.resize_terminal(width, 24)
            await until(pilot, lambda wide=wide: app.query_one("#body").has_class("wide") == wide)
            await pilot.pause()
            assert len(names(app)) == 3

    play(looking, story)


# -- its words ------------------------------------------------------------------------------------------------


def test_no_cell_is_wider_than_its_column(looking: hg.Station) -> None:
    view = Watching(looking).view()
    for width in (60, 80, 100, 200):
        columns = panes.columns(width, "name", reverse=False)
        for one in view.channels:
            for column, cell in zip(columns, panes.cells(one, columns[0].width), strict=True):
                assert len(cell.plain) <= column.width


@pytest.mark.parametrize(
    "count", [0, 7, 0.123, 9.96, 999, 99_999, 100_000, 999_999, 10**6, 10**9 - 1, 10**12, 5 * 10**13]
)
def test_a_number_has_room_for_six_characters(count: float) -> None:
    assert len(panes.number(count)) <= 6
    assert len(panes.short_size(int(count))) <= 6


# -- without a terminal ---------------------------------------------------------------------------------------


def test_once_prints_one_table(helio: Helio, filled: hg.Station) -> None:
    result = helio("top", "--once", "--interval", "0.1", "--sort", "messages")
    heading, columns, *found = result.stdout.splitlines()
    assert result.exit_code == 0
    assert heading.startswith("station host1 in ")
    assert columns.split()[0] == "CHANNEL"
    assert [line.split()[0] for line in found] == ["sensors.kitchen.temperature", "alerts", "logs"]
    assert filled.path.exists()


def test_json_prints_lines_with_rates(helio: Helio, filled: hg.Station) -> None:
    found = lines(helio("top", "--json", "--count", "2", "--interval", "0.1", "--filter", "a"))
    assert len(found) == 2
    assert [channel["name"] for channel in found[0]["channels"]] == ["alerts", "sensors.kitchen.temperature"]
    assert [channel["rate"] for channel in found[0]["channels"]] == [0.0, 0.0]
    assert found[0]["channels"][0]["readers"][0]["name"] == "pager"
    assert len(lines(helio("top", "--json", "--once", "--interval", "0.1"))) == 1


def test_json_goes_on_until_it_is_ended(filled: hg.Station, spawn: type[Child]) -> None:
    child = spawn("top", "--json", "--interval", "0.1")
    for n in range(3):
        filled.publish("alerts", n)
        assert json.loads(child.stdout.readline())["station"] == "host1"
    child.signal(signal.SIGTERM)
    code, _, err = child.end()
    assert (code, err) == (0, "")


def test_without_a_terminal_it_says_what_to_do(helio: Helio, filled: hg.Station) -> None:
    assert "--once" in one_line_error(helio("top"), 2)
    assert "--count goes with --json" in one_line_error(helio("top", "--once", "--count", "3"), 2)


def test_without_textual_it_says_what_to_install(
    helio: Helio, filled: hg.Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("textual"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(top, "_is_terminal", lambda: True)
    monkeypatch.delitem(sys.modules, "heliograph.cli.screen")
    monkeypatch.setattr(builtins, "__import__", missing)
    assert "pip install 'heliograph[top]'" in one_line_error(helio("top"), 1)


def test_on_a_real_terminal_it_draws_and_ends(filled: hg.Station, tmp_path: Path) -> None:
    """The whole way, through a pseudo terminal: drawn, ended with q, the terminal left as it was."""
    import os
    import pty

    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="24")
        os.execv(sys.executable, [sys.executable, "-m", "heliograph.cli", "-d", str(filled.path), "top"])
    drawn = b""

    def read() -> bytes:
        nonlocal drawn
        try:
            drawn += os.read(fd, 65536)
        except OSError:
            drawn += b"(closed)"
        return drawn

    wait_until(lambda: b"sensors" in read())
    os.write(fd, b"q")
    wait_until(lambda: b"\x1b[?1049l" in read() or drawn.endswith(b"(closed)"))
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"\x1b[?1049l" in drawn, "the other screen is shown again"
    assert b"Traceback" not in drawn
