"""``lakebed compact | recluster | clean``: maintenance of a table, once and in this process; ``simulate``: their cost."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakebed.cli import exit_codes
from lakebed.cli.arguments import count, is_table, look_seconds, ratio, table_of, tables_at, takes_table, up_to
from lakebed.cli.logs import Report, note, progress
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from lakebed.compaction.recluster_job import ReclusterProgress
    from lakebed.events import Event
    from lakebed.planning.workload import Simulation, Workload
    from lakebed.table import Table


_CLEANINGS = {
    "expire-rows": "rows whose lakebed.ttl has ended",
    "expire-snapshots": "old versions, with their log files and data files",
    "remove-orphan-files": "files that no version refers to",
    "vacuum": "data files of old versions, and orphans; the log stays",
}


def add_to(commands: Commands) -> None:
    """Add the commands."""
    _add_simulate(commands)
    compact = commands.add(
        "compact",
        "settle the tail of a table, and merge its parts",
        _compact,
        "lake/orders",
        rows=True,
    )
    compact.add_argument(
        "--only",
        choices=("settle", "merge", "publish"),
        help="settle: only have every Delta reader see the tail; merge: only merge; publish: only have readers of Iceberg see "
        "the newest version",
    )
    recluster = commands.add(
        "recluster",
        "sort parts together, so that fewer cover a point of the sort key",
        _recluster,
        "lake/orders --final",
        rows=True,
    )
    clean = commands.add(
        "clean",
        "expire old rows and versions, and delete files that nothing needs",
        _clean,
        "lake/orders --no-dry-run",
        rows=True,
    )
    takes_table(compact, recluster, clean)
    recluster.add_argument(
        "--final",
        action="store_true",
        help="go on until every level is shallow and every part is sorted; without it, one level",
    )
    recluster.add_argument("--where", metavar="SQL", help="only parts that may hold rows for which this is true")
    recluster.add_argument("--dry-run", action="store_true", help="only estimate what it would read and write")
    whats = "; ".join(f"{name}: {text}" for name, text in _CLEANINGS.items())
    clean.add_argument("--only", choices=tuple(_CLEANINGS), metavar="WHAT", help=f"{whats} (default: all that is due)")
    clean.add_argument(
        "--no-dry-run", action="store_false", dest="dry_run", help="do it; without it, it is only listed"
    )
    clean.add_argument(
        "--older-than",
        metavar="AGE",
        help="age of versions or files, such as '7 days' (default: the table's delta.deletedFileRetentionDuration; for orphans "
        "3 days)",
    )
    clean.add_argument("--retain-last", type=int, metavar="N", help="keep the newest N versions (default: 1)")
    clean.add_argument(
        "--allow-short-retention",
        action="store_true",
        help="allow less than an hour; make sure that nobody else uses the table",
    )


def _compact(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record

    table = table_of(options)
    acts = {"settle": _settle, "merge": _merge, "publish": _publish}
    is_on = table.properties.get("lakebed.iceberg") == "on"
    names = [options.only] if options.only else ["settle", "merge", *(["publish"] if is_on else [])]
    done = [acts[name](table, options) for name in names]
    for result in done:
        print_record(result, options)
    return exit_codes.OK


def _settle(table: Table, options: argparse.Namespace) -> Any:
    from lakebed.events import CommitEnded, listen
    from lakebed.log.entries import Operation

    [tail] = table.inspect.detail()["tail_rows"].to_pylist()
    with progress("settling", options.log_format) as report:

        def counted(event: Event) -> None:
            if isinstance(event, CommitEnded) and event.operation == Operation.SETTLE:
                report("settling rows", tail - table.inspect.detail()["tail_rows"][0].as_py(), tail)

        end = listen(counted)
        try:
            return table.settle()
        finally:
            end()


def _merge(table: Table, options: argparse.Namespace) -> Any:
    from lakebed import events

    with progress("looking for parts to merge", options.log_format) as report:
        end = events.listen(_MergeCount(report))
        try:
            return table.maintenance.compact()
        finally:
            end()


def _publish(table: Table, options: argparse.Namespace) -> Any:
    with progress("writing Iceberg's metadata", options.log_format):
        return table.maintenance.publish_iceberg()


class _MergeCount:
    """A listener that reports the merge under way. How many follow is not known: outputs may be merged again."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._merges = 0

    def __call__(self, event: Event) -> None:
        from lakebed.cli.views import bytes_text
        from lakebed.events import MergeBegan

        if isinstance(event, MergeBegan):
            self._merges += 1
            what = f"merging {event.parts:,} parts, {bytes_text(event.bytes)}, for level {event.level}: merge"
            self._report(what, self._merges, None)


def _recluster(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record

    table = table_of(options)
    with progress("looking for parts to recluster", options.log_format) as report:

        def on_progress(at: ReclusterProgress) -> None:
            waiting = ", waiting for parts that others merge" if at.waiting else ""
            what = f"round {at.rounds}, merge {at.plans} of about {at.plans_estimated}{waiting}: rows"
            report(what, at.rows, at.rows_estimated)

        result = table.maintenance.recluster(
            options.where, final=options.final, on_progress=on_progress, dry_run=options.dry_run
        )
    print_record(result, options)
    return exit_codes.OK


def _clean(options: argparse.Namespace) -> int:
    """Without ``--only``: old rows where the table has a time to live, then versions, which takes orphans along."""
    files_too = options.only != "expire-rows"
    if options.retain_last is not None and options.only not in (None, "expire-snapshots"):
        raise InvalidInput(f"--retain-last is not for --only {options.only}, which expires no versions")
    if not files_too and (options.older_than or options.allow_short_retention):
        raise InvalidInput("--older-than and --allow-short-retention are for files; rows are old as lakebed.ttl says")
    if not is_table(options.path):
        _remove_dropped(options)
        return exit_codes.OK
    table = table_of(options)
    if not files_too or (options.only is None and table.properties.get("lakebed.ttl")):
        _expire_rows(table, options)
    if files_too:
        _delete_files(table, options)
    return exit_codes.OK


def _remove_dropped(options: argparse.Namespace) -> None:
    """Of a folder: the files of tables in it that were dropped long enough ago."""
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import DROPPED
    from lakebed.operations.drop import remove_dropped

    if options.only or options.older_than or options.retain_last is not None or options.allow_short_retention:
        raise InvalidInput(
            f"there is no table at {options.path}; of a folder only the tables that were dropped are cleaned up"
        )
    with progress("looking for tables that were dropped", options.log_format):
        rows = remove_dropped(options.path, dry_run=options.dry_run)
        if not len(rows):
            tables_at(options.path)  # says so if there is nothing at all
    print_rows(rows, options, DROPPED)
    files, tables = sum(rows["files"].drop_null().to_pylist()), sum(rows["removed"].to_pylist())
    done = (
        "; --no-dry-run deletes the files of those that are due"
        if options.dry_run
        else f", {tables:,} removed, {files:,} files"
    )
    note(f"{len(rows):,} dropped tables{done}")


def _expire_rows(table: Table, options: argparse.Namespace) -> None:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import EXPIRED_ROWS, bytes_text

    with progress("looking for old rows" if options.dry_run else "removing old rows", options.log_format):
        parts = table.maintenance.expire_rows(options.dry_run)
    print_rows(parts, options, EXPIRED_ROWS)
    done = "would be removed; --no-dry-run removes them" if options.dry_run else "removed"
    whole, size = sum(parts["removed"].to_pylist()), bytes_text(sum(parts["bytes"].to_pylist()))
    note(
        f"{sum(parts['expired_rows'].to_pylist()):,} rows, {whole:,} of their {len(parts):,} parts as a whole ({size}), {done}"
    )


def _delete_files(table: Table, options: argparse.Namespace) -> None:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import FILES, bytes_text

    upkeep, ages = table.maintenance, (options.dry_run, options.allow_short_retention)
    rows: pa.Table
    with progress("listing files to delete" if options.dry_run else "deleting files", options.log_format):
        match options.only:
            case "vacuum":
                rows = upkeep.vacuum(options.older_than, *ages)
            case "remove-orphan-files":
                rows = upkeep.remove_orphan_files(options.older_than, *ages)
            case _:
                kept = 1 if options.retain_last is None else options.retain_last
                rows = upkeep.expire_snapshots(options.older_than, kept, *ages)
    print_rows(rows, options, FILES)
    done = "would be deleted; --no-dry-run deletes them" if options.dry_run else "deleted"
    total = sum(rows["bytes"].to_pylist())
    note(f"{len(rows):,} files, {bytes_text(total)}, {done}")


# -- An estimate of the cost and the gain of merges: the planner over made-up or recorded arrivals -------------------------


def _add_simulate(commands: Commands) -> None:
    parser = commands.add(
        "simulate",
        "simulate days of merges in seconds",
        _simulate,
        "--days 7 --rate 5000 --read-budget 6",
        rows=True,
    )
    add = parser.add_argument
    add("--from", dest="source", metavar="TABLE", help="take the arrivals of the last days, and the settings, from it")
    add("--days", type=up_to(3_660), default=1.0, metavar="N", help="days to simulate (default: 1)")
    add("--rate", type=up_to(1e9), metavar="N", help="rows per second (default: 1000)")
    add("--row-bytes", type=int, metavar="N", help="bytes of a row in a part, compressed (default: 25)")
    add("--read-budget", type=int, metavar="K", help="lakebed.read_budget (default: the table's, else 8)")
    orders = ("random", "ascending", "none")
    add("--order", choices=orders, default="random", help="where new rows are in the sort key (default: random)")
    add("--updates", type=ratio, metavar="R", help="share of updates, 0 to 1 (default: 0)")
    add("--plan-bytes-max", type=int, metavar="BYTES", help="lakebed.plan_bytes_max")
    add("--volatile", action="store_true", help="merges stay on a local disk (lakebed.volatile)")
    add("--png", metavar="FILE", help="draw write, read and space amplification over time")
    idle = parser.add_argument_group("the requests of idle tables, in place of merges")
    idle.add_argument(
        "--idle-tables", type=count, metavar="N", help="print what a day costs of N tables to which nothing comes"
    )
    idle.add_argument("--workers", type=count, default=1, metavar="N", help="that maintain them (default: 1)")
    idle.add_argument("--look-seconds", type=look_seconds, metavar="N", help="as for lakebed maintain (default: 300)")


def _simulate(options: argparse.Namespace) -> int:
    """Print the figures, and draw them if a file is given. Raises InvalidInput, MissingPrerequisite."""
    if options.idle_tables is not None:
        return _estimate(options)
    from lakebed.cli.output import print_record
    from lakebed.planning.simulator import simulate
    from lakebed.planning.workload import plot
    from lakebed.settings import parse_settings

    workload, properties, title = _made_up(options) if options.source is None else _recorded(options)
    for name in ("read_budget", "plan_bytes_max"):
        if getattr(options, name) is not None:
            properties[f"lakebed.{name}"] = str(getattr(options, name))
    workload, settings = replace(workload, volatile=options.volatile), parse_settings(properties)
    with progress("simulating", options.log_format) as report:
        simulation = simulate(workload, settings, on_progress=lambda done, of: report("simulating batches", done, of))
    print_record(figures(simulation), options)
    if options.png is not None:
        plot(simulation, options.png, f"{title}, read budget {settings.read_budget}")
    return exit_codes.OK


def _estimate(options: argparse.Namespace) -> int:
    """Print what a day of tables costs to which nothing comes."""
    from lakebed.discovery import SECONDS_MAX
    from lakebed.fleet.membership import BEAT_SECONDS, day_of_looks
    from lakebed.fleet.worker import DISCOVERY_SECONDS

    tables, workers, seconds = options.idle_tables, options.workers, options.look_seconds or SECONDS_MAX
    day = day_of_looks(
        tables, workers, look_seconds=seconds, beat_seconds=BEAT_SECONDS, discovery_seconds=DISCOVERY_SECONDS
    )
    print(f"a day of {tables:,} tables to which nothing comes, and {workers} worker{'s' if workers > 1 else ''}:")
    often = f"every {seconds:.0f} seconds; more often where lakebed.freshness asks for it"
    print(f"  {day.looks:12,.0f} looks, one GET each: {often}")
    print(f"  {day.listings:12,.0f} listings of logs")
    print(f"  {day.beats:12,.0f} beats of workers, and {day.discoveries:,.0f} listings of folders")
    print(f"  {day.reads:12,.0f} GET and {day.writes:,.0f} PUT or LIST: ${day.dollars:,.2f} at S3's list price")
    return exit_codes.OK


def _made_up(options: argparse.Namespace) -> tuple[Workload, dict[str, str], str]:
    from lakebed.planning.workload import Workload, steady

    rate = 1000.0 if options.rate is None else options.rate
    row_bytes = 25 if options.row_bytes is None else options.row_bytes
    arrivals = steady(options.days, rate, row_bytes=row_bytes)
    workload = Workload(arrivals=arrivals, update_share=options.updates or 0.0, order=options.order)
    return workload, {}, f"{options.days:g} days of {rate:g} rows a second"


def _recorded(options: argparse.Namespace) -> tuple[Workload, dict[str, str], str]:
    """The table's arrivals and its own settings."""
    from lakebed.log.stores import open_store
    from lakebed.log.table_log import TableLog
    from lakebed.planning.workload_from_log import recorded_workload

    for name in ("rate", "row_bytes", "updates"):
        if getattr(options, name) is not None:
            raise InvalidInput(
                f"--{name.replace('_', '-')} can't be given with --from, which takes it from the table; leave one of them out"
            )
    log = TableLog(open_store(options.source))
    properties = log.refresh().settings.to_properties()
    recorded = recorded_workload(log, options.days, options.order)
    return recorded, properties, f"{options.days:g} days of {options.source}"


def figures(simulation: Simulation) -> dict[str, int | float]:
    samples = simulation.samples
    last = samples[-1]
    return {
        "flushes": simulation.flushes,
        "settles": simulation.settles,
        "merges": simulation.merges,
        "purges": simulation.purges,
        "ingested_bytes": last.ingested_bytes,
        "merged_bytes": last.merged_bytes,
        "write_amplification": round(last.write_amplification, 3),
        "merged_to_reference": round(simulation.merged_to_reference, 3),
        "depth_max": max(sample.depth_max for sample in samples),
        "depth_average": round(sum(sample.depth_average for sample in samples) / len(samples), 3),
        "depth_max_elsewhere": max(sample.depth_max_elsewhere for sample in samples),
        "depth_average_elsewhere": round(sum(sample.depth_average_elsewhere for sample in samples) / len(samples), 3),
        "local_bytes": last.local_bytes,
        "space_amplification": round(last.space_amplification, 3),
        "parts": last.parts,
        "tail_parts_max": max(sample.tail_parts for sample in samples),
    }


# -- ``lakebed show maintenance``: what maintenance costs and gains ----------------------------------------------------------


def show_maintenance(options: argparse.Namespace) -> int:
    """Print what maintenance of each table cost, and would gain."""
    from lakebed.cli.commands.health import print_findings
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import FLEET
    from lakebed.fleet.membership import fleet_report, listed_workers
    from lakebed.health.finding import finding_table
    from lakebed.health.run_report import findings_of

    roots = options.paths
    for worker in listed_workers(roots[0]) if options.format == "table" else ():
        until = time.strftime("%H:%M:%S", time.gmtime(worker.until_ms / 1000))
        print(f"worker {worker.id}: {worker.cores:g} cores, alive until {until} UTC at least", file=sys.stderr)
    found = fleet_report(roots)
    print_rows(found, options, FLEET)
    findings = findings_of(found["path"].to_pylist())
    if options.format == "json":
        print_rows(finding_table(findings), options)
    else:
        print_findings(findings)
    return exit_codes.OK if found["error"].null_count == len(found) and not findings else exit_codes.FAILED
