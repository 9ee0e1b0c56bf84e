"""``lakebed ui``: a web page of tables, without a pipeline."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading

from lakebed.cli import exit_codes


def ui(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    from lakebed.monitoring.event_log import log_fields
    from lakebed.ui.server import PageServer

    databases = [path for path in options.paths if is_database(path)]
    paths = [path for path in options.paths if path not in databases]
    server = PageServer(paths, options.host, options.port, options.interval, databases=databases)
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    server.start()
    if options.log_format == "json":
        log_fields(logging.INFO, "serving", {"url": server.url})
    else:
        print(f"lakebed: the page is at {server.url}", file=sys.stderr, flush=True)
    done.wait()
    server.close()
    return exit_codes.OK


def is_database(path: str) -> bool:
    """Whether there are tables below the path. One that can't be looked at is shown as a table, with the reason."""
    from lakebed.cli.database_commands import is_table
    from lakebed.cli.logs import note
    from lakebed.discovery.tables import tables_below
    from lakebed.errors import InvalidInput, LakebedError

    try:
        return not is_table(path) and bool(tables_below(path))
    except InvalidInput:
        raise
    except LakebedError as error:
        note(f"{path} can't be looked at now, and is shown as one table: {error}")
        return False
