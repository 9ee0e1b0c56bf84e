"""``lakebed exporter``: the gauges of many tables, without a pipeline."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading

from lakebed.cli import exit_codes


def exporter(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    from lakebed.health.exporter import Exporter
    from lakebed.monitoring.event_log import log_fields
    from lakebed.monitoring.metrics import Metrics

    metrics = Metrics()
    watched = Exporter(options.paths, metrics, options.interval)
    server = metrics.serve(options.host, options.port, "--port")
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    if options.log_format == "json":
        log_fields(logging.INFO, "serving", {"url": server.url})
    else:
        print(f"lakebed: metrics at {server.url}", file=sys.stderr, flush=True)
    watched.start()
    done.wait()
    watched.close()
    server.close()
    return exit_codes.OK
