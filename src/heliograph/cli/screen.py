"""The screen of ``helio top``. Needs the extra ``heliograph[top]``; what it shows comes from admin/overview.py."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from typing import ClassVar, Final

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.coordinate import Coordinate
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from heliograph.admin.overview import ORDERS, ChannelView, View, Watching, rows
from heliograph.cli import panes
from heliograph.errors import HeliographError

WIDE: Final = 120
"""From this width on the details stand beside the table, not below it."""

DETAIL: Final = 50
"""How wide they are there."""

ROWS_MAX: Final = 1_000
"""More channels than this are not drawn; the filter finds them."""

HISTORY: Final = 120
_INTERVALS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

_HELP = """\
[b]helio top[/b]

 [b]↑ ↓ PgUp PgDn[/b]  choose a channel
 [b]/[/b]      show only channels whose name contains a text; Esc ends it
 [b]s[/b]      sort by the next column       [b]r[/b]  the other way round
 [b]1[/b]…[b]7[/b]    sort by name, rate, messages, size, lag, behind, dead letters
 [b]d[/b]      details of the chosen channel, on and off      [b]\\[ ][/b]  scroll them
 [b]x[/b]      dead-letter channels as rows of their own, on and off
 [b]p[/b]      pause                         [b]+ -[/b]  look more or less often
 [b]q[/b]      quit

 PER S    messages a second, published by all processes
 LAG      messages that the slowest reader has before it
 BEHIND   the age of the oldest of them
 LIVE     readers that somebody runs now, of all durable ones
 DEAD     dead letters that wait

Any key closes this."""


class Help(ModalScreen[None]):
    """What the keys do."""

    def compose(self) -> ComposeResult:
        """One box."""
        yield Static(_HELP, id="help")

    def on_key(self, event: Key) -> None:
        """Any key closes it, and does nothing else."""
        event.stop()
        event.prevent_default()
        if self.is_current:
            self.app.pop_screen()


class Top(App[None]):
    """Channels in a table, the chosen one in detail."""

    TITLE = "helio top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: 1; background: $primary-background; padding: 0 1; }
    #trouble { height: auto; max-height: 3; color: $text-error; padding: 0 1; display: none; }
    #body { layout: vertical; height: 1fr; }
    #channels { height: 1fr; scrollbar-size-vertical: 1; }
    #detail { scrollbar-size-vertical: 1; height: auto; max-height: 45%; border-top: solid $primary; padding: 0 1; }
    #body.wide { layout: horizontal; }
    #body.wide #channels { width: 1fr; height: 100%; }
    #body.wide #detail { width: 50; height: 100%; max-height: 100%; border-top: none; border-left: solid $primary; }
    #filter { height: 0; border: none; padding: 0 1; }
    #filter.open { height: 1; }
    Help { align: center middle; }
    #help { width: auto; max-width: 100%; height: auto; padding: 0 2; border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit", key_display="q"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("d", "detail", "details"),
        Binding("x", "dead", "dead letters"),
        Binding("p,space", "pause", "pause", key_display="p"),
        Binding("plus,equals_sign", "interval(-1)", "more often", show=False),
        Binding("minus", "interval(1)", "less often", show=False),
        Binding("right_square_bracket", "scroll_detail(4)", "further down", show=False),
        Binding("left_square_bracket", "scroll_detail(-4)", "further up", show=False),
        Binding("question_mark,h,f1", "help", "help", key_display="?"),
        Binding("escape", "unfilter", "all", show=False),
        *[Binding(str(at), f"order('{name}')", name, show=False) for at, name in enumerate(ORDERS, 1)],
    ]

    def __init__(self, watching: Watching, *, interval_s: float = 1.0, contains: str = "", sort: str = "name") -> None:
        super().__init__()
        self._watching = watching
        self._interval_s = interval_s
        self._sort = sort
        self._contains = contains
        self._reversed = False
        self._dead = False
        self._paused = False
        self._wake = asyncio.Event()
        self._view: View | None = None
        self._shown: list[ChannelView] = []
        self._drawn: tuple[object, ...] = ()
        self._history: dict[str, deque[float]] = {}
        # Kept, and not looked for: help may lie over them, and at the end they are gone before the last look is.
        self._summary = Static(id="summary")
        self._trouble = Static(id="trouble", markup=False)
        self._body = Container(id="body")
        self._table: DataTable[Text] = DataTable(id="channels", cursor_type="row", cell_padding=1)
        self._detail = VerticalScroll(id="detail", can_focus=False)
        self._about = Static(id="about")
        hint = "part of a name; Enter keeps it, Esc shows all"
        self._filter = Input(placeholder=hint, id="filter", compact=True)

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self._summary
        yield self._trouble
        with self._body:
            yield self._table
            with self._detail:
                yield self._about
        yield self._filter
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to look."""
        self.screen.set_focus(self._table)
        self._filter.value = self._contains
        self._open_filter(bool(self._contains))
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self.run_worker(self._watch())

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                view = await asyncio.to_thread(self._watching.view)
            except HeliographError as error:
                self._complain([str(error)])
            else:
                self._take(view)
            with contextlib.suppress(TimeoutError):
                self._wake.clear()
                rest_s = max(self._interval_s, clock() - began_s)  # thousands of channels take their time
                await asyncio.wait_for(self._wake.wait(), rest_s)

    def _take(self, view: View) -> None:
        for one in view.channels:
            self._history.setdefault(one.name, deque(maxlen=HISTORY)).append(one.rate or 0.0)
        for name in self._history.keys() - {one.name for one in view.channels}:
            del self._history[name]
        if not self._paused or self._view is None:
            if self._view is not None and self._view.seconds is None and self._table.cursor_row == 0:
                self._shown = []  # now that there are rates, the order is another: stay at the top of it
            self._view = view
            self._complain(view.troubles)
            self._draw()

    # -- drawing --------------------------------------------------------------------------------------------------

    def _complain(self, troubles: list[str]) -> None:
        self._trouble.update("\n".join(troubles))
        self._trouble.display = bool(troubles)

    def _draw(self) -> None:
        if self._view is None or not self.is_running:
            return
        found = rows(self._view, contains=self._contains, sort=self._sort, reverse=self._reversed, dead=self._dead)
        count = len(rows(self._view, dead=self._dead))
        self._summary.update(
            panes.summary(self._view, len(found), count, interval_s=self._interval_s, paused=self._paused)
        )
        chosen = self.chosen
        self._shown = found[:ROWS_MAX]
        self._fill(chosen.name if chosen is not None else None)
        self._describe()

    def _fill(self, chosen: str | None) -> None:
        """Put the rows into the table; in place if they are the same channels in the same order."""
        table, columns = self._table, panes.columns(self._table_width(), self._sort, reverse=self._reversed)
        names = [one.name for one in self._shown]
        cells = [panes.cells(one, columns[0].width) for one in self._shown]
        if self._drawn == (columns, names):
            for at, row in enumerate(cells):
                for place, cell in enumerate(row):
                    table.update_cell_at(Coordinate(at, place), cell)
            return
        same_columns = bool(self._drawn) and self._drawn[0] == columns
        self._drawn = (columns, names)
        at, top = table.cursor_row, table.scroll_y
        table.clear(columns=not same_columns)
        if not same_columns:
            for column in columns:
                table.add_column(column.label, width=column.width)
        table.add_rows(cells)
        at = names.index(chosen) if chosen in names else min(at, max(0, len(names) - 1))  # or the one in its place
        table.move_cursor(row=at, scroll=False)
        table.scroll_to(y=top, animate=False)

    def _table_width(self) -> int:
        return self.size.width - (DETAIL if self._wide and self._detail.display else 0)

    @property
    def _wide(self) -> bool:
        return self.size.width >= WIDE

    def _describe(self) -> None:
        one = self.chosen
        if not self._detail.display:
            return
        if one is None:
            nothing = "no channel matches" if self._contains else "no channels yet; publishing makes them"
            self._about.update(Text(nothing, style="dim"))
            return
        width = (DETAIL if self._wide else self.size.width) - 4
        settings = self._watching.settings(one.name)
        self._about.update(panes.detail(one, settings, list(self._history.get(one.name, ())), width))

    @property
    def chosen(self) -> ChannelView | None:
        """The channel under the cursor."""
        at = self._table.cursor_row
        return self._shown[at] if 0 <= at < len(self._shown) else None

    # -- what happens on the terminal -------------------------------------------------------------------------------

    @on(DataTable.RowHighlighted)
    def _moved(self) -> None:
        self._describe()

    @on(DataTable.HeaderSelected)
    def _header(self, event: DataTable.HeaderSelected) -> None:
        order = panes.ORDER_OF_COLUMN[event.column_index]
        if order == self._sort:
            self.action_reverse()
        elif order:
            self.action_order(order)

    @on(Resize)
    def _resized(self, event: Resize) -> None:
        self._body.set_class(event.size.width >= WIDE, "wide")
        self.call_after_refresh(self._draw)

    @on(Input.Changed, "#filter")
    def _filtered(self, event: Input.Changed) -> None:
        self._contains = event.value
        self._draw()

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        self._open_filter(bool(self._contains))
        self.screen.set_focus(self._table)

    def _open_filter(self, opened: bool) -> None:
        """Not by display: what is not displayed cannot have the focus before the next refresh, and loses keys."""
        self._filter.set_class(opened, "open")

    def action_filter(self) -> None:
        """Ask for a part of a name."""
        self._open_filter(True)
        self.screen.set_focus(self._filter)

    def action_unfilter(self) -> None:
        """Show all channels again."""
        self._filter.value = ""
        self._open_filter(False)
        self.screen.set_focus(self._table)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.action_order(ORDERS[(ORDERS.index(self._sort) + 1) % len(ORDERS)])

    def action_order(self, order: str) -> None:
        """Sort by this."""
        self._sort, self._reversed = order, False
        self._draw()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._reversed = not self._reversed
        self._draw()

    def action_dead(self) -> None:
        """Show dead-letter channels as rows, or do not."""
        self._dead = not self._dead
        self._draw()

    def action_detail(self) -> None:
        """Show the pane of details, or do not."""
        self._detail.display = not self._detail.display
        self.call_after_refresh(self._draw)

    def action_scroll_detail(self, lines: int) -> None:
        """Show what does not fit the pane of details."""
        self._detail.scroll_relative(y=lines, animate=False)

    def action_pause(self) -> None:
        """Hold what is shown, or go on."""
        self._paused = not self._paused
        self._draw()
        self._wake.set()

    def action_interval(self, step: int) -> None:
        """Look more or less often."""
        longer = [one for one in _INTERVALS if one > self._interval_s]
        shorter = [one for one in _INTERVALS if one < self._interval_s]
        self._interval_s = (longer[:1] or [self._interval_s])[0] if step > 0 else (shorter or [self._interval_s])[-1]
        self._draw()

    def action_help(self) -> None:
        """Explain the keys."""
        self.push_screen(Help())
