"""Arguments in, exit code out: ``execute`` is the command.

Errors of lakebed are one line on stderr; anything else is a bug and is reported as one (``--debug`` shows the
trace). A closed stdout (``| head``) is no error.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Protocol

from lakebed.cli import exit_codes, fleet_command, listener_commands, logs
from lakebed.cli.argument_types import count, port_or_file, positive, ratio, some_port, up_to
from lakebed.cli.escapes import shown, shown_lines
from lakebed.cli.interrupt import ends_at_once
from lakebed.cli.suggestions import OTHER_WORDS, did_you_mean, near_file, near_table
from lakebed.errors import InvalidInput, LakebedError, TableNotFound
from lakebed.version import __version__

NEXT_ERROR = "\n  line "
"""How the next one of several errors of a pipeline file begins."""
_EPILOG = "exit codes:\n" + "\n".join((exit_codes.__doc__ or "").splitlines()[2:]) + f"\n\n{logs.HELP}"
_SHORT_EPILOG = "exit codes and the log: lakebed --help"


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Raises KeyboardInterrupt."""
    options, others = _parser().parse_known_args(arguments)
    if others:
        options.parser.refuse(others)
    if getattr(options, "runs_on", False):
        return _executed(options, threading.Event())
    with ends_at_once() as pressed:
        return _executed(options, pressed)


def _executed(options: argparse.Namespace, interrupted: threading.Event) -> int:
    command: Callable[[argparse.Namespace], int] = options.command
    if options.debug:
        sys.excepthook = _trace
    try:
        with logs.logging_as(options):
            code = command(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes stdout once more when it exits; what is left is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    except Exception as error:
        if interrupted.is_set():  # whatever was interrupted may say so in its own way
            return exit_codes.INTERRUPTED
        if options.debug:
            raise
        if isinstance(error, LakebedError):
            _complain(str(error) + _meant(error, options), options.log_format)
            return exit_codes.exit_code_of(error)
        _complain(f"unexpected {type(error).__name__}: {error}; --debug shows where", options.log_format)
        return exit_codes.FAILED


def _meant(error: LakebedError, options: argparse.Namespace) -> str:
    """What the path that is not there may have been."""
    if isinstance(error, TableNotFound) and getattr(options, "path", None):
        return near_table(options.path)
    file = getattr(options, "file", None)
    return near_file(file) if file and isinstance(error, InvalidInput) and not os.path.exists(file) else ""


def _complain(message: str, log_format: str | None = None) -> None:
    first, *others = (" ".join(each.split()) for each in message.split(NEXT_ERROR))
    if log_format == "json":
        first, others = " ".join([first, *others]), []
    print(NEXT_ERROR.join([logs.complaint(first, log_format), *map(shown, others)]), file=sys.stderr)


def _trace(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the trace of an uncaught error, with control characters escaped."""
    sys.stderr.write(shown_lines("".join(traceback.format_exception(kind, error, trace))))


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line, too."""

    def error(self, message: str) -> NoReturn:
        _complain(f"{message} (see {self.prog} --help)")
        sys.exit(exit_codes.WRONG_INPUT)

    def refuse(self, arguments: Sequence[str]) -> NoReturn:
        """End the process for arguments that the command does not have."""
        option = next((each.split("=")[0] for each in arguments if each.startswith("-")), None)
        if option is None:
            self.error(f"{arguments[0]!r} is one argument too many")
        self.error(f"there is no option {option}{did_you_mean(option, self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(each) for each in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            meant = OTHER_WORDS.get(str(value).lower())
            near = f"; the command for that is {meant}" if meant else did_you_mean(value, choices)
            self.error(f"there is no command {value!r}{near}")
        near = did_you_mean(str(value), choices)
        raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(choices)}{near}")


class _Add(Protocol):
    """Adds a command: its name, its help, the function that runs it, and parsers whose options it has too."""

    def __call__(
        self, name: str, text: str, command: Callable[[argparse.Namespace], int], *parents: argparse.ArgumentParser
    ) -> _Parser: ...


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show stack traces")
    logs.add_options(common)
    rows = argparse.ArgumentParser(add_help=False)
    rows.add_argument(
        "--format", choices=("table", "json"), default="table", help="json: one object per line (default: table)"
    )
    rows.add_argument(
        "--wide", action="store_true", help="all columns and whole values, also where they do not fit the terminal"
    )

    parser = _Parser(
        prog="lakebed", description="Change streams become fresh, sorted, compact Delta tables.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"lakebed {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, text: str, command: Callable[[argparse.Namespace], int], *parents: argparse.ArgumentParser
    ) -> _Parser:
        sub = commands.add_parser(
            name, help=text, description=text + ".", parents=list[Any]((common, *parents)), epilog=_SHORT_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(command=command, parser=sub)
        assert isinstance(sub, _Parser)
        return sub

    _add_init(add)
    _add_pipelines(add)
    _add_tables(add, rows)
    _add_simulate(add, rows)
    _add_quarantine(add, rows)
    _add_compaction(add, rows)
    _add_positions(add, rows)
    _add_schema(add, rows)
    _add_mutations(add, rows)
    _add_cleanup(add, rows)
    _add_health(add, rows)
    _add_servers(add, rows)
    _add_service(add)
    listener_commands.add_to(add, rows)
    _add_files(add)
    return parser


def _add_init(add: _Add) -> None:
    init = add("init", "write a pipeline file; a terminal is asked for what the options leave open", _init)
    init.add_argument("output", metavar="FILE", nargs="?", default="pipeline.yml", help="default: pipeline.yml")
    init.add_argument("--source", metavar="KIND", help="kafka, files or generator")
    init.add_argument("--folder", metavar="DIR", help="files: the folder where they appear")
    init.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="kafka: the brokers")
    init.add_argument("--topic", metavar="NAME", action="append", help="kafka: may be given several times")
    init.add_argument(
        "--database", metavar="PATH", help="in place of --path: one table for each topic, below this folder"
    )
    init.add_argument(
        "--topic-prefix", metavar="NAME", help="with --database: what the topics begin with, such as shop"
    )
    init.add_argument(
        "--record-format", metavar="KIND", help="such as debezium-json, avro; of files also csv or parquet"
    )
    init.add_argument("--registry", metavar="URL", help="the schema registry, for formats whose schemas are in one")
    init.add_argument("--path", metavar="PATH", help="the table: a folder, or s3://bucket/prefix")
    init.add_argument(
        "--columns",
        metavar="TEXT",
        help="such as 'id: long, name: string' (default: those of the files, or of the registry)",
    )
    init.add_argument("--keys", metavar="NAMES", help="the columns that identify a row, separated by commas")
    init.add_argument("--sequence-by", metavar="NAME", help="what orders the changes of a key, such as updated_at")
    init.add_argument("--force", action="store_true", help="write over a file that is there")


def _add_pipelines(add: _Add) -> None:
    run = add("run", "run a pipeline until it is stopped", _run)
    run.set_defaults(runs_on=True)
    run.add_argument("file", metavar="FILE", help="the pipeline file (lakebed docs pipeline)")
    run.add_argument("--duration", type=positive, metavar="SECONDS", help="stop after running for so many seconds")
    run.add_argument(
        "--only", choices=("ingest", "maintain"), help="do half of the work; another process does the other"
    )
    run.add_argument("--rate", type=positive, metavar="N", help="events per second of the generator")
    run.add_argument(
        "--metrics-port",
        type=port_or_file,
        default="file",
        metavar="PORT",
        help="a port, 0 (any), off, or file (default)",
    )
    run.add_argument("--host", help="where metrics and page listen (default: as in the file)")

    validate = add("validate", "check a pipeline file and print its settings", _validate)
    validate.add_argument("file", metavar="FILE", help="the pipeline file")
    validate.add_argument("--connect", action="store_true", help="also ask the broker for the topics, and the stores")


def _add_tables(add: _Add, rows: argparse.ArgumentParser) -> None:
    from lakebed.cli import table_commands as commands

    query = add("query", "query the newest version of a table, tail included, in SQL", commands.query, rows)
    query.add_argument("path", metavar="PATH", help="the table")
    query.add_argument("sql", metavar="SQL", help="in DuckDB's dialect; the table has the name of its folder")
    query.add_argument("--name", help="another name for the table in the SQL")
    query.add_argument(
        "--allow-files",
        action="store_true",
        help="allow any statement, also to read and write files; for trusted SQL only",
    )

    parts = add("parts", "list the parts of a table", commands.parts, rows)
    parts.add_argument("path", metavar="PATH", help="the table")
    parts.add_argument("--at-version", type=int, metavar="N", help="of that version (default: the newest)")
    timeline = add("timeline", "list the newest commits of a table", commands.timeline, rows)
    timeline.add_argument("path", metavar="PATH", help="the table")
    timeline.add_argument("--last", type=count, default=20, metavar="N", help="how many (default: 20)")
    detail = add("detail", "show the figures of a table", commands.detail, rows)
    detail.add_argument("path", metavar="PATH", help="the table")
    clustering = add(
        "clustering", "show how well a table is clustered by its sort key, level by level", commands.clustering, rows
    )
    clustering.add_argument("path", metavar="PATH", help="the table")
    clustering.add_argument("--png", metavar="FILE", help="draw the parts over the sort key, and their depth")
    settle = add("settle", "settle the tail of a table, so that every Delta reader sees it", commands.settle, rows)
    settle.add_argument("path", metavar="PATH", help="the table")


def _add_simulate(add: _Add, rows: argparse.ArgumentParser) -> None:
    simulate = add(
        "simulate", "simulate days of merges in seconds, with made-up arrivals or those of a table", _simulate, rows
    )  # fmt: skip
    simulate.add_argument(
        "--from",
        dest="source",
        metavar="PATH",
        help="take the arrivals of the last days, and the settings, from this table",
    )
    simulate.add_argument("--days", type=up_to(3_660), default=1.0, metavar="N", help="days to simulate (default: 1)")
    simulate.add_argument("--rate", type=up_to(1e9), metavar="N", help="rows per second (default: 1000)")
    simulate.add_argument(
        "--row-bytes", type=int, metavar="N", help="bytes of a row in a part, compressed (default: 25)"
    )
    simulate.add_argument(
        "--read-budget", type=int, metavar="K", help="lakebed.read_budget (default: the table's, else 8)"
    )
    simulate.add_argument(
        "--order",
        choices=("random", "ascending", "none"),
        default="random",
        help="where new rows are in the sort key (default: random)",
    )
    simulate.add_argument("--updates", type=ratio, metavar="R", help="share of updates, 0 to 1 (default: 0)")
    simulate.add_argument("--plan-bytes-max", type=int, metavar="BYTES", help="lakebed.plan_bytes_max")
    simulate.add_argument("--volatile", action="store_true", help="merges stay on a local disk (lakebed.volatile)")
    simulate.add_argument("--png", metavar="FILE", help="draw write, read and space amplification over time")


def _add_servers(add: _Add, rows: argparse.ArgumentParser) -> None:
    exporter = add("exporter", "serve the gauges of tables to Prometheus, without a pipeline", _exporter)
    exporter.set_defaults(runs_on=True)
    exporter.add_argument("paths", nargs="+", metavar="PATH", help="the tables")
    exporter.add_argument("--port", type=some_port, default=9465, metavar="PORT", help="0: any (default: 9465)")
    exporter.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    exporter.add_argument(
        "--interval", type=positive, default=15.0, metavar="SECONDS", help="seconds between looks (default: 15)"
    )
    ui = add("ui", "serve a read-only web page of tables, without a pipeline", _ui)
    ui.set_defaults(runs_on=True)
    ui.add_argument("paths", nargs="+", metavar="PATH", help="the tables")
    ui.add_argument("--port", type=some_port, default=9466, metavar="PORT", help="0: any (default: 9466)")
    ui.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    ui.add_argument(
        "--interval", type=positive, default=2.0, metavar="SECONDS", help="seconds between looks (default: 2)"
    )
    fleet_command.add_options(
        add(
            "fleet",
            "maintain all tables below some folders, with any number of such workers",
            fleet_command.fleet,
            rows,
        )
    )


def _add_service(add: _Add) -> None:
    from lakebed.cli import serve_command as commands

    commands.add_serve_options(
        add("serve", "answer over HTTP what tables are, and what to read of them", commands.serve)
    )
    commands.add_token_options(add("token", "make a token for callers of lakebed serve", commands.token))


def _add_files(add: _Add) -> None:
    boards = add("dashboards", "write dashboards for Grafana and alert rules for Prometheus", _dashboards)
    boards.add_argument(
        "--out", required=True, metavar="DIR", help="the folder to write to; files of an earlier call are replaced"
    )
    boards.add_argument(
        "--runbook", metavar="URL", help="where you publish docs/runbook.md (default: alerts link to a copy in DIR)"
    )
    docs = add("docs", "print a page of the documentation, or list all pages", _docs)
    docs.add_argument("page", nargs="?", metavar="PAGE", help="such as runbook, guides/faq or runbook#lakebedtailold")
    example = add("example", "print an example pipeline file, or list all examples", _example)
    example.add_argument("name", nargs="?", metavar="NAME", help="such as orders: lakebed example orders > orders.yml")


def _add_health(add: _Add, rows: argparse.ArgumentParser) -> None:
    from lakebed.cli import database_commands
    from lakebed.cli import health_commands as commands

    resume = add(
        "resume",
        "try again what is parked: tables of a pipeline, merges and settles that kept failing",
        database_commands.resume,
    )
    resume.add_argument("path", metavar="PATH", help="the table, or the database")
    resume.add_argument(
        "tables", nargs="*", metavar="TABLE", help="tables of the database, such as public.orders (default: all)"
    )
    resume.add_argument(
        "--remove-entry",
        metavar="NAME",
        help="remove this entry of the table's log, which can't be read (docs/runbook.md)",
    )
    resnapshot = add(
        "resnapshot", "have Debezium send all rows of tables again, while everything goes on", database_commands.resnapshot
    )  # fmt: skip
    resnapshot.add_argument(
        "file", metavar="FILE", help="the pipeline file of the database, which names the signal_topic"
    )
    resnapshot.add_argument(
        "tables", nargs="+", metavar="TABLE", help="such as public.orders; MariaDB, MySQL: shop.orders"
    )
    resnapshot.add_argument(
        "--where", metavar="SQL", help='only rows for which this is true, in the SQL of the source, such as "id > 17"'
    )
    resnapshot.add_argument(
        "--mirror",
        action=argparse.BooleanOptionalAction,
        help="when all have come, remove those that the source no longer has (default: database.mirror)",
    )
    resnapshot.add_argument(
        "--wait", action="store_true", help="show how far it is, until it is over (database.notification_topic)"
    )
    status = add(
        "status", "show on one screen whether a table is healthy, and if not, why and what to do", commands.status, rows
    )
    doctor = add("doctor", "check a table's log and files against every invariant", commands.doctor, rows)
    claims = add("claims", "list which replica merges which parts of a table, and until when", commands.claims, rows)
    compactions = add(
        "compactions", "list the newest merges of a table, and what each cost", commands.compactions, rows
    )
    for command in (status, doctor, claims, compactions):
        command.add_argument(
            "path",
            metavar="PATH",
            help="the table" if command is not status else "the table, or a database: a row a table",
        )
    looks = status.add_mutually_exclusive_group()
    looks.add_argument("--watch", action="store_true", help="refresh it every two seconds, until Ctrl-C")
    looks.add_argument("--deep", action="store_true", help="include the findings of lakebed doctor --deep")
    doctor.add_argument("--deep", action="store_true", help="read every row of the newest version too")
    compactions.add_argument(
        "--last", type=count, default=1000, metavar="N", help="merges among the newest N commits (default: 1000)"
    )


def _add_quarantine(add: _Add, rows: argparse.ArgumentParser) -> None:
    from lakebed.cli import confirm
    from lakebed.cli.quarantine_command import quarantine

    command = add(
        "quarantine", "show the records that could not become rows, and why, or apply those that are fine now", quarantine, rows
    )  # fmt: skip
    command.usage = "lakebed quarantine [replay] PATH [--where SQL] [--last N] [--pipeline FILE] [--yes]"
    command.add_argument("path", nargs="+", metavar="PATH", help="the table, or the pipeline file that writes to it")
    command.add_argument("--where", metavar="SQL", help='only records for which this is true, such as "offset" > 17')
    command.add_argument("--last", type=count, default=20, metavar="N", help="show the newest N (default: 20)")
    command.add_argument(
        "--pipeline", metavar="FILE", help="replay: the pipeline file, whose format decodes the records"
    )
    confirm.add_option(command)


def _add_compaction(add: _Add, rows: argparse.ArgumentParser) -> None:
    from lakebed.cli import compaction_commands as commands

    plan = add("plan", "show what maintenance would do to a table now, and why", commands.plan, rows)
    compact = add("compact", "merge parts of a table until the plan is empty", commands.compact, rows)
    maintain = add("maintain", "keep a table that others write to settled and compact", commands.maintain)
    recluster = add(
        "recluster", "sort parts of a table together, so that fewer cover a point of its sort key", commands.recluster, rows
    )  # fmt: skip
    set_sort_key = add(
        "set-sort-key", "change the sort key of a table; existing parts are sorted later", commands.set_sort_key
    )  # fmt: skip
    for command in (plan, compact, maintain, recluster, set_sort_key):
        command.add_argument("path", metavar="PATH", help="the table")
    recluster.add_argument(
        "--final",
        action="store_true",
        help="go on until every level is shallow and every part is sorted; without it, one level",
    )
    recluster.add_argument("--where", metavar="SQL", help="only parts that may hold rows for which this is true")
    recluster.add_argument("--dry-run", action="store_true", help="only estimate what it would read and write")
    set_sort_key.add_argument(
        "columns", nargs="*", metavar="COLUMN", help="the sort key in order, as for create; none: the keys"
    )
    maintain.set_defaults(runs_on=True)
    maintain.add_argument("--duration", type=positive, metavar="SECONDS", help="stop after so many seconds")
    maintain.add_argument(
        "--metrics-port", type=port_or_file, default=None, metavar="PORT", help="a port, 0 (any), or off (default)"
    )
    maintain.add_argument("--host", help="where metrics listen (default: 127.0.0.1)")


def _add_cleanup(add: _Add, rows: argparse.ArgumentParser) -> None:
    from lakebed.cli import cleanup_commands as commands

    expire = add(
        "expire-snapshots",
        "expire old versions: delete their log files and data files",
        commands.expire_snapshots,
        rows,
    )
    orphans = add("remove-orphan-files", "delete files that no version refers to", commands.remove_orphan_files, rows)
    vacuum = add("vacuum", "delete data files of old versions, and orphans", commands.vacuum, rows)
    age = "such as '7 days' (default: the table's delta.deletedFileRetentionDuration)"
    old_rows = add("expire-rows", "remove rows whose lakebed.ttl has ended", commands.expire_rows, rows)
    old_rows.add_argument("path", metavar="PATH", help="the table")
    old_rows.add_argument(
        "--no-dry-run", action="store_false", dest="dry_run", help="remove them; without it they are only counted"
    )
    for command in (expire, orphans, vacuum):
        command.add_argument("path", metavar="PATH", help="the table")
        command.add_argument(
            "--older-than", metavar="AGE", help="such as '36 hours' (default: 3 days)" if command is orphans else age
        )
        command.add_argument(
            "--no-dry-run", action="store_false", dest="dry_run", help="delete them; without it they are only listed"
        )
        command.add_argument(
            "--allow-short-retention",
            action="store_true",
            help="allow less than an hour; make sure that nobody else uses the table",
        )
    expire.add_argument(
        "--retain-last", type=int, default=1, metavar="N", help="keep the newest N versions (default: 1)"
    )


def _add_positions(add: _Add, rows: argparse.ArgumentParser) -> None:
    from lakebed.cli import confirm
    from lakebed.cli import position_commands as commands

    positions = add("positions", "list up to which offsets a table has read its source", commands.positions, rows)
    rewind = add(
        "rewind", "have a table read a topic of its source again, while its pipeline runs", commands.rewind, rows
    )
    restart = add(
        "restart-order",
        "have what a table reads from now on count as newer than all that it has: its source goes on at lower positions",
        commands.restart_order,
        rows,
    )
    for command in (positions, rewind, restart):
        command.add_argument("path", metavar="PATH", help="the table")
    rewind.add_argument("topic", metavar="TOPIC", help="as lakebed positions lists it")
    rewind.add_argument(
        "--to",
        type=int,
        metavar="OFFSET",
        help="read from here on (default: from where the pipeline file says to begin)",
    )
    rewind.add_argument("--partition", type=int, metavar="N", help="of one partition only")
    confirm.add_option(rewind)


def _add_schema(add: _Add, rows: argparse.ArgumentParser) -> None:
    from lakebed.cli import confirm
    from lakebed.cli import schema_commands as commands

    alter = add("alter", "change the columns of a table, while streams and merges go on", commands.alter, rows)
    schemas = add("schemas", "list the schemas that a table has had, with the reason for each", commands.schemas, rows)
    for command in (alter, schemas):
        command.add_argument("path", metavar="PATH", help="the table")
    commands.add_options(alter)
    confirm.add_option(alter)


def _add_mutations(add: _Add, rows: argparse.ArgumentParser) -> None:
    from lakebed.cli import confirm
    from lakebed.cli import mutation_commands as commands

    where = "a SQL expression in DuckDB's dialect over the columns; true means every row"
    delete = add("delete", "delete rows", commands.delete, rows)
    update = add("update", "set columns of rows", commands.update, rows)
    update.add_argument(
        "--set", action="append", required=True, metavar="COLUMN=EXPRESSION", dest="assignments",
        help="the new value of a column, computed from the old row; may be given several times",
    )  # fmt: skip
    purge = commands.with_purge_options(add("purge", "erase rows for good, in all versions", commands.purge, rows))
    for command in (delete, update, purge):
        command.add_argument("--where", required=True, help=where)
    truncate = add("truncate", "delete all rows of a table", commands.truncate, rows)
    restore = add("restore", "bring back an earlier version of a table", commands.restore, rows)
    restore.add_argument(
        "--positions", action="store_true", help="positions of topics go back too: what was read since is read again"
    )
    which = restore.add_mutually_exclusive_group(required=True)
    which.add_argument("--version", type=int, metavar="N", help="as lakebed timeline lists it")
    which.add_argument(
        "--timestamp", metavar="TIME", help="the newest version until then, such as '2026-01-31T12:00:00Z'"
    )
    detach = add(
        "detach-partition",
        "remove a partition from a table; it can be attached again or dropped",
        commands.detach,
        rows,
    )
    attach = add("attach-partition", "put a detached partition back", commands.attach, rows)
    drop = add("drop-detached", "delete a detached partition for good", commands.drop, rows)
    detached = add("detached", "list the detached partitions of a table", commands.detached, rows)
    for command in (delete, update, purge, truncate, restore, detach, attach, drop, detached):
        command.add_argument("path", metavar="PATH", help="the table")
    detach.add_argument(
        "partition", nargs="+", metavar="COLUMN=VALUE", help="one for each partition column; no value means null"
    )
    for command in (delete, purge, truncate, restore, drop):
        confirm.add_option(command)
    for command in (attach, drop):
        command.add_argument("name", metavar="NAME", help="as lakebed detached lists it")


# Each command imports what it needs: a query must not wait for Spark.


def _exporter(options: argparse.Namespace) -> int:
    from lakebed.cli.exporter_command import exporter

    return exporter(options)


def _ui(options: argparse.Namespace) -> int:
    from lakebed.cli.ui_command import ui

    return ui(options)


def _run(options: argparse.Namespace) -> int:
    from lakebed.cli.run_command import run_pipeline

    return run_pipeline(
        options.file,
        duration_seconds=options.duration,
        only=options.only,
        events_per_second=options.rate,
        metrics_port=options.metrics_port,
        log_format=options.log_format,
        host=options.host,
    )


def _dashboards(options: argparse.Namespace) -> int:
    from lakebed.cli.dashboards_command import dashboards

    return dashboards(options)


def _docs(options: argparse.Namespace) -> int:
    from lakebed.cli.manual_commands import docs

    return docs(options)


def _init(options: argparse.Namespace) -> int:
    from lakebed.cli.init_command import init

    return init(options)


def _example(options: argparse.Namespace) -> int:
    from lakebed.cli.manual_commands import example

    return example(options)


def _validate(options: argparse.Namespace) -> int:
    from lakebed.cli.validate_command import validate

    return validate(options.file, options.connect)


def _simulate(options: argparse.Namespace) -> int:
    from lakebed.cli.simulate_command import SimulateOptions, run_simulation

    chosen = SimulateOptions(
        source=options.source,
        days=options.days,
        rate=options.rate,
        row_bytes=options.row_bytes,
        read_budget=options.read_budget,
        order=options.order,
        updates=options.updates,
        plan_bytes_max=options.plan_bytes_max,
        volatile=options.volatile,
        png=options.png,
        printed=options,
        log_format=options.log_format,
    )
    return run_simulation(chosen)
