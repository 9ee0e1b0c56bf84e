"""``lakebed run`` and ``lakebed maintain``: signals, display, page and summary around a run of a pipeline; a worker of a fleet.

The first Ctrl-C or SIGTERM asks the run to stop, and it ends with exit code 0; the second ends it at once. A stop that
takes longer than ``STOP_SECONDS_MAX`` is cut short: nothing is lost, the next run continues after the last commit.

``lakebed maintain`` of a table is a run that only maintains; of folders it is a worker of the fleet that shares their tables.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from lakebed import events
from lakebed.cli import exit_codes, logs
from lakebed.cli.arguments import is_table, look_seconds, port_or_file, positive, some_port, until_stopped
from lakebed.cli.logs import note
from lakebed.cli.parser import Commands, near_table
from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite, TableNotFound, Unexpected
from lakebed.failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.fleet.worker import FleetWorker, Limits
    from lakebed.pipeline.check import Role
    from lakebed.pipeline.document import Document
    from lakebed.pipeline.run import Look
    from lakebed.pipeline.settings import AnyPipeline
    from lakebed.service.app import Server
    from lakebed.sparks.cluster import Cluster
    from lakebed.ui.pages import PageServer


STOP_SECONDS_MAX = 45.0
LOOK_SECONDS = 2.0
_WHERE = "page.host and page.port of the pipeline file"
_logger = logging.getLogger("lakebed.run")
P = TypeVar("P", bound="AnyPipeline")


def add_to(commands: Commands) -> None:
    """Add ``run`` and ``maintain``."""
    run = commands.add("run", "run a pipeline until it is stopped", _run_pipeline, "pipeline.yml", runs_on=True)
    run.add_argument("file", metavar="FILE", help="the pipeline file (lakebed docs pipeline)")
    run.add_argument(
        "--only", choices=("ingest", "maintain"), help="do half of the work; another process does the other"
    )
    run.add_argument("--rate", type=positive, metavar="N", help="events per second of the generator")
    run.add_argument("--duration", type=positive, metavar="SECONDS", help="stop after this many seconds")
    run.add_argument(
        "--metrics-port",
        type=port_or_file,
        default="file",
        metavar="PORT",
        help="a port, 0 (any), off, or file (default): as the file says",
    )
    run.add_argument("--host", help="where metrics and page listen (default: as in the file)")
    _add_maintain(commands)


def _run_pipeline(options: argparse.Namespace) -> int:
    """Run a pipeline file; returns the exit code. Raises LakebedError, with secrets redacted."""
    from lakebed.pipeline.settings import Pipeline, load

    pipeline = load(options.file)
    if options.rate is not None:
        from lakebed.pipeline.sources import with_rate

        if not isinstance(pipeline, Pipeline):
            raise InvalidInput(f"--rate is for the generator; {options.file} is of a database, which has none")
        pipeline = with_rate(pipeline, options.rate)
    if options.metrics_port != "file":
        pipeline = replace(pipeline, metrics=replace(pipeline.metrics, port=options.metrics_port))
    return _run(_at_host(pipeline, options.host), options.duration, options.only, options.log_format)


def _maintain_table(options: argparse.Namespace, path: str) -> int:
    """Maintain a table that others write to; returns the exit code. Raises LakebedError."""
    from lakebed import table
    from lakebed.pipeline.settings import maintenance_of

    for name in _OF_A_FLEET:
        if getattr(options, name) not in (None, []):
            raise InvalidInput(f"--{name.replace('_', '-')} is for folders of tables, and {path} is a table")
    table.open(path)  # raises before anything starts if it can't be read
    pipeline = maintenance_of(path)
    pipeline = replace(
        pipeline, metrics=replace(pipeline.metrics, port=options.metrics_port), page=replace(pipeline.page, port=None)
    )
    return _run(_at_host(pipeline, options.host), options.duration, "maintain", options.log_format)


def _at_host(pipeline: P, host: str | None) -> P:
    """The pipeline with its metrics and its page at another address; None leaves them where they are."""
    if host is None:
        return pipeline
    return replace(pipeline, metrics=replace(pipeline.metrics, host=host), page=replace(pipeline.page, host=host))


def _run(pipeline: AnyPipeline, duration_seconds: float | None, only: Role | None, log_format: str) -> int:
    from lakebed.pipeline.driver import SparkStart

    logs.hide(pipeline.document.redact)
    stop = _StopRequest()
    try:
        start = SparkStart(pipeline, maintains=only == "maintain")
        with start:  # whatever fails before Spark is wanted, Java does not stay behind
            start.begin()
            # Java starts while these are imported, and PySpark, whose modules import one another: only one thread may do that.
            import pyspark.sql  # noqa: F401

            from lakebed.cli.run_display import display, log_summary, summary
            from lakebed.pipeline.run import run

            with display(pipeline, log_format) as shown, served_page(pipeline) as page_url, start:

                def watch(look: Look) -> None:
                    stop.take_signals()  # Spark takes SIGINT for itself when it starts
                    if look.phase == "stopping":
                        stop.limit()
                    shown(replace(look, page_url=page_url))

                outcome = run(pipeline, start, stop.event, watch, duration_seconds, only)
    except Exception as error:
        # A trace could show secrets too, so there is none if the file has any.
        raise _text_of(error, pipeline.document) from (None if pipeline.document.secrets else error)
    finally:
        stop.done()
    if log_format == "json":
        log_summary(outcome)
    else:
        summary(outcome, pipeline)
    return exit_codes.OK


@contextmanager
def served_page(pipeline: AnyPipeline) -> Iterator[str | None]:
    """Serves the page until the block ends: its address, or None if the file turns it off.

    The page is of the table, or of all tables of a database, with what only this process knows. A port that is taken is no
    reason not to ingest: then it is any free one, as for the metrics. Raises MissingPrerequisite if there is none.
    """
    from lakebed.pipeline.settings import Pipeline
    from lakebed.ui.documents import Live
    from lakebed.ui.pages import PageServer

    page = pipeline.page
    if page.port is None:
        yield None
        return
    live = Live()

    def server_at(port: int) -> PageServer:
        paths, databases = ([pipeline.path], []) if isinstance(pipeline, Pipeline) else ([], [pipeline.path])
        return PageServer(paths, page.host, port, LOOK_SECONDS, live, databases=databases, where=_WHERE)

    try:
        server = server_at(page.port)
    except MissingPrerequisite as error:
        server = server_at(0)
        _logger.warning("%s; until then the page is at %s", error, server.url)
    stop = events.listen(live)
    server.start()
    try:
        yield server.url
    finally:
        stop()
        server.close()


class _StopRequest:
    """The request to stop that a signal makes."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._limit: threading.Timer | None = None
        self.take_signals()

    def take_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != self._asked:
                signal.signal(number, self._asked)

    def limit(self) -> None:
        """Give the stop ``STOP_SECONDS_MAX`` from now on."""
        if self._limit is None:
            self._limit = threading.Timer(STOP_SECONDS_MAX, self._give_up)
            self._limit.daemon = True
            self._limit.start()

    def done(self) -> None:
        if self._limit is not None:
            self._limit.cancel()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.event.is_set():
            os._exit(exit_codes.INTERRUPTED)  # the JVM ends itself when the pipe to it breaks
        self.event.set()
        self.limit()

    def _give_up(self) -> None:
        logs.note(
            f"the run did not stop within {STOP_SECONDS_MAX:.0f} s and was cut short; the next run continues after the last "
            "commit"
        )
        os._exit(exit_codes.FAILED)


def _text_of(error: Exception, document: Document) -> LakebedError:
    """The error to show: without secrets, and without the long text that Spark adds."""
    if isinstance(error, LakebedError):
        return error.with_text(document.redact(str(error)))
    return Unexpected(document.redact(f"unexpected {type(error).__name__}: {first_line(error)}; --debug shows where"))


# -- A worker of a fleet -----------------------------------------------------------------------------------------------------

_SAY_SECONDS = 60.0
_OF_A_FLEET = ("look_seconds", "cores", "memory", "share", "spark", "poke_port", "tokens")


def _add_maintain(commands: Commands) -> None:
    """Add ``maintain``."""
    maintain = commands.add(
        "maintain",
        "keep tables that others write to settled and compact",
        _maintain,
        "s3://lake/shop --cores 8 --memory 16GB",
        runs_on=True,
    )
    add = maintain.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a table, or folders of tables; workers of the same folders share the tables, and the first folder has their log",
    )
    add("--duration", type=positive, metavar="SECONDS", help="stop after this many seconds")
    add("--metrics-port", type=some_port, metavar="PORT", help="serve metrics at this port; 0: any (default: none)")
    add("--host", default="127.0.0.1", help="where the ports listen (default: 127.0.0.1)")
    of_folders = maintain.add_argument_group("for folders")
    add = of_folders.add_argument
    add(
        "--look-seconds",
        type=look_seconds,
        metavar="N",
        help="look at an idle table every N seconds at least (default: 300); where hints come, it may be longer",
    )
    add("--cores", type=_cores, metavar="N", help="threads that merge (default: all processors)")
    add("--memory", type=_memory_bytes, metavar="BYTES", help="such as 8GB (default: 4GiB)")
    add(
        "--share",
        type=_share,
        action="append",
        default=[],
        metavar="POOL=N",
        help="the weight of a pool of tables (lakebed.pool), 1 for others; repeatable",
    )
    add("--spark", metavar="MASTER", help="have large merges run on this cluster, such as spark://host:7077")
    add(
        "--poke-port",
        type=some_port,
        metavar="PORT",
        help="take POST /poke, that tables have changed, at this port; 0: any (default: none)",
    )
    add("--tokens", metavar="FILE", help="who may poke: lines that lakebed serve token makes")


def _maintain(options: argparse.Namespace) -> int:
    """Maintain one table, or all below folders. Raises LakebedError."""
    first, *others = options.paths
    if not is_table(first):
        return _work(options)
    if others:
        raise InvalidInput(f"{first} is a table; give it alone, or folders of tables")
    return _maintain_table(options, first)


def _work(options: argparse.Namespace) -> int:
    """Maintain the tables of folders until Ctrl-C or SIGTERM, or for ``--duration`` seconds. Raises TableNotFound."""
    from lakebed.discovery import tables_in
    from lakebed.fleet.worker import FleetWorker, Limits
    from lakebed.monitoring.event_log import log_fields
    from lakebed.monitoring.metrics import Metrics

    limits = Limits(
        cores=options.cores or Limits().cores,
        memory_bytes=options.memory or Limits().memory_bytes,
        shares=dict(options.share),
        look_seconds=options.look_seconds,
    )
    for path in options.paths:
        if "://" not in path and not os.path.isdir(path):
            raise TableNotFound(f"there is no folder {path}{near_table(path)}")
        if not tables_in(path):
            note(f"there is no table below {path} yet; one that comes is found within ten minutes")
    done = until_stopped()
    worker = FleetWorker(options.paths, limits, cluster=_cluster(options, limits))
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
        return sessions.start_session("lakebed maintain", master, conf)

    return Cluster(begin, name=master, merges_max=limits.cluster_merges_max)


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
