"""``lakebed run`` and ``lakebed maintain``: signals, display, summary around a run of a pipeline.

The first Ctrl-C or SIGTERM asks the run to stop, and it ends with exit code 0; the second ends it at once. A stop that
takes longer than ``STOP_SECONDS_MAX`` is cut short: nothing is lost, the next run continues after the last commit.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Literal, TypeVar

from lakebed.cli import exit_codes, logs
from lakebed.error_transport import first_line
from lakebed.errors import InvalidInput, LakebedError, Unexpected
from lakebed.pipeline.file.document import Document
from lakebed.pipeline.file.settings import AnyPipeline, Pipeline, load, maintenance_of
from lakebed.pipeline.spark.driver import SparkStart

if TYPE_CHECKING:
    from lakebed.pipeline.check import Role
    from lakebed.pipeline.run import Look

STOP_SECONDS_MAX = 45.0
P = TypeVar("P", bound=AnyPipeline)


def run_pipeline(
    file: str,
    *,
    duration_seconds: float | None,
    only: Role | None,
    events_per_second: float | None,
    metrics_port: int | Literal["file"] | None = "file",
    log_format: str = "off",
    host: str | None = None,
) -> int:
    """Run a pipeline file; returns the exit code. Raises LakebedError, with secrets redacted."""
    pipeline = load(file)
    if events_per_second is not None:
        from lakebed.pipeline.sources import with_rate

        if not isinstance(pipeline, Pipeline):
            raise InvalidInput(f"--rate is for the generator; {file} is of a database, which has none")
        pipeline = with_rate(pipeline, events_per_second)
    if metrics_port != "file":
        pipeline = replace(pipeline, metrics=replace(pipeline.metrics, port=metrics_port))
    return _run(_at_host(pipeline, host), duration_seconds, only, log_format)


def maintain_table(
    path: str,
    duration_seconds: float | None,
    metrics_port: int | None,
    log_format: str = "off",
    host: str | None = None,
) -> int:
    """Maintain a table that others write to; returns the exit code. Raises LakebedError."""
    from lakebed import table

    table.open(path)  # raises before anything starts if there is no table
    pipeline = maintenance_of(path)
    pipeline = replace(
        pipeline, metrics=replace(pipeline.metrics, port=metrics_port), page=replace(pipeline.page, port=None)
    )
    return _run(_at_host(pipeline, host), duration_seconds, "maintain", log_format)


def _at_host(pipeline: P, host: str | None) -> P:
    """The pipeline with its metrics and its page at another address; None leaves them where they are."""
    if host is None:
        return pipeline
    return replace(pipeline, metrics=replace(pipeline.metrics, host=host), page=replace(pipeline.page, host=host))


def _run(pipeline: AnyPipeline, duration_seconds: float | None, only: Role | None, log_format: str) -> int:
    logs.hide(pipeline.document.redact)
    stop = _StopRequest()
    try:
        start = SparkStart(pipeline, maintains=only == "maintain")
        with start:  # whatever fails before Spark is wanted, Java does not stay behind
            start.begin()
            # Java starts while these are imported, and PySpark, whose modules import one another: only one thread may do that.
            import pyspark.sql  # noqa: F401

            from lakebed.cli.display import display, log_summary, summary
            from lakebed.cli.page import served_page
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
