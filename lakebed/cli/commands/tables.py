"""``lakebed query`` and ``show``; ``create``, ``convert``, ``alter`` and ``restore`` make a table or change what it is.

``lakebed delete | update | purge``, and ``lakebed partition``: changes of rows and of whole partitions.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed.cli import exit_codes
from lakebed.cli.arguments import (
    add_yes,
    confirmed,
    count,
    cut_outside_brackets,
    names,
    pairs,
    parse_columns,
    plain,
    table_of,
    takes_table,
)
from lakebed.cli.commands.maintenance import show_maintenance
from lakebed.cli.logs import note, progress
from lakebed.cli.parser import Commands, Parser
from lakebed.errors import InvalidInput

if TYPE_CHECKING:
    from lakebed.log.snapshot import Snapshot


_WHERE = "a SQL expression in DuckDB's dialect over the columns; true means every row"


def _add_changes(commands: Commands) -> None:
    """Add the commands."""
    delete = commands.add("delete", "delete rows", _delete, "lake/orders --where \"status = 'void'\"", rows=True)
    update = commands.add(
        "update", "set columns of rows", _update, "lake/orders --set amount=amount*2 --where 'id = 7'", rows=True
    )
    purge = commands.add(
        "purge",
        "erase rows for good, in all versions",
        _purge,
        "lake/orders --where 'customer_id = 7' --dry-run",
        rows=True,
    )
    takes_table(delete, update, purge)
    which = delete.add_mutually_exclusive_group(required=True)
    which.add_argument("--where", help=_WHERE)
    which.add_argument("--all", action="store_true", help="all rows, also those in the tail, without reading them")
    update.add_argument(
        "--set",
        action="append",
        required=True,
        metavar="COLUMN=EXPRESSION",
        dest="assignments",
        help="the new value of a column, computed from the old row; repeatable",
    )
    for command in (update, purge):
        command.add_argument("--where", required=True, help=_WHERE)
    purge.add_argument("--dry-run", action="store_true", help="only list the files that have such rows")
    purge.add_argument("--force", action="store_true", help="end the holds of readers on older versions")
    purge.add_argument(
        "--quarantine",
        metavar="CONDITION",
        help="a condition on the quarantine: which records go; 'true' for all (default: those with a key of the rows)",
    )
    family = commands.family("partition", "take partitions out of a table, and put them back")
    detach = family.add(
        "detach",
        "remove a partition from a table; it can be attached again or dropped",
        _detach,
        "lake/orders day=2026-01-31",
        rows=True,
    )
    attach = family.add("attach", "put a detached partition back", _attach, "lake/orders NAME", rows=True)
    drop = family.add("drop", "delete a detached partition for good", _drop, "lake/orders NAME", rows=True)
    _add_kind(family, "list", "detached", "list the partitions that are detached")
    takes_table(detach, attach, drop)
    detach.add_argument(
        "partition", nargs="+", metavar="COLUMN=VALUE", help="one for each partition column; no value means null"
    )
    for command in (attach, drop):
        command.add_argument("name", metavar="NAME", help="as lakebed partition list has it")
    add_yes(delete, purge, drop)


def _delete(options: argparse.Namespace) -> int:
    from lakebed.sql import expression, names_a_column

    table = table_of(options)
    [figures] = table.inspect.detail().to_pylist()
    if options.all:
        tail = f" and {figures['tail_rows']:,} changes in the tail" if figures["tail_rows"] else ""
        what = f"delete --all takes all {figures['rows']:,} rows{tail} out of {options.path}"
        return _print({"version": table.truncate()}, options) if confirmed(what, options) else exit_codes.FAILED
    if not names_a_column(expression(options.where, "where")):
        what = (
            f"--where {options.where!r} names no column: it deletes all of the {figures['rows']:,} rows of {options.path}, "
            "or none"
        )
        if not confirmed(what, options):
            return exit_codes.FAILED
    return _print(table.delete(options.where), options)


def _update(options: argparse.Namespace) -> int:
    assignments = _pairs(options.assignments, "--set")
    return _print(table_of(options).update(assignments, options.where), options)


def _purge(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import PURGED

    table = table_of(options)
    what = (
        f"purge erases the rows of {options.path} with --where {options.where!r} for good, and ends all versions of the table "
        "until now"
    )
    if not options.dry_run and not confirmed(what, options):
        return exit_codes.FAILED
    with progress("looking for rows" if options.dry_run else "purging", options.log_format):
        report = table.purge(options.where, dry_run=options.dry_run, force=options.force, quarantine=options.quarantine)
    print_rows(report, options, PURGED)
    left = report["gone_at"].null_count
    if options.dry_run:
        note(f"{len(report):,} files have such rows; without --dry-run they go")
    else:
        note(f"{len(report) - left:,} files are gone" + (f", {left:,} are not yet: see their notes" if left else ""))
    return exit_codes.OK


def _detach(options: argparse.Namespace) -> int:
    partition = _pairs(options.partition, "the partition")
    return _print({"name": table_of(options).detach_partition(partition)}, options)


def _attach(options: argparse.Namespace) -> int:
    return _print({"version": table_of(options).attach_partition(options.name)}, options)


def _drop(options: argparse.Namespace) -> int:
    if not confirmed(f"partition drop deletes {options.name} of {options.path} for good", options):
        return exit_codes.FAILED
    return _print({"files_deleted": table_of(options).drop_detached(options.name)}, options)


def _pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """``column=value`` texts; spaces around the column are ignored. Raises InvalidInput."""
    return {plain(name): value for name, value in pairs(texts, "=", what, form="COLUMN=VALUE").items()}


def _print(result: Any, options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record

    print_record(result, options)
    return exit_codes.OK


# -- ``lakebed show``: what the log of a table says, as tables -------------------------------------------------------------


_KINDS = {
    "figures": "how large the table is, its keys and sort key, and what is in its tail",
    "parts": "the parts of the table",
    "commits": "the newest commits, and what each did",
    "merges": "the newest merges, and what each cost",
    "plan": "what maintenance would do now, and why",
    "claims": "which replica merges which parts, and until when",
    "clustering": "how well the table is clustered by its sort key, level by level",
    "schemas": "the schemas that the table has had, with the reason for each",
    "properties": "the properties of the table that are set",
}


def _add_show(commands: Commands) -> None:
    family = commands.family("show", "show parts, commits, merges and more of a table")
    parsers = {kind: _add_kind(family, kind, kind, text) for kind, text in _KINDS.items()}
    parsers["parts"].add_argument(
        "--at-version", type=int, metavar="N", help="list those of this version (default: the newest)"
    )
    parsers["commits"].add_argument(
        "--last", type=count, default=20, metavar="N", help="list the newest N (default: 20)"
    )
    parsers["merges"].add_argument(
        "--last", type=count, default=1000, metavar="N", help="merges among the newest N commits (default: 1000)"
    )
    parsers["clustering"].add_argument(
        "--png", metavar="FILE", help="draw the parts over the sort key, and their depth"
    )
    costs = family.add(
        "maintenance", "what maintenance of tables cost, and would gain", show_maintenance, "lake", rows=True
    )
    costs.add_argument("paths", nargs="+", metavar="PATH", help="a table, or a folder of tables")


def _add_kind(family: Commands, name: str, kind: str, text: str) -> Parser:
    """Add a command that shows one kind of table; ``kind``: as in ``_KINDS``, or ``detached``."""
    parser = family.add(name, text, partial(_show, kind), "lake/orders", rows=True)
    takes_table(parser)
    return parser


def _show(kind: str, options: argparse.Namespace) -> int:
    import pyarrow as pa

    from lakebed.cli import views
    from lakebed.cli.output import print_rows

    table = table_of(options)
    inspect = table.inspect
    view: views.View | None = None
    match kind:
        case "parts":
            rows, view = inspect.parts(options.at_version), views.PARTS
        case "commits":
            rows, view = inspect.timeline(options.last), views.TIMELINE
        case "merges":
            rows, view = inspect.compactions(options.last), views.COMPACTIONS
        case "plan":
            rows, view = table.maintenance.plan(), views.PLAN
        case "claims":
            rows, view = inspect.claims(), views.CLAIMS
        case "clustering":
            rows, view = inspect.clustering(), views.CLUSTERING
        case "schemas":
            rows, view = inspect.schemas(), views.SCHEMAS
        case "detached":
            rows, view = inspect.detached(), views.DETACHED
        case "properties":
            listed = [{"name": name, "value": value} for name, value in sorted(table.properties.items())]
            rows = pa.Table.from_pylist(listed)
        case _:
            rows, view = inspect.detail(), views.RECORD
    print_rows(rows, options, view)
    if kind == "clustering" and options.png is not None:
        inspect.draw_clustering(options.png)
    return exit_codes.OK


# -- ``lakebed query`` -----------------------------------------------------------------------------------------------------


def add_to(commands: Commands) -> None:
    """Add the commands."""
    _add_show(commands)
    query = commands.add(
        "query",
        "query the newest version of a table, tail included, in SQL",
        _query,
        "lake/orders 'select count(*) from orders'",
        rows=True,
    )
    takes_table(query)
    query.add_argument("sql", metavar="SQL", help="in DuckDB's dialect; the table has the name of its folder")
    query.add_argument("--name", help="another name for the table in the SQL")
    query.add_argument(
        "--allow-files",
        action="store_true",
        help="allow any statement, also to read and write files; for trusted SQL only",
    )
    create = commands.add(
        "create",
        "create a table",
        _create,
        "lake/orders --schema 'id long not null, name string, updated_at timestamp' --keys id --sequence-by updated_at",
    )
    convert = commands.add(
        "convert", "adopt a Delta table, without rewriting its files", _convert, "lake/orders --keys id"
    )
    takes_table(create, convert)
    create.add_argument(
        "--schema",
        required=True,
        metavar="COLUMNS",
        help="names and types, such as 'id long not null, name string'; or a YAML file with them, or with a pipeline",
    )
    for each in (create, convert):
        each.add_argument(
            "--keys", metavar="NAMES", help="columns that identify a row (default: none, rows are only added)"
        )
        each.add_argument("--sequence-by", metavar="NAME", help="orders the changes of a key (default: their arrival)")
        each.add_argument("--sort-key", metavar="TERMS", help="such as 'date(ts) desc, id' (default: the keys)")
    create.add_argument("--partition-by", metavar="NAMES", help="columns that cut the table into partitions")
    create.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="such as 'lakebed.ttl=created_at: 30 days'; repeatable",
    )
    create.add_argument("--wide", action="store_true", help="give each column the widest type of its kind")
    _add_alter(commands)
    _add_restore(commands)
    _add_changes(commands)


def _add_alter(commands: Commands) -> Parser:
    alter = commands.add(
        "alter",
        "change the columns, the sort key or the properties of a table",
        _alter,
        "lake/orders --add coupon:string --widen qty:long",
        rows=True,
    )
    takes_table(alter)
    for option, form, text in (
        ("--add", "NAME:TYPE", "a column to add, such as coupon:string; null in the rows that are there"),
        ("--widen", "NAME:TYPE", "a column and its wider type, such as qty:long"),
        ("--rename", "NAME=NEW", "a column and its new name"),
        ("--drop", "NAME", "a column to drop"),
        ("--relax", "NAME", "a column that may be null from now on"),
        ("--comment", "NAME=TEXT", "a comment on a column; without a text it is removed"),
    ):
        alter.add_argument(option, action="append", default=[], metavar=form, help=f"{text}; repeatable")
    alter.add_argument(
        "--sort-key",
        metavar="TERMS",
        help="as for create, or '' for the keys; not with other changes. Parts are sorted later",
    )
    alter.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property to set, such as lakebed.read_budget=12; not with other changes; repeatable",
    )
    alter.add_argument("--reason", default="", metavar="TEXT", help="why, for lakebed show schemas")
    alter.add_argument("--dry-run", action="store_true", help="change nothing, only say what it would cost")
    add_yes(alter)
    return alter


def _add_restore(commands: Commands) -> Parser:
    restore = commands.add(
        "restore", "bring back an earlier version of a table", _restore, "lake/orders --version 17", rows=True
    )
    takes_table(restore)
    restore.add_argument(
        "--positions",
        action="store_true",
        help="set the positions of topics back too, so what was read since is read again",
    )
    which = restore.add_mutually_exclusive_group(required=True)
    which.add_argument("--version", type=int, metavar="N", help="as lakebed show commits lists it")
    which.add_argument("--timestamp", metavar="TIME", help="the newest up to this time, such as '2026-01-31T12:00:00Z'")
    add_yes(restore)
    return restore


def _query(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows

    print_rows(table_of(options).query(options.sql, options.name, allow_files=options.allow_files), options)
    return exit_codes.OK


def _create(options: argparse.Namespace) -> int:
    from lakebed import table
    from lakebed.schema.type_names import table_schema

    made = table.create(
        options.path,
        table_schema(_columns(options.schema)),
        names(options.keys or ""),
        _terms(options.sort_key),
        sequence_by=options.sequence_by,
        partition_by=names(options.partition_by or ""),
        properties=pairs(options.property, "=", "--property", form="NAME=VALUE"),
        types="wide" if options.wide else "given",
    )
    print(f"created {made.path} with {len(made.schema)} columns")
    return exit_codes.OK


def _columns(text: str) -> dict[str, str]:
    """The columns that ``--schema`` says, in its text or in a file. Raises InvalidInput, InvalidSchema."""
    if not text.endswith((".yml", ".yaml")):
        return parse_columns(text)
    import yaml

    try:
        found = yaml.safe_load(Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"--schema {text} can't be read: {' '.join(str(error).split())}") from None
    if isinstance(found, dict) and isinstance(found.get("table"), dict):
        found = found["table"].get("schema")  # of a pipeline file
    if not isinstance(found, dict) or not found or not all(isinstance(kind, str) for kind in found.values()):
        raise InvalidInput(f"--schema {text} has no columns; write a line for each, such as id: long not null")
    return {str(name): kind for name, kind in found.items()}


def _terms(text: str | None) -> list[str]:
    """The terms of a sort key."""
    return [term.strip() for term in cut_outside_brackets(text or "")]


def _convert(options: argparse.Namespace) -> int:
    from lakebed import table

    made = table.convert(options.path, names(options.keys or ""), _terms(options.sort_key), options.sequence_by)
    print(f"{made.path} is a table of lakebed now, at version {made.version}; from now on only lakebed writes to it")
    return exit_codes.OK


def _alter(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record

    table = table_of(options)
    added, widened = (
        pairs(texts, ":", option, form="NAME:TYPE")
        for option, texts in (("--add", options.add), ("--widen", options.widen))
    )
    renamed = pairs(options.rename, "=", "--rename", form="NAME=TEXT")
    comments = pairs(options.comment, "=", "--comment", form="NAME=TEXT")
    properties = pairs(options.property, "=", "--property", form="NAME=VALUE")
    if options.sort_key is not None or properties:
        alone = "--property" if options.sort_key is None else "--sort-key"
        others = (added, widened, renamed, comments, options.drop, options.relax, options.dry_run)
        if any(others) or (properties and options.sort_key is not None):
            raise InvalidInput(f"{alone} is a change of its own: give other changes, or --dry-run, without it")
        if properties:
            print_record({"version": table.set_properties(properties)}, options)
            return exit_codes.OK
        return _set_sort_key(options)
    change = partial(
        table.alter, add=added, widen=widened, rename=renamed, drop=options.drop, relax=options.relax, comment=comments
    )
    costs = [f"{', '.join(options.drop)} can no longer be read, except at older versions"] if options.drop else []
    costs += change(dry_run=True).notes
    if options.dry_run:
        for each in costs or ["nothing is lost: who can read the table now can read it then"]:
            note(each)
        return exit_codes.OK
    if costs and not confirmed("; ".join(costs), options):
        return exit_codes.FAILED
    result = change(reason=options.reason)
    print_record({"version": result.version, "changed": result.changed}, options)
    return exit_codes.OK


def _set_sort_key(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record

    table = table_of(options)
    version = table.set_sort_key(_terms(options.sort_key))
    [unsorted] = table.inspect.detail()["unsorted_parts"].to_pylist()
    print_record({"version": version, "unsorted_parts": unsorted}, options)
    if unsorted:
        note(f"lakebed maintain sorts the {unsorted:,} parts by it step by step, lakebed recluster --final now")
    return exit_codes.OK


def _restore(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record
    from lakebed.positions.positions import positions_of
    from lakebed.table import internals_of
    from lakebed.view.arrow_scan import snapshot_at

    table = table_of(options)
    log = internals_of(table).log
    now, earlier = log.refresh(), snapshot_at(log, options.version, options.timestamp)
    at = datetime.datetime.fromtimestamp(earlier.timestamp_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    between = now.version - earlier.version
    what = (
        f"restore makes {options.path} what it was at version {earlier.version}, {at}: {_size(earlier)} in place of "
        f"{_size(now)}; the {between:,} versions since stay readable"
    )
    if not confirmed(what, options):
        return exit_codes.FAILED
    version = table.restore(earlier.version, positions=options.positions)
    read_then, read_now = positions_of(earlier), {} if options.positions else positions_of(now)
    for topic, position in read_now.items():
        if topic not in read_then or read_then[topic].offsets != position.offsets:
            since = f"from {dict(read_then[topic].offsets)} on" if topic in read_then else "from its beginning"
            note(
                f"what was read of {topic} since then, {since}, is not in the table; with --positions it is read again"
            )
    print_record({"version": version, "restored": earlier.version}, options)
    return exit_codes.OK


def _size(snapshot: Snapshot) -> str:
    rows = sum(part.live_rows for part in snapshot.parts.values())
    changes = sum(part.rows for part in snapshot.tail.values())
    return f"{rows:,} rows" + (f" and {changes:,} changes in the tail" if changes else "")
