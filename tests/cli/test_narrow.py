"""Tables on a terminal that is narrower than they are."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from heliograph.cli.output import rich_table

NAME = "plant.north.sensors.kitchen.temperature.celsius.mean"


def drawn(columns: list[str], rows: list[list[object]], width: int) -> list[str]:
    terminal = Console(file=StringIO(), width=width, highlight=False)
    terminal.print(rich_table(columns, rows, width))
    assert isinstance(terminal.file, StringIO)
    return terminal.file.getvalue().splitlines()


def test_a_long_name_wraps_and_the_numbers_beside_it_are_whole() -> None:
    columns = ["CHANNEL", ">PARTITIONS", ">MESSAGES", ">FIRST", ">NEXT", ">SIZE", ">SEGMENTS", "STATE"]
    lines = drawn(columns, [[NAME, 1, 12_345, 0, 12_345, "515 B", 1, "fenced"]], 80)
    assert lines[0].split() == [column.lstrip(">") for column in columns]
    assert lines[1].split()[1:] == ["1", "12,345", "0", "12,345", "515", "B", "1", "fenced"]
    assert "".join(line.split()[0] for line in lines[1:]) == NAME
    assert all(len(line) <= 80 for line in lines)


def test_nothing_wraps_that_fits() -> None:
    lines = drawn(["CHANNEL", ">MESSAGES", "~WHY"], [[NAME, 1, "as it is"]], 80)
    assert [line.rstrip() for line in lines[1:]] == [f"{NAME}         1  as it is"]
