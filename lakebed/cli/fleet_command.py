"""``lakebed fleet``: a worker of a fleet that maintains all tables below some folders."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time

from lakebed import events
from lakebed.cli import exit_codes
from lakebed.errors import InvalidInput

# What a command needs is imported when it runs: a parser must not wait for it.

_SAY_SECONDS = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.set_defaults(runs_on=True)
    parser.add_argument(
        "roots",
        nargs="*",
        metavar="ROOT",
        help="folders with tables; the first one has the fleet's own log. report ROOT…: what maintenance cost and would gain",
    )
    parser.add_argument("--cores", type=_cores, metavar="N", help="threads that merge (default: all processors)")
    parser.add_argument("--memory", type=memory_bytes, metavar="BYTES", help="such as 8GB (default: 4GiB)")
    parser.add_argument(
        "--share",
        type=_share,
        action="append",
        default=[],
        metavar="POOL=N",
        help="the share of a pool of tables (lakebed.pool), 1 for others; may be given several times",
    )
    parser.add_argument("--estimate", type=int, metavar="N", help="do nothing; print what a day of N idle tables costs")
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="stop after so many seconds")
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve metrics at this port, 0: any (default: none)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="where metrics listen (default: 127.0.0.1)")


def fleet(options: argparse.Namespace) -> int:
    """Work until Ctrl-C or SIGTERM, or for ``--duration`` seconds; or say what a day of looks costs."""
    if options.estimate is not None:
        return _estimate(options)
    if options.roots[:1] == ["report"]:
        return _report(options)
    if not options.roots:
        raise InvalidInput("lakebed fleet needs a folder with tables, such as s3://lake/shop")
    return _work(options)


def _report(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import FLEET
    from lakebed.fleet.membership import listed_workers
    from lakebed.fleet.report import fleet_report

    roots = options.roots[1:]
    if not roots:
        raise InvalidInput("lakebed fleet report needs the folders of the fleet; a folder of that name is ./report")
    for worker in listed_workers(roots[0]) if options.format == "table" else ():
        until = time.strftime("%H:%M:%S", time.gmtime(worker.until_ms / 1000))
        print(f"worker {worker.id}: {worker.cores:g} cores, alive until {until} UTC at least", file=sys.stderr)
    found = fleet_report(roots)
    print_rows(found, options, FLEET)
    return exit_codes.OK if found["error"].null_count == len(found) else exit_codes.FAILED


def _estimate(options: argparse.Namespace) -> int:
    from lakebed.fleet.cost import day_of_looks
    from lakebed.fleet.membership import BEAT_SECONDS, listed_workers
    from lakebed.fleet.worker import DISCOVERY_SECONDS
    from lakebed.manifest.looks import SECONDS_MAX

    workers = max(1, len(listed_workers(options.roots[0]))) if options.roots else 1
    day = day_of_looks(options.estimate, workers, beat_seconds=BEAT_SECONDS, discovery_seconds=DISCOVERY_SECONDS)
    print(
        f"a day of {options.estimate:,} tables to which nothing comes, and {workers} worker{'s' if workers > 1 else ''}:"
    )
    often = f"every {SECONDS_MAX:.0f} seconds; more often where lakebed.freshness asks for it"
    print(f"  {day.looks:12,.0f} looks, one GET each: {often}")
    print(f"  {day.listings:12,.0f} listings of logs")
    print(f"  {day.beats:12,.0f} beats of workers, and {day.discoveries:,.0f} listings of folders")
    print(f"  {day.reads:12,.0f} GET and {day.writes:,.0f} PUT or LIST: ${day.dollars:,.2f} at S3's list price")
    return exit_codes.OK


def _work(options: argparse.Namespace) -> int:
    from lakebed.fleet.worker import FleetWorker, Limits
    from lakebed.monitoring.event_log import log_fields
    from lakebed.monitoring.metrics import Metrics

    limits = Limits(
        cores=options.cores or Limits().cores,
        memory_bytes=options.memory or Limits().memory_bytes,
        shares=dict(options.share),
    )
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    worker = FleetWorker(options.roots, limits)
    metrics = Metrics()
    unlisten = events.listen(metrics)
    server = None
    if options.metrics_port is not None:
        server = metrics.serve(options.host, options.metrics_port, "--metrics-port")
    worker.start()
    if options.log_format != "json":
        print(f"lakebed: worker {worker.id} of the fleet at {worker.roots[0]}", file=sys.stderr, flush=True)
    ends_at = time.monotonic() + options.duration if options.duration else None
    before = None
    while not done.wait(min(1.0 if before is None else _SAY_SECONDS, _left(ends_at))) and _left(ends_at) > 0:
        state = worker.state()
        figures = {
            "workers": len(state.workers), "tables": state.known, "owned": state.owned, "unseen": state.unseen,
            "active": state.active, "waiting": state.waiting, "looks": state.looks, "troubles": len(state.troubles),
        }  # fmt: skip
        if options.log_format == "json":
            log_fields(logging.INFO, "fleet", figures)
        elif figures["owned"] and figures != before:
            print(
                "lakebed: " + ", ".join(f"{name} {value}" for name, value in figures.items()),
                file=sys.stderr,
                flush=True,
            )
        before = figures if figures["owned"] else None
    worker.close()
    unlisten()
    if server is not None:
        server.close()
    return exit_codes.OK


def _left(ends_at: float | None) -> float:
    return _SAY_SECONDS if ends_at is None else max(0.0, ends_at - time.monotonic())


def _cores(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cores from 1 to 1024")
    return int(text)


def _share(text: str) -> tuple[str, float]:
    pool, _, number = text.partition("=")
    try:
        share = float(number)
    except ValueError:
        share = 0.0
    if not pool or not 0 < share <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pool and its share, such as reports=0.5")
    return pool, share


def memory_bytes(text: str) -> int:
    """``8GB``, ``512MiB`` or bytes."""
    units = {
        "kb": 10**3,
        "mb": 10**6,
        "gb": 10**9,
        "tb": 10**12,
        "kib": 2**10,
        "mib": 2**20,
        "gib": 2**30,
        "tib": 2**40,
    }
    lowered = text.strip().lower()
    unit = next((unit for unit in sorted(units, key=len, reverse=True) if lowered.endswith(unit)), "")
    digits = lowered.removesuffix(unit).strip()
    if not digits.isdecimal() or int(digits) * units.get(unit, 1) < 256 * 2**20:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 256MiB, such as 8GB")
    return int(digits) * units.get(unit, 1)
