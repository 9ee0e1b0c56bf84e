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

    server = PageServer(options.paths, options.host, options.port, options.interval)
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
