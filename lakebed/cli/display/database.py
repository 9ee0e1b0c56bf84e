"""What ``lakebed run`` shows of a database: how many tables there are and how they stand, the busiest, and those in trouble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from lakebed.cli.escapes import shown
from lakebed.ingest.database.ingest import TableStanding
from lakebed.pipeline.database.work import DatabaseState

TABLES_MAX = 12
"""So many fit on a terminal beside the rest; those in trouble come first, then the busiest."""
NAMES_MAX = 5
ERROR_CHARACTERS = 100


def counts(state: DatabaseState) -> str:
    """How many tables there are, and how many of them do not just live."""
    others = [f"{count:,} {name}" for name in ("parked", "waiting", "new") if (count := state.count(name))]
    return ", ".join([_tables(len(state.tables)), *others])


def parts(state: DatabaseState) -> list[str]:
    """A database in a line: its parts."""
    unread = [f"{state.unread:,} records unread"] if state.unread is not None else []
    return [counts(state), *unread, *(f"{one.name} {one.state}: {_short(one.error)}" for one in in_trouble(state)[:3])]


def in_trouble(state: DatabaseState) -> list[TableStanding]:
    """The tables that wait or are parked, the parked ones first."""
    return sorted((one for one in state.tables if one.error), key=lambda one: (one.state, one.name))


def busiest(state: DatabaseState) -> Sequence[TableStanding]:
    """The tables to show."""
    troubled = in_trouble(state)[: TABLES_MAX // 2]
    others = [one for one in state.tables if one not in troubled]
    others.sort(key=lambda one: (-state.rates.get(one.name, 0.0), -one.unread, one.name))
    return [*troubled, *others[: TABLES_MAX - len(troubled)]]


def rows(state: DatabaseState) -> Iterator[tuple[str, str | Table]]:
    """What a panel says of a database."""
    yield "tables", counts(state)
    yield "unread", "-" if state.unread is None else f"{state.unread:,} records at the source"
    if not state.tables:
        return
    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="ellipsis")
    for one in busiest(state):
        style = {"parked": "red", "waiting": "yellow"}.get(one.state, "")
        rate = f"{state.rates.get(one.name, 0.0):,.0f}/s"
        grid.add_row(shown(one.name), Text(one.state, style), rate, Text(_short(one.error), style))
    if more := len(state.tables) - TABLES_MAX:
        grid.add_row(f"and {more:,} more" if more > 0 else "")
    yield "", grid


def news(before: DatabaseState | None, now: DatabaseState) -> Iterator[str]:
    """What changed of the tables since the last look, a line for each way in which some have."""
    earlier = {one.name: one.state for one in before.tables} if before else {}
    made = [one.name for one in now.tables if one.state == "live" and earlier.get(one.name, "new") == "new"]
    if made:
        more = f" and {len(made) - NAMES_MAX:,} more" if len(made) > NAMES_MAX else ""
        yield f"{_tables(len(made), 'new ')}: {', '.join(made[:NAMES_MAX])}{more}" if before else _tables(len(made))
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
    names = ", ".join(each.name for each in tables[:NAMES_MAX])
    more = f" and {len(tables) - NAMES_MAX:,} more" if len(tables) > NAMES_MAX else ""
    return f"{names}{more} {one if len(tables) == 1 else many}"


def example(state: DatabaseState) -> str | None:
    """The path of a table, the busiest."""
    live = [one for one in state.tables if one.state == "live"]
    return max(live, key=lambda one: state.rates.get(one.name, 0.0)).root if live else None


def _tables(count: int, what: str = "") -> str:
    return f"{count:,} {what}table{'s' if count != 1 else ''}"


def _short(error: str) -> str:
    text = shown(error)
    return text if len(text) <= ERROR_CHARACTERS else f"{text[: ERROR_CHARACTERS - 1]}…"
