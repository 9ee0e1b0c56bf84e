"""Arguments in, exit code out: ``execute`` is the command. Ctrl-C ends it at once.

Errors of lakebed are one line on stderr; anything else is a bug and is reported as one (``--debug`` shows the
trace). A closed stdout (``| head``) is no error.

The commands are in ``commands``. Those that explain are here: ``lakebed docs`` and ``lakebed help``.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import TracebackType

from lakebed.cli import exit_codes, logs
from lakebed.cli.commands import (
    events,
    health,
    init,
    maintenance,
    quarantine,
    run,
    serve,
    tables,
    validate,
    verify,
)
from lakebed.cli.logs import shown_lines
from lakebed.cli.parser import Commands, Parser, Run, complain, near_file, near_table
from lakebed.errors import InvalidInput, LakebedError, TableDropped, TableNotFound
from lakebed.version import __version__

# -- Ctrl-C ends a command at once, with exit code 130 and without a trace -------------------------------------------------
#
# 1. Python raises KeyboardInterrupt in the main thread, but not before the thread returns to Python: a query in DuckDB, or a wait
#    for a thread, may take minutes. So a thread of its own hears of the signal at once (a wakeup descriptor) and interrupts all
#    queries of DuckDB, again and again until the command has ended.
# 2. What cleans up behind the command has ``_GRACE_SECONDS``. Then the process ends, whatever it is doing: everything that is
#    committed is whole, and what is not committed does not exist.
#
# Commands that run until they are stopped end in order instead (``run_command``).


_GRACE_SECONDS = 2.0
_AGAIN_SECONDS = 0.05
_OVER = b"\0"
_SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def _ends_at_once() -> Iterator[threading.Event]:
    """While the block runs, Ctrl-C ends it. Yields whether Ctrl-C was pressed. Does nothing outside of the main thread."""
    pressed, over = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reader, pressed, over), name="lakebed-interrupt", daemon=True)
    watcher.start()
    try:
        yield pressed
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.write(writer, _OVER)
        watcher.join()
        os.close(writer)
        os.close(reader)


def _watch(reader: int, pressed: threading.Event, over: threading.Event) -> None:
    while (number := os.read(reader, 1)) != bytes([signal.SIGINT]):
        if number == _OVER:
            return
    pressed.set()
    give_up_at = time.monotonic() + _GRACE_SECONDS
    while not over.wait(_AGAIN_SECONDS):
        if "lakebed.storage.engine" in sys.modules:
            sys.modules["lakebed.storage.engine"].interrupt_all()
        if time.monotonic() >= give_up_at:
            if sys.stderr.isatty():  # a bar may have hidden it
                sys.stderr.write(_SHOW_CURSOR)
            os._exit(exit_codes.INTERRUPTED)


# -- The command ----------------------------------------------------------------------------------------------------------


_MODULES = (
    init,
    run,
    tables,
    health,
    maintenance,
    quarantine,
    events,
    serve,
    validate,
    verify,
)
GROUPS = {
    "start here": ("init", "validate", "run", "query", "status", "docs"),
    "tables": ("create", "convert", "show", "alter", "restore", "partition"),
    "rows": ("delete", "update", "purge"),
    "maintenance": ("maintain", "compact", "recluster", "clean", "simulate"),
    "when something is wrong": ("verify", "resume", "quarantine", "source"),
    "for other programs": ("serve", "events", "export"),
}
"""The commands as ``lakebed --help`` lists them."""
_OF_THE_LIBRARY = re.compile(r"\blakebed\.(create|convert)\b")
"""What an error of the library names that is a command too."""


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Raises KeyboardInterrupt."""
    parser = command_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may come next
        import argcomplete

        argcomplete.autocomplete(parser, always_complete_options=False)
    options, others = parser.parse_known_args(arguments)
    if others:
        options.parser.refuse(others)
    if getattr(options, "runs_on", False):
        return _executed(options, threading.Event())
    with _ends_at_once() as pressed:
        return _executed(options, pressed)


def _executed(options: argparse.Namespace, interrupted: threading.Event) -> int:
    command: Run = options.command
    if options.debug:
        sys.excepthook = _trace
    try:
        with logs.logging_as(options):
            code = command(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes stdout once more when it exits; what is left is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    except Exception as error:
        if interrupted.is_set():  # whatever was interrupted may say so in its own way
            return exit_codes.INTERRUPTED
        if options.debug:
            raise
        if isinstance(error, LakebedError):
            text = _OF_THE_LIBRARY.sub(r"lakebed \1", str(error))
            complain(text + _meant(error, options), options.log_format)
            return exit_codes.exit_code_of(error)
        complain(f"unexpected {type(error).__name__}: {error}; --debug shows where", options.log_format)
        return exit_codes.FAILED


def _meant(error: LakebedError, options: argparse.Namespace) -> str:
    """What the path that is not there may have been."""
    if isinstance(error, TableNotFound) and not isinstance(error, TableDropped) and getattr(options, "path", None):
        return near_table(options.path)
    file = getattr(options, "file", None)
    return near_file(file) if file and isinstance(error, InvalidInput) and not os.path.exists(file) else ""


def _trace(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the trace of an uncaught error, with control characters escaped."""
    sys.stderr.write(shown_lines("".join(traceback.format_exception(kind, error, trace))))


class _Lakebed(Parser):
    """The command itself, whose help lists the commands in groups."""

    def format_help(self) -> str:
        """The commands, a line each, those that a new user needs first."""
        known = self.family()
        lines = [f"usage: {self.prog} COMMAND …", "", self.description or ""]
        for title, names in GROUPS.items():
            lines += [
                "",
                f"{title}:",
                *(f"  {name:<12}{known[name].summary}" for name in names),
            ]
        topics = [f"  {name:<12}{text.partition(chr(10))[0].rstrip(':')}" for name, text in TOPICS.items()]
        return "\n".join([*lines, "", "lakebed help COMMAND, or one of these:", *topics, ""])


@cache
def command_parser() -> Parser:
    """The parser of all commands."""
    parser = _Lakebed(prog="lakebed", description="Change streams become fresh, sorted, compact Delta tables.")
    parser.add_argument("--version", action="version", version=f"lakebed {__version__}")
    logs.add_options(parser)

    def overview(options: argparse.Namespace) -> int:
        parser.print_help()
        return exit_codes.WRONG_INPUT

    parser.set_defaults(command=overview, parser=parser, of_all=parser)  # a command has a parser of its own
    commands = Commands(parser.add_subparsers(metavar="COMMAND", parser_class=Parser))
    for module in _MODULES:
        module.add_to(commands)
    _add_manual(commands)
    return parser


# -- The manual ------------------------------------------------------------------------------------------------------------


_EXAMPLES = "examples/"
TOPICS = {
    "exit-codes": "what the exit codes mean:\n" + "\n".join((exit_codes.__doc__ or "").splitlines()[2:]),
    "logging": logs.HELP,
    "completion": """completing commands and options in a shell:

  eval "$(register-python-argcomplete lakebed)"                     bash, zsh
  register-python-argcomplete --shell fish lakebed | source         fish

in the start file of the shell, such as ~/.bashrc. The command that it runs
comes with lakebed.""",
}
"""What ``lakebed help`` explains beside the commands; the first line says what."""


def _add_manual(commands: Commands) -> None:
    """Add what shows the manual."""
    docs = commands.add("docs", "print a page of the documentation, or an example", _docs, "guides/faq")
    docs.add_argument(
        "page", nargs="?", metavar="PAGE", help="such as runbook, runbook#lakebedtailold or examples/orders"
    )
    explain = commands.add("help", f"explain a command, or {', '.join(TOPICS)}", _help, "exit-codes")
    explain.add_argument(
        "words", nargs="*", metavar="COMMAND", help=f"such as run or show parts, or {', '.join(TOPICS)}"
    )


def _docs(options: argparse.Namespace) -> int:
    from lakebed import manual
    from lakebed.settings import suggest

    files = manual.pages() | {f"{_EXAMPLES}{name}": path for name, path in manual.examples().items()}
    if options.page is None:
        width = max(map(len, files), default=0)
        for name, path in files.items():
            print(f"{name:<{width}}  {manual.title(path)}")
        return exit_codes.OK
    name, _, section = options.page.partition("#")
    name = name.removeprefix("docs/").removesuffix(".md").removesuffix(".yml")
    if name not in files:
        kind = "example" if name.startswith(_EXAMPLES) else "page"
        others = [each for each in files if each.startswith(_EXAMPLES) == (kind == "example")]
        raise InvalidInput(f"there is no {kind} {name!r}{suggest(name, others) or '; there are ' + ', '.join(others)}")
    print(manual.text(files[name], section), end="")
    return exit_codes.OK


def _help(options: argparse.Namespace) -> int:
    if len(options.words) == 1 and options.words[0] in TOPICS:
        print(TOPICS[options.words[0]])
    else:
        options.of_all.parse_args([*options.words, "--help"])  # prints it and ends the process
    return exit_codes.OK
