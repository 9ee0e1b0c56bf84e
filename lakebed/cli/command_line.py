"""Arguments in, exit code out: ``execute`` is the command.

Errors of lakebed are one line on stderr; anything else is a bug and is reported as one (``--debug`` shows the
trace). A closed stdout (``| head``) is no error.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from types import TracebackType

from lakebed.cli import exit_codes, logs
from lakebed.cli.commands import (
    events,
    fleet,
    health,
    init,
    maintenance,
    manual,
    quarantine,
    rows,
    run,
    serve,
    show,
    simulate,
    source,
    tables,
    validate,
)
from lakebed.cli.escapes import shown_lines
from lakebed.cli.interrupt import ends_at_once
from lakebed.cli.parser import Commands, Parser, Run, complain
from lakebed.cli.suggestions import near_file, near_table
from lakebed.errors import InvalidInput, LakebedError, TableNotFound
from lakebed.version import __version__

_MODULES = (
    init,
    validate,
    run,
    tables,
    health,
    show,
    rows,
    maintenance,
    source,
    quarantine,
    events,
    serve,
    fleet,
    simulate,
    manual,
)
GROUPS = {
    "start here": ("init", "validate", "run", "query", "status", "docs"),
    "tables": ("create", "convert", "show", "alter", "restore", "partition"),
    "rows": ("delete", "update", "purge"),
    "maintenance": ("maintain", "fleet", "compact", "recluster", "clean", "simulate"),
    "when something is wrong": ("doctor", "resume", "quarantine", "source"),
    "for other programs": ("serve", "events", "dashboards"),
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
    with ends_at_once() as pressed:
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
    if isinstance(error, TableNotFound) and getattr(options, "path", None):
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
        topics = [f"  {name:<12}{text.partition(chr(10))[0].rstrip(':')}" for name, text in manual.TOPICS.items()]
        return "\n".join([*lines, "", "lakebed help COMMAND, or one of these:", *topics, ""])


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
    return parser
