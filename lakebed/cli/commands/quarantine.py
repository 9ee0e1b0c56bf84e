"""``lakebed source``: up to where a table has read its source, and reading from it again.

``lakebed quarantine``: what is in the quarantine of a table, and why; and a replay of what is fine now.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lakebed.cli import exit_codes
from lakebed.cli.arguments import add_yes, confirmed, count, end_in_order, table_of, takes_table
from lakebed.cli.logs import hide, note, progress, shown
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput, LakebedError

if TYPE_CHECKING:
    import pyarrow as pa

    from lakebed.pipeline.settings import AnyPipeline


def _add_source(commands: Commands) -> None:
    """Add ``source``."""
    family = commands.family("source", "show how far a source is read, or read from it again")
    positions = family.add(
        "positions", "list up to which offsets a table has read its source", _positions, "lake/orders", rows=True
    )
    rewind = family.add(
        "rewind",
        "have a table read a topic of its source again, while its pipeline runs",
        _rewind,
        "lake/orders shop.public.orders --partition 0 --to 1200",
        rows=True,
    )
    restart = family.add(
        "restart-order",
        "have what a table reads from now on count as newer than all that it has: its source goes on at lower positions",
        _restart_order,
        "lake/orders",
        rows=True,
    )
    takes_table(positions, rewind, restart)
    rewind.add_argument("topic", metavar="TOPIC", help="as lakebed source positions lists it")
    rewind.add_argument(
        "--to",
        type=int,
        metavar="OFFSET",
        help="read from here on (default: from where the pipeline file says to begin)",
    )
    rewind.add_argument("--partition", type=int, metavar="N", help="only this partition, which needs --to")
    add_yes(rewind)
    resnapshot = family.add(
        "resnapshot",
        "have Debezium send all rows of tables again, while everything goes on",
        _resnapshot,
        "shop.yml public.orders --wait",
    )
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


def _positions(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import POSITIONS

    print_rows(table_of(options).inspect.positions(), options, POSITIONS)
    return exit_codes.OK


def _rewind(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record
    from lakebed.table import internals_of

    if options.partition is not None and options.to is None:
        raise InvalidInput("--partition wants --to: the offset to read that partition from")
    table = table_of(options)
    has_keys = internals_of(table).log.refresh().settings.keys
    if not has_keys and not confirmed("the table has no keys, so rows that are read again are in it twice", options):
        return exit_codes.FAILED
    to = options.to if options.partition is None else {options.partition: options.to}
    version = table.maintenance.rewind(options.topic, to)
    print_record({"version": version, "topic": options.topic}, options)
    return exit_codes.OK


def _restart_order(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record

    print_record({"version": table_of(options).maintenance.restart_order()}, options)
    return exit_codes.OK


def _resnapshot(options: argparse.Namespace) -> int:
    """Ask Debezium for the rows of tables again; with ``--wait`` until it has read them."""
    from lakebed.pipeline.database.resnapshot import Asking
    from lakebed.pipeline.settings import DatabasePipeline, load

    pipeline = load(options.file)
    if not isinstance(pipeline, DatabasePipeline):
        raise InvalidInput(f"{options.file} describes one table; this needs the file of a database")
    try:
        asking = Asking(pipeline)
        if options.wait:
            asking.check_waits()
        end_in_order()  # or the tables wait for rows that the connector was not asked for
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


_REASONS_MAX = 20
# Values, and places in them, differ from record to record.
_WITHOUT_DETAILS = (
    r"""regexp_replace(regexp_replace(reason, '"[^"]*"', '"…"', 'g'), ': line \d+ column \d+ \(char \d+\)', '')"""
)
_LINES_LOOKED_AT_BYTES = 64 << 20  # of a file, for the line of a record


def add_to(commands: Commands) -> None:
    """Add ``quarantine``."""
    family = commands.family("quarantine", "show records that could not become rows, or replay them")
    show = family.add(
        "show", "show the records that could not become rows, and why", _show, "lake/orders --last 50", rows=True
    )
    replay = family.add("replay", "apply the records that are fine now", _replay, "orders.yml", rows=True)
    for each in (show, replay):
        each.add_argument("path", metavar="PATH", help="the table, or the pipeline file that writes to it")
        each.add_argument("--where", metavar="SQL", help='only records for which this is true, such as "offset" > 17')
    show.add_argument("--last", type=count, default=20, metavar="N", help="show the newest N (default: 20)")
    replay.add_argument("--pipeline", metavar="FILE", help="the pipeline file, whose format decodes the records")
    add_yes(replay)
    show.set_defaults(pipeline=None)
    _add_source(commands)


def _show(options: argparse.Namespace) -> int:
    from lakebed.cli.output import jsonable, print_rows
    from lakebed.cli.views import QUARANTINE, REASONS
    from lakebed.errors import TableNotFound
    from lakebed.parts.quarantine import QUARANTINE_SUFFIX
    from lakebed.pipeline.settings import Pipeline
    from lakebed.sql import expression
    from lakebed.table import open as open_table

    pipeline = _pipeline_of(options)
    path = (
        (pipeline.table.path if isinstance(pipeline, Pipeline) else options.path)
        .rstrip("/")
        .removesuffix(QUARANTINE_SUFFIX)
    )
    where = expression(options.where or "true", "--where").sql
    try:
        table = open_table(path + QUARANTINE_SUFFIX)
    except TableNotFound:
        open_table(path)  # raises if the table is not there either
        print("the quarantine is empty: every record became a row", flush=True)
        return exit_codes.OK
    found = table.query(
        f'select * from q where {where} order by time desc, topic, partition, "offset" limit {options.last}', "q"
    )
    if options.format == "json":
        for record in _records(found):
            record["time"] = jsonable(record["time"], found.schema.field("time").type)
            print(shown(json.dumps(record, ensure_ascii=False)))
        return exit_codes.OK
    reasons = table.query(
        f"select {_WITHOUT_DETAILS} as reason, count(*) as records, max(time) as newest "
        f"from q where {where} group by 1 order by 2 desc, 1 limit {_REASONS_MAX}",
        "q",
    )
    print_rows(reasons, options, REASONS)
    if len(found):
        print()
        print_rows(_as_table(_records(found), found["time"]), options, QUARANTINE)
    sys.stdout.flush()
    return exit_codes.OK


def _records(found: pa.Table) -> Iterator[dict[str, Any]]:
    """Each record with its bytes as text and, of a local file that still has it, its line."""
    from lakebed.far_times import python_rows

    rows = python_rows(found)
    lines = _lines(rows)
    for row in rows:
        file = _local_file(row["topic"])
        place = {"topic": row["topic"], "partition": row["partition"], "offset": row["offset"]}
        if file is not None:
            place = {"file": file, "line": lines.get((file, row["value"]))}
        texts = {name: None if row[name] is None else _text(row[name]) for name in ("key", "value")}
        yield {"time": row["time"], "reason": row["reason"], **place, **texts}


def _text(value: bytes) -> str:
    """A record's bytes; of one with the header of a schema registry the schema's id, and the bytes behind it."""
    from lakebed.cli.output import bytes_as_text
    from lakebed.decode.typed.registry import HEADER_BYTES, MAGIC

    if len(value) < HEADER_BYTES or value[0] != MAGIC:
        return bytes_as_text(value)
    schema_id, payload = int.from_bytes(value[1:HEADER_BYTES]), value[HEADER_BYTES:]
    return f"schema id {schema_id}, {len(payload)} bytes: {bytes_as_text(payload)}"


def _as_table(records: Iterable[Mapping[str, Any]], times: pa.ChunkedArray) -> pa.Table:
    import pyarrow as pa

    rows = [{"position": _position(record), **record} for record in records]
    texts = pa.schema([(name, pa.string()) for name in ("position", "key", "value", "reason")])
    return pa.Table.from_pylist(rows, texts).add_column(1, "time", times)


def _position(record: Mapping[str, Any]) -> str:
    if "file" in record:
        name = Path(record["file"]).name
        return name if record["line"] is None else f"{name}:{record['line']}"
    if record["topic"] is None:
        return ""
    offset = "" if record["offset"] is None else f"-{record['offset']}"
    return f"{record['topic']}-{record['partition']}{offset}"


def _local_file(topic: str | None) -> str | None:
    """The path of a file that a record came from, if it is on this machine."""
    place = urlsplit(topic or "")
    return unquote(place.path) if place.scheme == "file" else None


def _lines(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, bytes | None], int]:
    """In which line of its file each value is, where that can be found out."""
    wanted: dict[str, set[bytes]] = {}
    for row in rows:
        file = _local_file(row["topic"])
        if file is not None and row["value"] is not None:
            wanted.setdefault(file, set()).add(row["value"])
    found: dict[tuple[str, bytes | None], int] = {}
    for file, values in wanted.items():
        try:
            with Path(file).open("rb") as lines:
                left = _LINES_LOOKED_AT_BYTES
                for number, line in enumerate(lines, 1):
                    left -= len(line)
                    if (value := line.rstrip(b"\r\n")) in values:
                        found.setdefault((file, value), number)
                    if left < 0:
                        break
        except OSError:  # it was moved or deleted since
            continue
    return found


def _replay(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record
    from lakebed.pipeline.database.introducer import decoder_of
    from lakebed.pipeline.sections import ChangesFormat, RowsFormat
    from lakebed.pipeline.settings import DatabasePipeline
    from lakebed.pipeline.sources import open_decoder
    from lakebed.table import internals_of
    from lakebed.table import open as open_table

    pipeline = _pipeline_of(options)
    if pipeline is None:
        raise InvalidInput(
            f"a replay decodes records with the format of a pipeline file: give it as --pipeline FILE, for {options.path}"
        )
    hide(pipeline.document.redact)
    path = _replayed_path(options, pipeline)
    if isinstance(pipeline.format, RowsFormat | ChangesFormat):
        raise InvalidInput(
            f"the format {pipeline.format_kind} has rows, not records that could be decoded again: apply the rows again"
        )
    table = open_table(path)
    [detail] = table.inspect.detail().to_pylist()
    if detail["keys"] and detail["sequence_by"] is None:
        what = f"{path} has no sequence_by, so a replayed record takes the place of a newer row of its key"
        if not confirmed(what, options):
            return exit_codes.FAILED
    decoder = decoder_of(pipeline, table) if isinstance(pipeline, DatabasePipeline) else open_decoder(pipeline, table)
    done = internals_of(table).replay_quarantine(decoder, options.where or "true")
    left = sum(done.left.values())
    print_record({"version": done.version, "records": done.records, "rows": done.rows, "left": left}, options)
    for reason, records in done.left.most_common(_REASONS_MAX):
        note(f"{records:,} stay in the quarantine: {reason}")
    return exit_codes.OK


def _replayed_path(options: argparse.Namespace, pipeline: AnyPipeline) -> str:
    """Of the table. Raises InvalidInput if the pipeline file does not write to it."""
    from lakebed.pipeline.settings import Pipeline
    from lakebed.storage.roots import parse_root

    if isinstance(pipeline, Pipeline):
        path = pipeline.table.path
        if options.pipeline and str(parse_root(options.path)) != str(parse_root(path)):
            raise InvalidInput(f"{options.pipeline} writes to {path}, not to {options.path}")
        return path
    path, database = options.path, pipeline.path
    if not options.pipeline:
        raise InvalidInput(
            f"{path} is the file of a database: say which of its tables, as lakebed quarantine replay "
            f"{database.rstrip('/')}/SCHEMA/TABLE --pipeline {path}"
        )
    if not str(parse_root(path)).startswith(str(parse_root(database)).rstrip("/") + "/"):
        raise InvalidInput(f"{options.pipeline} writes to tables below {database}, and {path} is none of them")
    return str(path)


def _pipeline_of(options: argparse.Namespace) -> AnyPipeline | None:
    """The pipeline file that is given, by its option or in place of the table."""
    from lakebed.pipeline.settings import load, load_table

    file = options.pipeline
    if file is None and options.path.endswith((".yml", ".yaml")) and Path(options.path).is_file():
        file = options.path
    if file is None:
        return None
    return load_table(file) if options.command is _show else load(file)
