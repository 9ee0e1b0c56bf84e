"""``lakebed resume``, and ``lakebed status`` of a database."""

from __future__ import annotations

import argparse

from lakebed.cli import exit_codes
from lakebed.errors import InvalidInput, LakebedError, TableNotFound

# What a command needs is imported when it runs: a parser must not wait for it.


def resume(options: argparse.Namespace) -> int:
    """Resume what is parked of tables: of the one at the path, or of those of a database, all or some of them."""
    from lakebed.cli.logs import note
    from lakebed.coordination.failing import resume_merges
    from lakebed.coordination.parked import resume as resumed
    from lakebed.coordination.settle_attempts import resume_settle
    from lakebed.health.entry_checks import remove_unreadable
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
    from lakebed.discovery.tables import all_tables_below
    from lakebed.settings import suggest

    if is_table(path):
        if names:
            raise InvalidInput(f"{path} is a table; name tables after the path of a database")
        return {path: path}
    found = all_tables_below(path)
    if not found:
        raise TableNotFound(f"there is no table at {path}, nor below it")
    for name in names:
        if name not in found:
            raise InvalidInput(f"there is no table {name} below {path}{suggest(name, found)}")
    return {name: root for name, root in found.items() if not names or name in names}


def is_table(path: str) -> bool:
    """Whether there is a table at the path itself, also one that can't be read. Raises InvalidInput, StoreUnavailable."""
    from lakebed.log.stores import open_store
    from lakebed.log.table_log import TableLog
    from lakebed.storage.open import open_part_storage

    return TableLog(open_store(open_part_storage(path).root)).exists()


def status(options: argparse.Namespace) -> int:
    """How a database is, and a row for each of its tables. Raises TableNotFound."""
    from lakebed.cli.health_commands import print_findings
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import DATABASE
    from lakebed.discovery.tables import all_tables_below
    from lakebed.health.database_status import database_status
    from lakebed.health.finding import finding_table
    from lakebed.health.runs import Runs

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


def resnapshot(options: argparse.Namespace) -> int:
    """Ask Debezium for the rows of tables again; with ``--wait`` until it has read them."""
    from lakebed.cli.logs import note
    from lakebed.cli.progress import progress
    from lakebed.pipeline.database.resnapshot import Asking
    from lakebed.pipeline.file.settings import DatabasePipeline, load

    pipeline = load(options.file)
    if not isinstance(pipeline, DatabasePipeline):
        raise InvalidInput(f"{options.file} describes one table; this needs the file of a database")
    try:
        asking = Asking(pipeline)
        if options.wait:
            asking.check_waits()
        sent = asking.send(options.tables, options.where, options.mirror)
        note(f"the signal {sent.signal_id} is sent: the connector is asked for the rows of {', '.join(sent.tables)}")
        for table in sent.restarted:
            note(f"{table}: what comes from now on counts as newer than all that the table has: its source began again")
        if not options.wait:
            return exit_codes.OK
        with progress("the connector is asked", options.log_format) as report:
            done = asking.follow(sent, lambda text: report(text, None, None))
    except LakebedError as error:
        raise error.with_text(pipeline.document.redact(str(error))) from None
    for table, rows in done.rows.items():
        print(f"{table}: the connector has read {rows:,} rows; they come through its topic")
    for table, status in done.failed.items():
        note(f"{table}: the connector sends no rows: {status}")
    if done.was_aborted:
        note("the snapshot was stopped before its end")
    return exit_codes.FAILED if done.failed or done.was_aborted else exit_codes.OK
