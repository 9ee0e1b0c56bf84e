"""``lakebed events``: what commits did to tables, printed or sent to listeners."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import TYPE_CHECKING

from lakebed.cli import exit_codes
from lakebed.cli.arguments import until_stopped
from lakebed.cli.logs import note, shown
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput

if TYPE_CHECKING:
    from lakebed.listeners.event_types import TableEvent
    from lakebed.listeners.listener import Listener, Wanted
    from lakebed.listeners.targets import Target

_ONCE_SECONDS = 0.2


def add_to(commands: Commands) -> None:
    """Add ``events``."""
    family = commands.family("events", "print what commits did to tables, or send it to listeners")
    _add_print(family)
    _add_listen(family)
    listing = family.add("list", "list the listeners for the events of tables", _list, "lake", rows=True)
    listing.add_argument("path", metavar="FOLDER", help="the folder of the tables")
    deliver = family.add("deliver", "send the events of tables to their listeners", _deliver, "lake", runs_on=True)
    deliver.add_argument("path", metavar="FOLDER", help="the folder of the tables and of their listeners")
    deliver.add_argument("--duration", type=float, metavar="SECONDS", help="stop after this many seconds")
    deliver.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve metrics at this port, 0: any (default: none)"
    )
    deliver.add_argument("--host", default="127.0.0.1", help="where metrics listen (default: 127.0.0.1)")


def _add_print(family: Commands) -> None:
    parser = family.add("print", "print what commits did to tables", _print, "lake --follow", runs_on=True)
    parser.add_argument("path", metavar="PATH", help="a table, or a folder of tables")
    parser.add_argument(
        "--format", choices=("lines", "json"), default="lines", help="json: CloudEvents, one per line (default: lines)"
    )
    parser.add_argument(
        "--after", metavar="CURSOR", help="a version of a table, or the cursor that an earlier call printed"
    )
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C; without --after from now on")
    _add_wanted(parser)


def _add_listen(family: Commands) -> None:
    listen = family.add(
        "listen",
        "add, change or remove a listener for the events of tables",
        _listen,
        "lake shop --webhook https://hooks.example/lake --table 'public.*'",
    )
    listen.add_argument("path", metavar="FOLDER", help="the folder of the tables")
    listen.add_argument("name", metavar="NAME", help="the name of the listener: a-z, 0-9, - and _")
    where = listen.add_mutually_exclusive_group(required=True)
    where.add_argument("--webhook", metavar="URL", help="send each event as a POST")
    where.add_argument("--kafka", metavar="HOST:PORT", help="write each event to --topic; several brokers with commas")
    where.add_argument(
        "--catalog",
        metavar="URL",
        help="have a catalog follow: thrift://HOST:PORT, glue://REGION, or the url of a REST catalog",
    )
    where.add_argument("--remove", action="store_true", help="remove the listener, and how far it has got")
    listen.add_argument(
        "--secret", default="", metavar="VARIABLE", help="webhook: the variable with the secret, LAKEBED_SECRET_…"
    )
    listen.add_argument("--topic", metavar="NAME", help="kafka: the topic")
    listen.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="kafka or a REST catalog: a setting of the client, such as security.protocol=SASL_SSL; may be given several times",
    )
    listen.add_argument(
        "--as",
        dest="form",
        choices=("delta", "iceberg"),
        help="catalog: enter tables as (default: delta; REST: iceberg)",
    )
    listen.add_argument(
        "--database", metavar="NAME", help="catalog: the database there (default: {schema}, which is that of the table)"
    )
    listen.add_argument(
        "--from",
        dest="begin",
        choices=("newest", "oldest"),
        default="newest",
        help="where a new listener begins (default: newest; a catalog: with all tables as they are)",
    )
    _add_wanted(listen)


def _add_wanted(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table", dest="tables", action="append", metavar="PATTERN", help="such as 'public.*' (default: all tables)"
    )
    parser.add_argument(
        "--kind",
        dest="kinds",
        action="append",
        default=[],
        metavar="KIND",
        help="such as appended (default: all); may be given several times, as --table may",
    )


def _print(options: argparse.Namespace) -> int:
    """Print the events of tables, one a line, and at the end where they end."""
    from lakebed.listeners.feed import At, Cursor, Feed

    done = until_stopped()
    wanted, feed = _wanted(options), Feed(options.path)
    if options.after is None:
        cursor = feed.newest(wanted.wants_table) if options.follow else Cursor()
    elif options.after.isdecimal():
        [name, *others] = feed.tables()
        if others:
            raise InvalidInput(f"{options.path} has several tables; --after takes the cursor of an earlier call there")
        cursor = Cursor({name: At(int(options.after))})
    else:
        cursor = Cursor.of_text(options.after)
    shown_errors: dict[str, tuple[object, ...]] = {}
    while not done.is_set():
        batch = feed.read(cursor, wanted=wanted.wants_table)
        for event in batch.events:
            if wanted.wants(event):
                print(_line(event, feed.root, options.format), flush=options.follow)
        for name, error in batch.errors.items():
            if not options.follow:
                raise error
            if shown_errors.get(name) != error.args:
                note(f"{name} can't be read: {error}")
        shown_errors = {name: error.args for name, error in batch.errors.items()}
        moved, cursor = batch.cursor is not cursor, batch.cursor
        if not options.follow and not moved and not batch.more:
            break
        if options.follow and not batch.more:
            done.wait(max(_ONCE_SECONDS, min(1.0, feed.pause_seconds())))
    note(f"the next call goes on with --after {cursor.to_text()}")
    return exit_codes.OK


def _line(event: TableEvent, root: str, form: str) -> str:
    from dataclasses import fields

    import orjson

    from lakebed.listeners.event_types import TableEvent, cloud_event, data_of

    if form == "json":
        return orjson.dumps(cloud_event(event, root)).decode()
    common = {each.name for each in fields(TableEvent)}
    at = "" if event.time_ms is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.time_ms / 1000))
    own = " ".join(f"{name}={_text(value)}" for name, value in data_of(event).items() if name not in common)
    return shown(f"{at:20} {event.table} {event.version} {event.kind} {own}".rstrip())


def _text(value: object) -> str:
    import orjson

    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _listen(options: argparse.Namespace) -> int:
    """Add, change or remove a listener."""
    from lakebed.listeners.feed import Feed
    from lakebed.listeners.listener import Listener, ListenerLog

    feed = Feed(options.path)
    log = ListenerLog(feed.root)
    if options.remove:
        log.remove(options.name)
        print(f"listener {options.name} is removed")
        return exit_codes.OK
    wanted = _wanted(options)
    listener = Listener(name=options.name, target=_target(options), tables=wanted.tables, kinds=wanted.kinds)
    if feed.is_table():
        raise InvalidInput(f"{options.path} is a table; listeners are kept by a folder with tables: give that one")
    if log.put(listener, listener.beginning(feed, oldest=options.begin == "oldest")):
        what = "has it follow" if options.catalog is not None else "sends it events"
        print(f"listener {options.name} is added; lakebed events deliver {options.path} {what}")
    else:
        print(f"listener {options.name} is changed; it goes on where it is")
    return exit_codes.OK


def _list(options: argparse.Namespace) -> int:
    """A row for each listener: where it sends, who delivers, and how far it is behind."""
    import pyarrow as pa

    from lakebed.cli.output import print_rows
    from lakebed.cli.views import LISTENERS
    from lakebed.listeners.listener import ListenerLog
    from lakebed.storage.data_files import open_part_storage

    there, delivering = ListenerLog(open_part_storage(options.path).root).state()
    rows = []
    for name, one in there.items():
        by = delivering.get(name)
        rows.append(
            {
                "listener": name,
                "to": _where(one.target),
                "tables": ", ".join(one.tables),
                "kinds": _kinds(one),
                "delivered_by": by.process if by else None,
                "behind_seconds": by.behind_seconds if by else None,
                "failing_since": by.since_ms or None if by else None,
                "error": by.error or None if by else None,
            }
        )
    text, stamp = pa.string(), pa.timestamp("ms", "UTC")
    kinds = [text, text, text, text, text, pa.float64(), stamp, text]
    names = ["listener", "to", "tables", "kinds", "delivered_by", "behind_seconds", "failing_since", "error"]
    print_rows(pa.Table.from_pylist(rows, pa.schema(list(zip(names, kinds, strict=True)))), options, LISTENERS)
    return exit_codes.OK


def _kinds(listener: Listener) -> str:
    """Which events a listener is sent, or which of them have a catalog's entries looked at."""
    from lakebed.listeners.targets import Catalog

    if isinstance(listener.target, Catalog) and not listener.target.is_iceberg:
        return "definitions"
    return ", ".join(listener.kinds) or "all"


def _where(target: Target) -> str:
    """Where a listener is sent events, or which catalog follows."""
    from lakebed.listeners.targets import Catalog, KafkaTopic

    match target:
        case KafkaTopic():
            return f"{target.servers} {target.topic}"
        case Catalog():
            return f"{target.url} as {target.format}"
        case _:
            return target.url


def _deliver(options: argparse.Namespace) -> int:
    """Deliver to listeners until Ctrl-C or SIGTERM, or for ``--duration`` seconds."""
    from lakebed import events as process_events
    from lakebed.listeners.delivery import Deliverer
    from lakebed.monitoring.event_log import log_fields
    from lakebed.monitoring.metrics import Metrics

    done, deliverer = until_stopped(), Deliverer(options.path)
    metrics = Metrics()
    unlisten = process_events.listen(metrics)
    server = None
    if options.metrics_port is not None:
        server = metrics.serve(options.host, options.metrics_port, "--metrics-port")
    if options.log_format == "json":
        log_fields(logging.INFO, "delivering", {"path": deliverer.feed.root, "process": deliverer.process})
    else:
        print(f"lakebed: {deliverer.process} delivers to the listeners of {deliverer.feed.root}", file=sys.stderr)
    deliverer.start()
    done.wait(options.duration)
    deliverer.close()
    unlisten()
    if server is not None:
        server.close()
    return exit_codes.OK


def _wanted(options: argparse.Namespace) -> Wanted:
    from lakebed.listeners.listener import Wanted

    return Wanted(tables=tuple(options.tables or ("*",)), kinds=tuple(options.kinds))


def _target(options: argparse.Namespace) -> Target:
    from lakebed.listeners.targets import Catalog, KafkaTopic, Webhook

    if options.catalog is None and (options.form or options.database):
        raise InvalidInput("--as and --database are for --catalog")
    if options.webhook is not None:
        if options.topic is not None or options.config:
            raise InvalidInput("--topic and --config are for --kafka")
        return Webhook(url=options.webhook, secret=options.secret)
    pairs = [each.partition("=") for each in options.config]
    for name, equals, _ in pairs:
        if not equals:
            raise InvalidInput(f"--config {name!r} has no =; write NAME=VALUE")
    config = {name: value for name, _, value in pairs}
    if options.catalog is not None:
        if options.secret or options.topic is not None:
            raise InvalidInput("--catalog has neither --topic nor --secret: its secrets are in --config")
        how = {"format": options.form, "database": options.database}
        return Catalog(url=options.catalog, config=config, **{name: value for name, value in how.items() if value})
    if options.secret or options.topic is None:
        raise InvalidInput("--kafka needs --topic, and has no --secret: its secrets are in --config")
    return KafkaTopic(servers=options.kafka, topic=options.topic, config=config)
