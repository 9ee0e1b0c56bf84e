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
    from lakebed.cli.database_commands import is_table
    from lakebed.ingest.database.tables import tables_below
    from lakebed.monitoring.event_log import log_fields
    from lakebed.ui.server import PageServer

    databases = [path for path in options.paths if not is_table(path) and tables_below(path)]
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
