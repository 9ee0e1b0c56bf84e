"""``lakebed status | resume``: the health of tables, for people and for scripts, and what is parked."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from lakebed.cli import exit_codes
from lakebed.cli.arguments import is_table, tables_at
from lakebed.cli.logs import note, shown, shown_lines
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput, LakebedError, TableNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from lakebed.health.finding import Finding
    from lakebed.health.status import Status

WATCH_SECONDS = 2.0
_PATIENCE_SECONDS = 10.0
_STYLES = {"ok": "green", "warning": "yellow", "critical": "red"}


def add_to(commands: Commands) -> None:
    """Add the commands."""
    status = commands.add(
        "status",
        "show whether tables are healthy, and if not, why and what to do",
        _status,
        "lake/orders",
        rows=True,
    )
    resume = commands.add(
        "resume",
        "try again what is parked because it kept failing",
        _resume,
        "lake public.orders",
    )
    status.add_argument("path", metavar="PATH", help="a table, or a folder of tables, to get a row for each")
    looks = status.add_mutually_exclusive_group()
    looks.add_argument("--watch", action="store_true", help="for a table: refresh it every two seconds, until Ctrl-C")
    looks.add_argument(
        "--deep", action="store_true", help="for a table: include the findings of lakebed verify --self --deep"
    )
    resume.add_argument("path", metavar="PATH", help="a table, or a folder of tables")
    resume.add_argument(
        "tables", nargs="*", metavar="TABLE", help="tables of the folder, such as public.orders (default: all)"
    )
    resume.add_argument(
        "--remove-entry",
        metavar="NAME",
        help="remove this entry of the table's log, which can't be read (docs/runbook.md)",
    )


def _status(options: argparse.Namespace) -> int:
    from lakebed.health.status import Observer
    from lakebed.storage.object_store import require_answer

    require_answer(options.path, _PATIENCE_SECONDS)
    if not options.watch and not options.deep and not is_table(options.path):
        return _status_of_folder(options)
    seen = Observer(options.path)
    if options.watch:
        return _watch(seen.look, options.format)
    return _show(seen.look(options.deep), options.format)


def _status_of_folder(options: argparse.Namespace) -> int:
    """How a database is, and a row for each of its tables. Raises TableNotFound."""
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import DATABASE
    from lakebed.discovery import all_tables_below
    from lakebed.health.finding import finding_table
    from lakebed.health.run_report import Runs
    from lakebed.health.status import database_status

    tables = all_tables_below(options.path)
    known = Runs()
    runs = known.of_database(options.path)
    if not tables and not runs.findings and not runs.waiting:
        raise TableNotFound(f"there is no table at {options.path}, nor below it")
    found = database_status(tables, runs.waiting)
    findings = (*runs.findings, *known.refused_writes(options.path))
    print_rows(found, options, DATABASE)
    if options.format == "json":
        print_rows(finding_table(findings), options)
    else:
        print_findings(findings)
    return exit_codes.OK if found["error"].null_count == len(found) and not findings else exit_codes.FAILED


def _resume(options: argparse.Namespace) -> int:
    """Resume what is parked of tables: of the one at the path, or of those of a database, all or some of them."""
    from lakebed.coordination.failing import resume as resumed
    from lakebed.coordination.failing import resume_merges, resume_settle
    from lakebed.health.file_checks import remove_unreadable
    from lakebed.positions.remarks import dismiss
    from lakebed.table.internals import open_log

    code, names, merges, others = exit_codes.OK, [], dict[str, int](), False
    chosen = _chosen(options.path, options.tables)
    is_named = bool(options.tables) or options.path in chosen  # findings of all tables are not dealt with at one stroke
    for name, root in chosen.items():
        try:
            log = open_log(root)
            if resumed(log):
                names.append(name)
            if count := resume_merges(log):
                merges[name] = count
            if resume_settle(log):
                print(f"{name}: its tail is settled at once")
                others = True
            if is_named and dismiss(log):
                print(f"{name}: its rows count as right again")
                others = True
            for entry in remove_unreadable(log, options.remove_entry):
                print(f"{name}: the entry {entry}, which can't be read, is removed")
                others = True
        except LakebedError as error:  # the others are resumed all the same
            note(f"{name} is not resumed: {error}")
            code = exit_codes.exit_code_of(error)
    for name in names:
        print(f"{name} is resumed: its pipeline goes on with it where it stopped")
    for name, count in merges.items():
        print(f"{name}: {count} parked merge{'s are' if count > 1 else ' is'} planned again at once")
    if not names and not merges and not others and code == exit_codes.OK:
        print("nothing is parked")
    return code


def _chosen(path: str, names: list[str]) -> dict[str, str]:
    """The roots of the tables that are meant, by name. Raises TableNotFound, InvalidInput."""
    from lakebed.settings import suggest

    found = tables_at(path)
    if names and path in found:
        raise InvalidInput(f"{path} is a table; name tables after the path of a database")
    for name in names:
        if name not in found:
            raise InvalidInput(f"there is no table {name} below {path}{suggest(name, found)}")
    return {name: root for name, root in found.items() if not names or name in names}


def _show(found: Status, form: str) -> int:
    from lakebed.health.finding import Severity

    if form == "json":
        print(shown(json.dumps(_jsonable(found), ensure_ascii=False)), flush=True)
    else:
        _print(_screen(found))
    return exit_codes.OK if found.severity is Severity.OK else exit_codes.FAILED


def _watch(look: Callable[[], Status], form: str) -> int:
    """Refresh until Ctrl-C; the exit code is that of the last screen. If the store does not answer, show that and try again."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from lakebed.errors import Retry

    code = exit_codes.OK
    console = Console()
    try:
        if form == "json" or not console.is_terminal:
            while True:
                try:
                    code = _show(look(), form)
                except Retry as error:
                    code = exit_codes.exit_code_of(error)
                    note(_trouble(error))
                time.sleep(WATCH_SECONDS)
        last: tuple[RenderableType, ...] = ()
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                try:
                    found = look()
                    last = (_screen(found),)
                    code = exit_codes.OK if found.severity.value == "ok" else exit_codes.FAILED
                    live.update(last[0], refresh=True)
                except Retry as error:
                    code = exit_codes.exit_code_of(error)
                    live.update(Group(Text(shown(_trouble(error)), "red"), *last), refresh=True)
                time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return code


def _trouble(error: Exception) -> str:
    """The error of a failed look in one line."""
    return f"{time.strftime('%H:%M:%S')} the store did not answer, trying again: {' '.join(str(error).split())}"


def _screen(found: Status) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text(shown(f"{found.path}: ")).append(
        "healthy" if found.severity.value == "ok" else found.severity.value, _STYLES[found.severity.value]
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in _lines(found) if found.version >= 0 else ():
        grid.add_row(Text(name), Text(shown_lines(text)))
    return Group(head, grid, *map(finding_text, found.findings))


def _lines(found: Status) -> Iterator[tuple[str, str]]:
    from lakebed.cli.views import bytes_text
    from lakebed.remarks import Remark

    rows = (
        f"{found.rows:,} rows"
        if not found.tail_rows
        else f"{found.rows:,} settled rows and {found.tail_rows:,} changes"
    )
    yield "version", f"{found.version:,}, {_age(found.age_seconds)} old; {rows}, {bytes_text(found.bytes)}"
    levels = "  ".join(f"level {level}: {count:,}" for level, count in found.parts_by_level.items()) or "none"
    local = f"{found.volatile_claims:,} volatile claims, {found.materialized_parts:,} materialized parts on this host"
    yield "parts", f"{levels}; {local}"
    yield "volatile", found.volatile
    if found.tail_parts:
        tail = f"{found.tail_parts:,} parts, {found.tail_rows:,} rows, {bytes_text(found.tail_bytes)}"
        yield "tail", f"{tail}, the oldest change {_age(found.tail_age_seconds)} old"
    else:
        yield "tail", "empty: every Delta reader sees everything"
    yield "depth", f"{found.depth} at the deepest point; lakebed.read_budget is {found.read_budget}"
    yield "dead rows", f"{found.dead_rows:,}, {found.dead_row_ratio:.0%} of all"
    yield "claims", f"{found.claims_live:,} live, {found.claims_expired:,} expired"
    yield "next", "\n".join(found.will_do) or "nothing"
    yield "left alone", "\n".join(found.waits) or "nothing"
    yield "backlog", bytes_text(found.backlog_bytes)
    if found.resnapshot:
        yield "resnapshot", found.resnapshot
    if found.verified:
        yield "verified", found.verified
    yield "quarantine", f"{found.quarantined:,} records"
    if lost := sum(found.remarks.get(Remark.LOST, {}).values()):
        yield "late", f"{lost:,} changes lost against newer ones that had come before them"
    if waiting := found.remarks.get(Remark.WAITING, {}):
        groups = ", ".join(f"{count:,} of {name!r}" for name, count in waiting.items())
        yield "waiting", f"{groups} had no row of their owner when they were settled"
    log = f"the log has {found.log_files:,} files, {bytes_text(found.log_bytes)}"
    yield "retention", f"versions from {found.oldest_version} on can be read, {found.versions_held:,} are held; {log}"
    parts = found.parts
    unsorted = f"; {found.waiting_parts:,} wait to be, read {found.waiting_part_reads:,} times in the last hour"
    yield (
        "sort key",
        f"{parts - found.unsorted_parts:,} of {parts:,} parts are sorted by it{unsorted if found.waiting_parts else ''}",
    )


def print_findings(findings: Sequence[Finding]) -> None:
    """Print findings as ``status`` shows them."""
    for finding in findings:
        _print(finding_text(finding))


def finding_text(finding: Finding) -> RenderableType:
    """Two lines: what is wrong, and what to do."""
    from rich.text import Text

    where = f" {finding.where}" if finding.where else ""
    text = Text(f"{finding.severity.value}", _STYLES[finding.severity.value])
    what, remedy = shown(f"{finding.check}{where}: {finding.what}"), shown(finding.remedy)
    return text.append(f"  {what}\n    -> {remedy}", "default")


def _print(screen: RenderableType) -> None:
    """Print as wide as the terminal, or without wrapping if stdout is not a terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 100_000
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(screen)
    sys.stdout.writelines(line.rstrip() + "\n" for line in captured.get().splitlines())
    sys.stdout.flush()


def _jsonable(found: Status) -> dict[str, object]:
    findings = [asdict(finding) | {"severity": finding.severity.value} for finding in found.findings]
    return asdict(found) | {"severity": found.severity.value, "findings": findings}


def _age(seconds: float | None) -> str:
    from lakebed.cli.views import seconds_text

    return "-" if seconds is None else seconds_text(seconds)
