"""``lakebed status | doctor | claims | compactions``: the health of a table, for people and for scripts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from lakebed.cli import exit_codes
from lakebed.cli.escapes import shown, shown_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from lakebed.health.finding import Finding
    from lakebed.health.status import Status

WATCH_SECONDS = 2.0
PATIENCE_SECONDS = 10.0
_STYLES = {"ok": "green", "warning": "yellow", "critical": "red"}

# What a command needs is imported when it runs: a parser must not wait for it.


def status(options: argparse.Namespace) -> int:
    from lakebed.cli import database_commands
    from lakebed.health.status import Observer
    from lakebed.storage.roots import require_answer

    require_answer(options.path, PATIENCE_SECONDS)
    if not options.watch and not options.deep and not database_commands.is_table(options.path):
        return database_commands.status(options)
    seen = Observer(options.path)
    if options.watch:
        return _watch(seen.look, options.format)
    return _show(seen.look(options.deep), options.format)


def doctor(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.progress import progress
    from lakebed.health.examination import FINDINGS_MAX, examine
    from lakebed.health.finding import Severity, finding_table

    with progress("opening the table", options.log_format) as report:
        found = examine(options.path, options.deep, report)
    if options.format == "json":
        print_rows(finding_table(found.findings), options)
    else:
        for finding in found.findings:
            _print(finding_text(finding))
        count = len(found.findings)
        counted = f"{count:,} finding{'s' if count > 1 else ''}" if count else "nothing is wrong"
        looked_at = f"{found.commits:,} commits, {found.checkpoints:,} checkpoints, {found.parts:,} parts"
        rows = f" with {found.rows:,} rows" if found.deep else ""
        print(f"version {found.version}: {looked_at}{rows}, {found.seconds:,.1f} s: {counted}")
    if len(found.findings) >= FINDINGS_MAX:
        from lakebed.cli.logs import note

        note(f"at most {FINDINGS_MAX:,} findings of each kind are shown")
    return exit_codes.OK if found.severity is Severity.OK else exit_codes.FAILED


def claims(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import CLAIMS
    from lakebed.table import open as open_table

    print_rows(open_table(options.path).inspect.claims(), options, CLAIMS)
    return exit_codes.OK


def compactions(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import COMPACTIONS
    from lakebed.table import open as open_table

    print_rows(open_table(options.path).inspect.compactions(options.last), options, COMPACTIONS)
    return exit_codes.OK


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

    from lakebed.cli.logs import note
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
    from lakebed.positions.remarks import Remark

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
    yield "quarantine", f"{found.quarantined:,} records"
    if lost := sum(found.remarks.get(Remark.LOST, {}).values()):
        yield "late", f"{lost:,} changes lost against newer ones that had come before them"
    log = f"the log has {found.log_files:,} files, {bytes_text(found.log_bytes)}"
    yield "retention", f"versions from {found.oldest_version} on can be read, {found.versions_held:,} are held; {log}"
    parts = found.parts
    waiting = f"; {found.waiting_parts:,} wait to be, read {found.waiting_part_reads:,} times in the last hour"
    yield (
        "sort key",
        f"{parts - found.unsorted_parts:,} of {parts:,} parts are sorted by it{waiting if found.waiting_parts else ''}",
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
