"""``lakebed fleet``: workers that maintain all tables below some folders, and what that costs and gains."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import TYPE_CHECKING

from lakebed import events
from lakebed.cli import exit_codes
from lakebed.cli.arguments import until_stopped
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput, MissingPrerequisite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.compaction.cluster import Cluster
    from lakebed.fleet.worker import FleetWorker, Limits
    from lakebed.service.app import Server

_SAY_SECONDS = 60.0


def add_to(commands: Commands) -> None:
    """Add ``fleet``."""
    family = commands.family("fleet", "maintain all tables of folders, with any number of workers")
    run = family.add("run", "be a worker of the fleet", _run, "s3://lake/shop --cores 8 --memory 16GB", runs_on=True)
    report = family.add(
        "report", "list what maintenance of each table cost, and would gain", _report, "lake", rows=True
    )
    estimate = family.add("estimate", "print what a day of idle tables costs", _estimate, "10000 --look-seconds 600")
    run.add_argument(
        "roots", nargs="+", metavar="FOLDER", help="a folder with tables; the first one holds the fleet's own log"
    )
    report.add_argument("roots", nargs="+", metavar="FOLDER", help="the folders of the fleet")
    estimate.add_argument("tables", type=int, metavar="N", help="how many tables, to which nothing comes")
    estimate.add_argument(
        "roots", nargs="*", metavar="FOLDER", help="folders of a fleet, to count its workers (default: one worker)"
    )
    for each in (run, estimate):
        each.add_argument(
            "--look-seconds",
            type=_look_seconds,
            metavar="N",
            help="look at an idle table every N seconds at least (default: 300); where hints come, it may be longer",
        )
    run.add_argument("--cores", type=_cores, metavar="N", help="threads that merge (default: all processors)")
    run.add_argument("--memory", type=_memory_bytes, metavar="BYTES", help="such as 8GB (default: 4GiB)")
    run.add_argument(
        "--share",
        type=_share,
        action="append",
        default=[],
        metavar="POOL=N",
        help="the weight of a pool of tables (lakebed.pool), 1 for others; repeatable",
    )
    run.add_argument(
        "--spark", metavar="MASTER", help="have large merges run on this cluster, such as spark://host:7077"
    )
    run.add_argument("--duration", type=float, metavar="SECONDS", help="stop after this many seconds")
    run.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve metrics at this port; 0 means any (default: none)"
    )
    run.add_argument(
        "--poke-port",
        type=int,
        metavar="PORT",
        help="take POST /poke, that tables have changed, at this port; 0 means any (default: none)",
    )
    run.add_argument("--tokens", metavar="FILE", help="who may poke: lines that lakebed serve token makes")
    run.add_argument("--host", default="127.0.0.1", help="where both ports listen (default: 127.0.0.1)")


def _report(options: argparse.Namespace) -> int:
    from lakebed.cli.commands.health import print_findings
    from lakebed.cli.display.output import print_rows
    from lakebed.cli.display.views import FLEET
    from lakebed.fleet.membership import listed_workers
    from lakebed.fleet.report import fleet_report
    from lakebed.health.finding import finding_table
    from lakebed.health.run_report import findings_of

    roots = options.roots
    for worker in listed_workers(roots[0]) if options.format == "table" else ():
        until = time.strftime("%H:%M:%S", time.gmtime(worker.until_ms / 1000))
        print(f"worker {worker.id}: {worker.cores:g} cores, alive until {until} UTC at least", file=sys.stderr)
    found = fleet_report(roots)
    print_rows(found, options, FLEET)
    findings = findings_of(found["path"].to_pylist())
    if options.format == "json":
        print_rows(finding_table(findings), options)
    else:
        print_findings(findings)
    return exit_codes.OK if found["error"].null_count == len(found) and not findings else exit_codes.FAILED


def _estimate(options: argparse.Namespace) -> int:
    from lakebed.discovery import SECONDS_MAX
    from lakebed.fleet.membership import BEAT_SECONDS, listed_workers
    from lakebed.fleet.report import day_of_looks
    from lakebed.fleet.worker import DISCOVERY_SECONDS

    workers = max(1, len(listed_workers(options.roots[0]))) if options.roots else 1
    seconds = options.look_seconds or SECONDS_MAX
    day = day_of_looks(
        options.tables, workers, look_seconds=seconds, beat_seconds=BEAT_SECONDS, discovery_seconds=DISCOVERY_SECONDS
    )
    print(
        f"a day of {options.tables:,} tables to which nothing comes, and {workers} worker{'s' if workers > 1 else ''}:"
    )
    often = f"every {seconds:.0f} seconds; more often where lakebed.freshness asks for it"
    print(f"  {day.looks:12,.0f} looks, one GET each: {often}")
    print(f"  {day.listings:12,.0f} listings of logs")
    print(f"  {day.beats:12,.0f} beats of workers, and {day.discoveries:,.0f} listings of folders")
    print(f"  {day.reads:12,.0f} GET and {day.writes:,.0f} PUT or LIST: ${day.dollars:,.2f} at S3's list price")
    return exit_codes.OK


def _run(options: argparse.Namespace) -> int:
    """Work until Ctrl-C or SIGTERM, or for ``--duration`` seconds."""
    from lakebed.fleet.worker import FleetWorker, Limits
    from lakebed.monitoring.event_log import log_fields
    from lakebed.monitoring.metrics import Metrics

    limits = Limits(
        cores=options.cores or Limits().cores,
        memory_bytes=options.memory or Limits().memory_bytes,
        shares=dict(options.share),
        look_seconds=options.look_seconds,
    )
    done = until_stopped()
    worker = FleetWorker(options.roots, limits, cluster=_cluster(options, limits))
    metrics = Metrics()
    unlisten = events.listen(metrics)
    server = None
    if options.metrics_port is not None:
        server = metrics.serve(options.host, options.metrics_port, "--metrics-port")
    pokes = None if options.poke_port is None else _poke_server(options, worker)
    worker.start()
    if pokes is not None:
        pokes.start()
    if options.log_format != "json":
        print(f"lakebed: worker {worker.id} of the fleet at {worker.roots[0]}", file=sys.stderr, flush=True)
    ends_at = time.monotonic() + options.duration if options.duration else None
    before = None
    while not done.wait(min(1.0 if before is None else _SAY_SECONDS, _left(ends_at))) and _left(ends_at) > 0:
        state = worker.state()
        figures = {
            "workers": len(state.workers),
            "tables": state.known,
            "owned": state.owned,
            "standing_by": state.standing_by,
            "unseen": state.unseen,
            "active": state.active,
            "waiting": state.waiting,
            "looks": state.looks,
            "troubles": len(state.troubles),
        }
        if options.log_format == "json":
            log_fields(logging.INFO, "fleet", figures)
        elif figures["owned"] and figures != before:
            print(
                "lakebed: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items()),
                file=sys.stderr,
                flush=True,
            )
        before = figures if figures["owned"] else None
    if pokes is not None:
        pokes.close()
    worker.close()
    unlisten()
    if server is not None:
        server.close()
    return exit_codes.OK


def _poke_server(options: argparse.Namespace, worker: FleetWorker) -> Server:
    """The server of pokes; its port is taken. Raises InvalidInput, MissingPrerequisite."""
    try:
        from lakebed.http import Listening
        from lakebed.service.app import poke_server
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"--poke-port needs {error.name}: pip install 'lakebed[serve]'") from None
    server = poke_server(
        worker.poked,
        Listening(host=options.host, port=options.poke_port, option="--poke-port"),
        options.tokens,
    )
    if options.log_format != "json":
        print(f"lakebed: pokes are taken at {server.url}/poke", file=sys.stderr, flush=True)
    return server


def _cluster(options: argparse.Namespace, limits: Limits) -> Cluster | None:
    if options.spark is None:
        return None
    from lakebed import session as sessions
    from lakebed.compaction.cluster import Cluster, require_master

    if options.spark.startswith("local") or not options.spark.strip():
        raise InvalidInput(
            f"--spark {options.spark}: this is no cluster; merges run in this process without the option"
        )
    sessions.require_java()
    master = options.spark
    # Spark's own settings (SPARK_CONF_DIR, spark-defaults.conf) say what a cluster needs beside its address. lakebed must be
    # installed on the machines of the cluster, or be given to them (spark.submit.pyFiles).
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",  # what becomes of merges is in lakebed's own log
        **sessions.executor_environment(),
    }

    def begin() -> SparkSession:
        require_master(master)
        sessions.prepare_environment(master)
        return sessions.start_session("lakebed fleet run", master, conf)

    return Cluster(begin, name=master, merges_max=limits.cluster_merges_max)


def _left(ends_at: float | None) -> float:
    return _SAY_SECONDS if ends_at is None else max(0.0, ends_at - time.monotonic())


def _cores(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cores from 1 to 1024")
    return int(text)


def _look_seconds(text: str) -> float:
    if not text.isdecimal() or not 1 <= int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return float(text)


def _share(text: str) -> tuple[str, float]:
    pool, _, number = text.partition("=")
    try:
        share = float(number)
    except ValueError:
        share = 0.0
    if not pool or not 0 < share <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a pool and its share, such as reports=0.5")
    return pool, share


def _memory_bytes(text: str) -> int:
    """``8GB``, ``512MiB`` or bytes."""
    units: dict[str, int] = {f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)}
    units |= {f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)}
    lowered = text.strip().lower()
    unit = next((unit for unit in sorted(units, key=len, reverse=True) if lowered.endswith(unit)), "")
    digits = lowered.removesuffix(unit).strip()
    if not digits.isdecimal() or int(digits) * units.get(unit, 1) < 256 * 2**20:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 256MiB, such as 8GB")
    return int(digits) * units.get(unit, 1)
