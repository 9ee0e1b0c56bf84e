r"""What a command says on stderr: the log, and how far it is (``progress``).

The log has only warnings, or one line per event (``--log-format``, ``--log-level``).

``text`` is logfmt, ``json`` one object per line, ``off`` only plain warnings. Without the option, the environment decides
(LAKEBED_LOG_FORMAT, LAKEBED_LOG_LEVEL). Without that, commands that run until they are stopped log text, unless stderr is a
terminal.

**Texts** of data and errors are made safe for a terminal (``shown``, ``shown_lines``). A terminal executes control characters:
they move the cursor, hide or rewrite what was printed, set the title, or make the terminal answer as if a person typed.
Characters that change the direction of writing make one text look like another. All of them are printed as JSON escapes, such as
``\u001b``, so a line of JSON keeps its meaning.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from lakebed.errors import InvalidInput
from lakebed.monitoring.event_log import FIELDS, JsonFormatter, LogfmtFormatter, Value, log_events, log_fields

FIRST_SECONDS = 1.0
LINE_SECONDS = 5.0
_BAR_SECONDS = 0.2
_TERMINALS_WITHOUT_BARS = ("dumb", "unknown")  # these can't overwrite a line
Report = Callable[[str, int | None, int | None], None]
"""The step, how much of it is done, and of how much; None if not known. It is cheap enough to call for each row."""

_COMMANDS = r"\x00-\x1f\x7f-\x9f"
_DIRECTIONS = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_NO_CHARACTERS = r"\ud800-\udfff"  # half a pair, which no stream can encode
_UNSAFE = re.compile(f"[{_COMMANDS}{_DIRECTIONS}{_NO_CHARACTERS}]")
_UNSAFE_IN_LINES = re.compile(f"(?![\n\t])[{_COMMANDS}{_DIRECTIONS}{_NO_CHARACTERS}]")


def shown(text: str) -> str:
    """The text in one line, with control characters escaped."""
    return _UNSAFE.sub(_spelled, text)


def shown_lines(text: str) -> str:
    """The same for a text of several lines; tabs stay too."""
    return _UNSAFE_IN_LINES.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


FORMATS = ("text", "json", "off")
_LEVELS = ("debug", "info", "warning", "error")
HELP = """the log on stderr, and errors; every command has these options:

  --log-format text|json|off   a line for each event; off: only warnings
  --log-level LEVEL            the lowest level that is logged: debug, info,
                               warning or error
  --debug                      show the stack trace of an error

The variables LAKEBED_LOG_FORMAT and LAKEBED_LOG_LEVEL have the defaults of the
first two. Without them, commands that run until they are stopped log text,
unless stderr is a terminal, and others only warnings; the level is info."""
_HELD_MAX = 20
_logger = logging.getLogger("lakebed")


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--debug``, ``--log-format`` and ``--log-level``, which every command has and ``HELP`` explains once."""
    parser.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--log-format", choices=FORMATS, help=argparse.SUPPRESS)
    parser.add_argument("--log-level", choices=_LEVELS, help=argparse.SUPPRESS)


@contextmanager
def logging_as(options: argparse.Namespace) -> Iterator[None]:
    """Log as the options say while the block runs; sets ``options.log_format`` to the format in use.

    Raises InvalidInput for an environment variable with an unknown value.
    """
    runs_on = getattr(options, "runs_on", False) and not sys.stderr.isatty()
    chosen = options.log_format or _environment("LAKEBED_LOG_FORMAT", FORMATS) or ("text" if runs_on else "off")
    level = options.log_level or _environment("LAKEBED_LOG_LEVEL", _LEVELS) or "info"
    options.log_format = chosen
    handler = _Handler()
    handler.setLevel(level.upper())
    handler.setFormatter({"text": LogfmtFormatter, "json": JsonFormatter, "off": _Plain}[chosen]())
    before = _logger.level, _logger.propagate
    _logger.addHandler(handler)
    _logger.propagate = False
    _logger.setLevel(logging.WARNING if chosen == "off" else level.upper())
    end = _log_all(handler) if chosen != "off" else None
    try:
        yield
    finally:
        if end is not None:
            end()
        _logger.removeHandler(handler)
        _logger.setLevel(before[0])
        _logger.propagate = before[1]


def _log_all(handler: logging.Handler) -> Callable[[], None]:
    """Log events, records of libraries, Python's warnings and errors that end a thread; returns what undoes it."""
    handler.addFilter(lambda record: not getattr(record, "lakebed_event", False))
    end, died = log_events(), threading.excepthook

    def log_death(failure: threading.ExceptHookArgs) -> None:
        name = failure.thread.name if failure.thread else "unknown"
        error = failure.exc_value or failure.exc_type()
        _logger.error("the thread %s died: %s", name, error, exc_info=error)

    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    threading.excepthook = log_death

    def undo() -> None:
        end()
        threading.excepthook = died
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(handler)

    return undo


def note(message: str) -> None:
    """Write a line to stderr, beside the output; a line of the log if that is JSON."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in _logger.handlers):
        log_fields(logging.INFO, "note", {"message": message})
    else:
        print(f"lakebed: {shown(message)}", file=sys.stderr, flush=True)


@contextmanager
def held_back() -> Iterator[Sequence[str]]:
    """While the block runs, keep the last lines of the log, which are yielded; print them at its end."""
    lines: deque[str] = deque(maxlen=_HELD_MAX)
    handlers = [handler for handler in _logger.handlers if isinstance(handler, _Handler)]
    for handler in handlers:
        handler.held = lines
    try:
        yield lines
    finally:
        for handler in handlers:
            handler.held = None
        for line in lines:
            print(line, file=sys.stderr)


def hide(redact: Callable[[str], str]) -> None:
    """From now on, redact every logged text with this function."""
    for handler in _logger.handlers:
        if isinstance(handler, _Handler) and isinstance(handler.formatter, LogfmtFormatter | JsonFormatter | _Plain):
            handler.formatter.redact = redact


def complaint(message: str, log_format: str | None) -> str:
    """The last line of a command that failed."""
    if log_format != "json":
        return f"lakebed: {shown(message)}"
    record = logging.makeLogRecord({"name": "lakebed", "levelno": logging.ERROR, "levelname": "ERROR"})
    setattr(record, FIELDS, {"event": "failed", "message": message})
    return JsonFormatter().format(record)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to the current ``sys.stderr``, or keeps the lines in ``held`` while a live display uses the terminal."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.held: deque[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.held is None:
            super().emit(record)
        else:
            self.held.append(self.format(record))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _Plain(logging.Formatter):
    """``lakebed: …``, in one line."""

    redact: Callable[[str], str] = staticmethod(str)

    def format(self, record: logging.LogRecord) -> str:
        return "lakebed: " + shown(self.redact(" ".join(record.getMessage().split())))


def _environment(name: str, allowed: tuple[str, ...]) -> str | None:
    value = os.environ.get(name)
    if value and value not in allowed:
        raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
    return value or None


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
