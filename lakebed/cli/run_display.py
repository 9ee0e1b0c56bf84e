"""What ``lakebed run`` shows: on a terminal a live panel alone, elsewhere a line a minute, and a closing summary.

Warnings would tear the panel: it shows the last one, and they are printed when it closes. A log on the terminal, if it is asked
for, takes the panel's place. With ``--log-format json`` all of it is log lines, so that a program can read it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lakebed.cli import logs
from lakebed.cli.logs import shown
from lakebed.cli.output import print_first_columns
from lakebed.cli.views import bytes_text
from lakebed.errors import LakebedError
from lakebed.ingest.database_batch import TableStanding
from lakebed.monitoring.event_log import Value, log_fields
from lakebed.monitoring.progress import Ages
from lakebed.monitoring.table_state import TableState
from lakebed.pipeline.database.work import DatabaseState
from lakebed.pipeline.run import Look, Outcome
from lakebed.pipeline.settings import AnyPipeline
from lakebed.quoting import quote
from lakebed.storage.roots import parse_root

# -- What ``lakebed run`` shows of a database ------------------------------------------------------------------------------


_TABLES_MAX = 12  # how many fit on a terminal beside the rest; those in trouble come first, then the busiest
_NAMES_MAX = 5
_ERROR_CHARACTERS = 100


def _tables_counted(state: DatabaseState) -> str:
    """How many tables there are, and how many of them do not just live."""
    others = [f"{count:,} {name}" for name in ("parked", "waiting", "new") if (count := state.count(name))]
    return ", ".join([_tables(len(state.tables)), *others])


def _parts_of_database(state: DatabaseState) -> list[str]:
    """A database in a line: its parts."""
    unread = [f"{state.unread:,} records unread"] if state.unread is not None else []
    return [
        _tables_counted(state),
        *unread,
        *(f"{one.name} {one.state}: {_short(one.error)}" for one in _in_trouble(state)[:3]),
    ]


def _in_trouble(state: DatabaseState) -> list[TableStanding]:
    """The tables that wait or are parked, the parked ones first."""
    return sorted((one for one in state.tables if one.error), key=lambda one: (one.state, one.name))


def _busiest(state: DatabaseState) -> Sequence[TableStanding]:
    """The tables to show."""
    troubled = _in_trouble(state)[: _TABLES_MAX // 2]
    others = [one for one in state.tables if one not in troubled]
    others.sort(key=lambda one: (-state.rates.get(one.name, 0.0), -one.unread, one.name))
    return [*troubled, *others[: _TABLES_MAX - len(troubled)]]


def rows(state: DatabaseState) -> Iterator[tuple[str, str | Table]]:
    """What a panel says of a database."""
    yield "tables", _tables_counted(state)
    yield "unread", "-" if state.unread is None else f"{state.unread:,} records at the source"
    if not state.tables:
        return
    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="ellipsis")
    for one in _busiest(state):
        style = {"parked": "red", "waiting": "yellow"}.get(one.state, "")
        rate = f"{state.rates.get(one.name, 0.0):,.0f}/s"
        grid.add_row(shown(one.name), Text(one.state, style), rate, Text(_short(one.error), style))
    if more := len(state.tables) - _TABLES_MAX:
        grid.add_row(f"and {more:,} more" if more > 0 else "")
    yield "", grid


def news_of_database(before: DatabaseState | None, now: DatabaseState) -> Iterator[str]:
    """What changed of the tables since the last look, a line for each way in which some have."""
    earlier = {one.name: one.state for one in before.tables} if before else {}
    made = [one.name for one in now.tables if one.state == "live" and earlier.get(one.name, "new") == "new"]
    if made:
        more = f" and {len(made) - _NAMES_MAX:,} more" if len(made) > _NAMES_MAX else ""
        yield f"{_tables(len(made), 'new ')}: {', '.join(made[:_NAMES_MAX])}{more}" if before else _tables(len(made))
    for one in now.tables:
        if one.state == "parked" and earlier.get(one.name) != "parked":
            yield f"{one.name} is parked: {one.error}"
    found = [one for one in now.tables if one.state == "waiting" and earlier.get(one.name) != "waiting"]
    if found:
        yield f"{_named(found, 'is', 'are')} waiting: {found[0].error}"
    found = [one for one in now.tables if one.state == "live" and earlier.get(one.name) in ("parked", "waiting")]
    if found:
        yield _named(found, "goes on", "go on")


def _named(tables: Sequence[TableStanding], one: str, many: str) -> str:
    names = ", ".join(each.name for each in tables[:_NAMES_MAX])
    more = f" and {len(tables) - _NAMES_MAX:,} more" if len(tables) > _NAMES_MAX else ""
    return f"{names}{more} {one if len(tables) == 1 else many}"


def example(state: DatabaseState) -> str | None:
    """The path of a table, the busiest."""
    live = [one for one in state.tables if one.state == "live"]
    return max(live, key=lambda one: state.rates.get(one.name, 0.0)).root if live else None


def _tables(count: int, what: str = "") -> str:
    return f"{count:,} {what}table{'s' if count != 1 else ''}"


def _short(error: str) -> str:
    text = shown(error)
    return text if len(text) <= _ERROR_CHARACTERS else f"{text[: _ERROR_CHARACTERS - 1]}…"


# -- What ``lakebed run`` shows --------------------------------------------------------------------------------------------


LINE_SECONDS = 60.0
_NEWS_SECONDS = 10.0
_STARTING = ("starting Java", "fetching jars", "starting Spark", "first batch")
_SAMPLE_ROWS = 5
_ALL_TABLES = ", over all tables"
"""What a figure of a database is of. On the page each table has its own."""


class LiveDisplay:
    """A panel that is redrawn as the run goes on."""

    def __init__(self, pipeline: AnyPipeline, console: Console) -> None:
        self._pipeline = pipeline
        self._live = Live(console=console, refresh_per_second=4, transient=True, redirect_stderr=sys.stderr.isatty())
        self._around = ExitStack()
        self._warnings: Sequence[str] = ()

    def __enter__(self) -> LiveDisplay:
        if sys.stderr.isatty():
            self._warnings = self._around.enter_context(logs.held_back())
        self._around.enter_context(self._live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._around.close()

    def __call__(self, look: Look) -> None:
        warnings = list(self._warnings)
        self._live.update(panel(look, self._pipeline, warnings[-1] if warnings else None))


class PlainDisplay:
    """A line when the phase changes, with the first rows, and then every minute.

    ``logged``: the table, if the lines go to the log instead.
    """

    def __init__(self, logged: str | None = None) -> None:
        self._logged = logged
        self._phase: str | None = None
        self._at = 0.0
        self._has_rows = False
        self._database: DatabaseState | None = None
        self._news_at = float("-inf")

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def _news(self, state: DatabaseState) -> list[str]:
        """What is told of the tables: only after ``_NEWS_SECONDS`` again, since many may fail and go on one after the other."""
        now = time.monotonic()
        if self._logged is not None or now - self._news_at < _NEWS_SECONDS:
            return []
        news = list(news_of_database(self._database, state))
        self._database = state
        if news:
            self._news_at = now
        return news

    def __call__(self, look: Look) -> None:
        if isinstance(look.state, DatabaseState) and (news := self._news(look.state)):
            for text in news:
                print(time.strftime("%H:%M:%S"), shown(text), flush=True)
        changed = look.phase != self._phase
        due = (look.figures.rows and not self._has_rows) or time.monotonic() - self._at >= LINE_SECONDS
        if not changed and (look.phase in _STARTING or not due):
            return
        self._has_rows = self._has_rows or (not changed and look.figures.rows > 0)
        self._phase, self._at = look.phase, time.monotonic()
        if self._logged is not None:
            log_fields(logging.INFO, "progress", {"table": self._logged, **_progress(look)})
            return
        text = look.phase if changed else line(look)
        if changed and look.phase == "running":
            places = (("page", look.page_url), ("metrics", look.metrics_url))
            text = "; ".join(["running", *(f"{name} at {url}" for name, url in places if url)])
        if changed and look.phase == "trying again" and look.figures.last_error:
            text = f"trying again: {look.figures.last_error}"
        print(time.strftime("%H:%M:%S"), shown(text), flush=True)


def display(pipeline: AnyPipeline, log_format: str) -> LiveDisplay | PlainDisplay:
    """The display that suits stdout and the format of the log."""
    console = Console(file=sys.stdout)
    if console.is_terminal and (log_format == "off" or not sys.stderr.isatty()):
        return LiveDisplay(pipeline, console)
    return PlainDisplay(str(parse_root(pipeline.path)) if log_format == "json" else None)


def line(look: Look) -> str:
    """A run in one line."""
    figures, state = look.figures, look.state
    parts = [
        f"{figures.rows:,} rows in ({figures.rows_per_second:,.0f}/s)",
        f"committed after {_seconds(figures.committed.recent)}, visible after {_seconds(figures.visible.recent)}"
        + (_ALL_TABLES if isinstance(state, DatabaseState) else ""),
    ]
    if isinstance(state, DatabaseState):
        parts += _parts_of_database(state)
    elif state:
        parts += [f"version {state.version}", f"tail {state.tail_parts} parts {state.tail_rows:,} rows", _levels(state)]
    parts.append(f"write amplification {_ratio(figures.write_amplification)}")
    if figures.last_error:
        parts.append(f"last error: {figures.last_error}")
    return " · ".join(parts)


def panel(look: Look, pipeline: AnyPipeline, warning: str | None = None) -> Panel:
    """A run as a panel; ``warning``: the last one."""
    figures, state = look.figures, look.state
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("rows in", f"{figures.rows:,}   {figures.rows_per_second:,.0f}/s   in {figures.batches:,} batches")
    whose = _ALL_TABLES if isinstance(state, DatabaseState) else ""
    grid.add_row("committed", _ages(figures.committed, whose))
    grid.add_row("visible", _ages(figures.visible, whose))
    if isinstance(state, DatabaseState):
        for name, found in rows(state):
            grid.add_row(name, found)
    elif state:
        grid.add_row("version", f"{state.version:,}")
        grid.add_row("tail", f"{state.tail_parts:,} parts   {state.tail_rows:,} rows not yet settled")
        grid.add_row("base", f"{state.rows:,} rows   {state.dead_rows:,} dead   {bytes_text(state.bytes)}")
        grid.add_row("parts", _levels(state))
    grid.add_row("write amplification", _ratio(figures.write_amplification))
    aside = [f"{count:,} {what}" for count, what in _aside(figures.quarantined, figures.lost, figures.replayed)]
    if aside:
        grid.add_row("quarantined", "   ".join(aside))
    grid.add_row("page", look.page_url or "off")
    grid.add_row("last error", Text(shown(figures.last_error), style="red") if figures.last_error else "none")
    if warning:
        grid.add_row("last warning", Text(shown(warning), style="yellow"))
    ran = f"{look.phase}, {figures.seconds:,.0f} s since it began"
    foot = Text(f"{ran}   metrics {look.metrics_url or 'off'}   Ctrl-C stops", style="dim")
    # As wide as the terminal: figures that grow do not move its edge.
    return Panel(Group(grid, foot), title=Text(shown(f"lakebed   {pipeline.path}")), box=box.ROUNDED)


def summary(outcome: Outcome, pipeline: AnyPipeline) -> None:
    """What a run did, a few rows, and where to look next."""
    figures, state = outcome.figures, outcome.state
    whose = _ALL_TABLES if isinstance(state, DatabaseState) else ""
    rows = [
        ("rows in", f"{figures.rows:,} in {figures.batches:,} batches, {figures.rows_per_second_overall:,.0f}/s"),
        (
            "committed",
            f"p50 {_seconds(figures.committed.p50)}, p99 {_seconds(figures.committed.p99)} after the event{whose}",
        ),
        ("visible", f"p50 {_seconds(figures.visible.p50)}, p99 {_seconds(figures.visible.p99)} after the event{whose}"),
        ("write amplification", _ratio(figures.write_amplification)),
    ]
    if isinstance(state, DatabaseState):
        rows.insert(1, ("tables", _tables_counted(state)))
        rows += [(one.state, f"{one.name}: {one.error}") for one in _in_trouble(state)]
    else:
        fresh = f" settled rows and {state.tail_rows:,} changes" if state.tail_rows else " rows"
        rows.insert(1, ("table", f"{state.rows:,}{fresh} at version {state.version:,}"))
        tail = f"tail {state.tail_parts} parts, {state.tail_rows:,} rows"
        rows.insert(4, ("parts", f"{_levels(state)}; {tail}; {bytes_text(state.bytes)}"))
    aside = [f"{count:,} {what}" for count, what in _aside(figures.quarantined, figures.lost, figures.replayed)]
    if aside:
        rows.append(("quarantined", ", ".join(aside)))
    if figures.last_error:  # else it was well in the end
        rows.append(("last error", figures.last_error))
    path = shown(pipeline.path)
    print(f"\nlakebed ran for {figures.seconds:,.1f} s: {path}")
    for name, text in rows:
        print(f"  {name:<20}{shown(text)}")
    if outcome.table is None:
        print(f"\nnext:  lakebed status {path}     lakebed serve page {path}")
        if isinstance(state, DatabaseState) and (root := example(state)):
            table = root.rsplit("/", 1)[-1]
            print(f"       lakebed query {shown(root)} 'select count(*) from \"{shown(table)}\"'", flush=True)
        return
    name = outcome.table.path.rstrip("/").rsplit("/", 1)[-1]
    try:
        sample = outcome.table.query(f"select * from {quote(name)} limit {_SAMPLE_ROWS}", name)
    except LakebedError as error:
        print(f"\nno rows can be shown: {shown(str(error))}")
    else:
        print(f"\n{len(sample)} of its rows, read through the view:\n")
        print_first_columns(sample, sys.stdout)
    name = shown(name)
    print(f"\nnext:  lakebed query {path} 'select count(*) from \"{name}\"'")
    print(f"       lakebed show parts {path}     lakebed show commits {path}", flush=True)


def log_summary(outcome: Outcome) -> None:
    """What a run did, as a log line."""
    figures = outcome.figures
    state = outcome.state
    fields: dict[str, Value] = {"table": outcome.table.path} if outcome.table else {}
    fields |= _counted(state) if isinstance(state, DatabaseState) else {"version": state.version}
    fields |= {"seconds": round(figures.seconds, 3), "rows": figures.rows, "batches": figures.batches}
    fields |= {"quarantined": figures.quarantined, "lost": figures.lost, "replayed": figures.replayed}
    log_fields(logging.INFO, "run_ended", fields)


def _progress(look: Look) -> dict[str, Value]:
    figures, state = look.figures, look.state
    fields: dict[str, Value | None] = {
        "phase": look.phase,
        "metrics_url": look.metrics_url,
        "page_url": look.page_url,
        "rows": figures.rows,
        "rows_per_second": round(figures.rows_per_second, 1),
        "committed_after_seconds": figures.committed.recent,
        "visible_after_seconds": figures.visible.recent,
        "write_amplification": figures.write_amplification,
        "last_error": figures.last_error,
    }
    if isinstance(state, DatabaseState):
        fields |= _counted(state)
    elif state:
        fields |= {"version": state.version, "tail_parts": state.tail_parts, "tail_rows": state.tail_rows}
    return {
        name: round(each, 3) if isinstance(each, float) else each for name, each in fields.items() if each is not None
    }


def _counted(state: DatabaseState) -> dict[str, Value]:
    return {"tables": len(state.tables), "parked": state.count("parked"), "waiting": state.count("waiting")}


def _aside(quarantined: int, lost: int, replayed: int) -> list[tuple[int, str]]:
    counts = [
        (quarantined, "records in quarantine"),
        (lost, "records lost at the source"),
        (replayed, "batches replayed"),
    ]
    return [(count, what) for count, what in counts if count]


def _ages(ages: Ages, whose: str) -> str:
    if ages.recent is None:
        return "-"
    return f"{_seconds(ages.recent)} after the event{whose}   p50 {_seconds(ages.p50)}   p99 {_seconds(ages.p99)}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _levels(state: TableState) -> str:
    listed = "  ".join(f"level {level}: {count}" for level, count in state.parts_by_level.items())
    return listed or "no parts"
