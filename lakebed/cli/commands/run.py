"""``lakebed run`` and ``lakebed maintain``: signals, display, page and summary around a run of a pipeline.

The first Ctrl-C or SIGTERM asks the run to stop, and it ends with exit code 0; the second ends it at once. A stop that
takes longer than ``STOP_SECONDS_MAX`` is cut short: nothing is lost, the next run continues after the last commit.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from lakebed import events
from lakebed.cli import exit_codes, logs
from lakebed.cli.arguments import port_or_file, positive, takes_table
from lakebed.cli.parser import Commands
from lakebed.error_transport import first_line
from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite, Unexpected

if TYPE_CHECKING:
    from lakebed.pipeline.check import Role
    from lakebed.pipeline.file.document import Document
    from lakebed.pipeline.file.settings import AnyPipeline
    from lakebed.pipeline.run import Look
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
    maintain = commands.add(
        "maintain",
        "keep a table that others write to settled and compact",
        _maintain_table,
        "lake/orders",
        runs_on=True,
    )
    takes_table(maintain)
    for each, default in ((run, "file"), (maintain, None)):
        each.add_argument("--duration", type=positive, metavar="SECONDS", help="stop after this many seconds")
        text = f"a port, 0 (any), off{' (default)' if default is None else ', or file (default): as the file says'}"
        each.add_argument("--metrics-port", type=port_or_file, default=default, metavar="PORT", help=text)
    run.add_argument("--host", help="where metrics and page listen (default: as in the file)")
    maintain.add_argument("--host", help="where metrics listen (default: 127.0.0.1)")


def _run_pipeline(options: argparse.Namespace) -> int:
    """Run a pipeline file; returns the exit code. Raises LakebedError, with secrets redacted."""
    from lakebed.pipeline.file.settings import Pipeline, load

    pipeline = load(options.file)
    if options.rate is not None:
        from lakebed.pipeline.sources import with_rate

        if not isinstance(pipeline, Pipeline):
            raise InvalidInput(f"--rate is for the generator; {options.file} is of a database, which has none")
        pipeline = with_rate(pipeline, options.rate)
    if options.metrics_port != "file":
        pipeline = replace(pipeline, metrics=replace(pipeline.metrics, port=options.metrics_port))
    return _run(_at_host(pipeline, options.host), options.duration, options.only, options.log_format)


def _maintain_table(options: argparse.Namespace) -> int:
    """Maintain a table that others write to; returns the exit code. Raises LakebedError."""
    from lakebed import table
    from lakebed.pipeline.file.settings import maintenance_of

    table.open(options.path)  # raises before anything starts if there is no table
    pipeline = maintenance_of(options.path)
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
    from lakebed.pipeline.spark.driver import SparkStart

    logs.hide(pipeline.document.redact)
    stop = _StopRequest()
    try:
        start = SparkStart(pipeline, maintains=only == "maintain")
        with start:  # whatever fails before Spark is wanted, Java does not stay behind
            start.begin()
            # Java starts while these are imported, and PySpark, whose modules import one another: only one thread may do that.
            import pyspark.sql  # noqa: F401

            from lakebed.cli.display.run import display, log_summary, summary
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
    from lakebed.pipeline.file.settings import Pipeline
    from lakebed.ui.live import Live
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
