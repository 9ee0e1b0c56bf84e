"""Shows on stderr how far a long command is: a bar on a terminal, else a line every few seconds; nothing if it ends soon.

with progress("vacuum", options.log_format) as report:
    report("listing files", 3, 10)
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lakebed.cli.logs import shown
from lakebed.monitoring.event_log import Value, log_fields

FIRST_SECONDS = 1.0
LINE_SECONDS = 5.0
_BAR_SECONDS = 0.2
_TERMINALS_WITHOUT_BARS = ("dumb", "unknown")  # these can't overwrite a line

Report = Callable[[str, int | None, int | None], None]
"""The step, how much of it is done, and of how much; None if not known. It is cheap enough to call for each row."""


@dataclass(frozen=True, slots=True)
class _Reported:
    what: str
    done: int | None = None
    of: int | None = None


class _Progress:
    def __init__(self, what: str, log_format: str | None) -> None:
        self._reported = _Reported(what)
        self._log_format = log_format
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="lakebed-progress", daemon=True)
        self._thread.start()

    def report(self, what: str, done: int | None = None, of: int | None = None) -> None:
        self._reported = _Reported(what, done, of)

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        if sys.stderr.isatty() and os.environ.get("TERM") not in _TERMINALS_WITHOUT_BARS:
            if not self._over.wait(FIRST_SECONDS):
                self._draw()
            return
        while not self._over.wait(LINE_SECONDS):
            self._print_line()

    def _print_line(self) -> None:
        reported, seconds = self._reported, time.monotonic() - self._began
        if self._log_format in ("text", "json"):
            fields: dict[str, Value | None] = {
                "what": reported.what,
                "done": reported.done,
                "of": reported.of,
                "seconds": round(seconds, 1),
            }
            log_fields(logging.INFO, "progress", {name: value for name, value in fields.items() if value is not None})
            return
        print(f"lakebed: {shown(reported.what)}{_counted(reported)}, {seconds:,.0f} s", file=sys.stderr, flush=True)

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[counted]}", markup=False),
            TimeElapsedColumn(),
        )
        console = Console(file=sys.stderr)
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
            task = bar.add_task("", total=None, counted="")
            while True:
                reported = self._reported
                bar.update(
                    task,
                    description=shown(reported.what),
                    total=reported.of,
                    completed=reported.done or 0,
                    counted=_counted(reported).lstrip(": "),
                )
                if self._over.wait(_BAR_SECONDS):
                    return


@contextmanager
def progress(what: str, log_format: str | None = None) -> Iterator[Report]:
    """Show how far the block is while it runs; until the first report, show ``what``."""
    shown = _Progress(what, log_format)
    try:
        yield shown.report
    finally:
        shown.close()


def _counted(reported: _Reported) -> str:
    if reported.done is None:
        return ""
    return f": {reported.done:,}" + (f" of {reported.of:,}" if reported.of is not None else "")
