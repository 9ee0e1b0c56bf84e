"""``lakebed serve``: what answers over HTTP of tables: the service, its tokens, the web page, and the metrics.

``lakebed fleet``: workers that maintain all tables below some folders, and what that costs and gains.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lakebed import events
from lakebed.cli import exit_codes
from lakebed.cli.arguments import is_table, positive, some_port, tables_at, until_stopped
from lakebed.cli.logs import note
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite, TableNotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.fleet.worker import FleetWorker, Limits
    from lakebed.service.app import Server
    from lakebed.sparks.cluster import Cluster


_SAY_SECONDS = 60.0


def _add_fleet(commands: Commands) -> None:
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
    from lakebed.fleet.membership import fleet_report, listed_workers
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
    from lakebed.fleet.membership import BEAT_SECONDS, day_of_looks, listed_workers
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
    from lakebed.sparks import session as sessions
    from lakebed.sparks.cluster import Cluster, require_master

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


_DISCOVERY_SECONDS = 60.0
_PATHS = "tables, or folders of tables"


def add_to(commands: Commands) -> None:
    """Add ``serve``."""
    family = commands.family("serve", "serve an API, a web page or the metrics of tables over HTTP")
    api = family.add(
        "api",
        "answer over HTTP what tables are, and what to read of them",
        _api,
        "lake --tokens tokens.txt",
        runs_on=True,
    )
    page = family.add("page", "serve a read-only web page of tables", _page, "lake", runs_on=True)
    gauges = family.add(
        "metrics", "serve the gauges of tables to Prometheus", _metrics, "lake --port 9465", runs_on=True
    )
    token = family.add(
        "token", "make a token for callers of lakebed serve api", _token, "ada --role operator --tokens tokens.txt"
    )
    for each, port in ((api, 9467), (page, 9466), (gauges, 9465)):
        each.add_argument("paths", nargs="+", metavar="PATH", help=_PATHS)
        each.add_argument("--port", type=some_port, default=port, metavar="PORT", help=f"0: any (default: {port})")
        each.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    for each, seconds in ((page, 2), (gauges, 15)):
        text = f"seconds between looks (default: {seconds})"
        each.add_argument("--interval", type=positive, default=float(seconds), metavar="SECONDS", help=text)
    api.add_argument(
        "--tokens", metavar="FILE", help="who may read and who may change: lines that lakebed serve token makes"
    )
    api.add_argument("--certificate", metavar="FILE", help="for HTTPS: the certificate and its chain, in PEM")
    api.add_argument("--key", metavar="FILE", help="for HTTPS: the private key, in PEM")
    api.add_argument(
        "--share-keys",
        action="store_true",
        help="give readers of Iceberg that have a token, and ask for them, the keys with which this service reaches S3",
    )
    token.add_argument("name", metavar="NAME", help="whose token it is")
    token.add_argument("--role", choices=("reader", "operator"), default="reader", help="default: reader")
    token.add_argument("--tokens", required=True, metavar="FILE", help="the file that lakebed serve api reads")
    jar = commands.add(
        "spark-jar", "write the jar with which a Spark finds tables by name", _spark_jar, "lakebed-spark.jar"
    )
    jar.add_argument(
        "file",
        metavar="FILE",
        help="where to write it, for the Spark that is installed here; FOLDER/: Delta's jars too",
    )
    _add_fleet(commands)


def _spark_jar(options: argparse.Namespace) -> int:
    from lakebed.sparks.names import write_jar
    from lakebed.sparks.session import require_java, write_jars

    require_java()
    if options.file.endswith("/") or Path(options.file).is_dir():
        version, lacking = write_jars(Path(options.file))
        note(
            f"{options.file} has what the class path of Spark {version} needs (docs/guides/bi-and-connect.md)"
            + (f", but for Delta's jars: {lacking}" if lacking else "")
        )
        return exit_codes.OK
    version = write_jar(Path(options.file))
    note(f"{options.file} is for Spark {version}: give it as spark.jars, with spark.sql.extensions=lakebed.Extensions")
    return exit_codes.OK


def _metrics(options: argparse.Namespace) -> int:
    """Serve the gauges until Ctrl-C or SIGTERM, also those of tables that appear below a folder meanwhile."""
    from lakebed.health.sampler import Exporter
    from lakebed.monitoring.metrics import Metrics

    metrics = Metrics()
    known = _roots(options.paths)
    exporters = [Exporter(known, metrics, options.interval)]
    server = metrics.serve(options.host, options.port, "--port")
    done = until_stopped()
    _say("metrics", server.url, options)
    exporters[0].start()
    while not done.wait(_DISCOVERY_SECONDS):
        if new := [root for root in _roots(options.paths) if root not in known]:
            known += new
            exporters.append(Exporter(new, metrics, options.interval))
            exporters[-1].start()
    for each in exporters:
        each.close()
    server.close()
    return exit_codes.OK


def _roots(paths: list[str]) -> list[str]:
    """The tables that paths mean now. A path without a table, or one that does not answer, is taken for a table to come."""
    found: list[str] = []
    for path in paths:
        try:
            found += tables_at(path).values()
        except InvalidInput:
            raise
        except LakebedError:
            found.append(path)
    return list(dict.fromkeys(found))


def _page(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C or SIGTERM."""
    from lakebed.ui.pages import PageServer

    databases = [path for path in options.paths if is_folder(path)]
    paths = [path for path in options.paths if path not in databases]
    server = PageServer(paths, options.host, options.port, options.interval, databases=databases)
    done = until_stopped()
    server.start()
    _say("the page", server.url, options)
    done.wait()
    server.close()
    return exit_codes.OK


def is_folder(path: str) -> bool:
    """Whether there are tables below the path. One that can't be looked at is shown as a table, with the reason."""
    try:
        return not is_table(path) and bool(tables_at(path))
    except (InvalidInput, TableNotFound) as error:
        if isinstance(error, TableNotFound):
            return False
        raise
    except LakebedError as error:
        note(f"{path} can't be looked at now, and is shown as one table: {error}")
        return False


def _say(what: str, url: str, options: argparse.Namespace) -> None:
    from lakebed.monitoring.event_log import log_fields

    if options.log_format == "json":
        log_fields(logging.INFO, "serving", {"url": url})
    else:
        are = "are" if what.endswith("s") else "is"
        print(f"lakebed: {what} {are} at {url}", file=sys.stderr, flush=True)


def _api(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Raises MissingPrerequisite without the packages of the extra ``serve``."""
    from lakebed.http import is_loopback

    try:
        from lakebed.http import Listening
        from lakebed.listeners.delivery import Deliverer
        from lakebed.service.app import Server, Service, tokens_of
        from lakebed.service.catalog import Catalog
        from lakebed.service.job_routes import JobLoop
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"lakebed serve api needs {error.name}: pip install 'lakebed[serve]'") from None
    from lakebed.service.tokens import new_token

    own = new_token()
    tokens = tokens_of(options.tokens, options.host, own)
    listening = Listening(host=options.host, port=options.port, certificate=options.certificate, key=options.key)
    catalog = Catalog(options.paths)
    server = Server(Service(catalog, tokens, options.host, shares_keys=options.share_keys), listening)
    jobs = JobLoop(catalog)
    deliverers = [Deliverer(root) for root in catalog.folders()]
    done = until_stopped()
    server.start()
    jobs.start()
    for each in deliverers:
        each.start()
    _say("the service and its page", server.url, options)
    if options.tokens is None:
        note(
            f"everybody on this machine may read; the page of an operator, until the service ends: {server.url}/#token={own}"
        )
    elif options.certificate is None and not is_loopback(options.host):
        note("tokens travel in the clear: give --certificate and --key, or put a proxy with TLS before the service")
    done.wait()
    for each in deliverers:
        each.close()
    jobs.close()
    server.close()
    return exit_codes.OK


def _token(options: argparse.Namespace) -> int:
    """Print a new token, and append its line to the file, which only its owner may read then."""
    from lakebed.service.tokens import Role, line_of, new_token

    made = new_token()
    line = line_of(made, Role[options.role.upper()], options.name)
    try:
        number = os.open(options.tokens, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(line + "\n")
    except OSError as error:
        raise InvalidInput(f"the token can't be added to {options.tokens}: {error.strerror}") from None
    print(made)
    note(f"{options.name} has the role {options.role}; the token is shown this once")
    return exit_codes.OK
