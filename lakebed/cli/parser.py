"""How commands are declared. Each module of ``lakebed.cli.commands`` adds its own, with their options, to ``Commands``.

A command belongs to the top level (``lakebed run``) or to a family (``lakebed show parts``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from lakebed.cli import exit_codes, logs
from lakebed.cli.escapes import shown
from lakebed.cli.suggestions import did_you_mean, right_command

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction["Parser"]

NEXT_ERROR = "\n  line "
"""How the next one of several errors of a pipeline file begins."""

Run = Callable[[argparse.Namespace], int]
"""What a command does; it returns the exit code."""


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line, and says what may have been meant."""

    summary = ""
    """What the command does, for a list of commands."""

    def error(self, message: str) -> NoReturn:
        """End the process for wrong arguments."""
        complain(f"{message} (see {self.prog} --help)")
        sys.exit(exit_codes.WRONG_INPUT)

    def refuse(self, arguments: Sequence[str]) -> NoReturn:
        """End the process for arguments that the command does not have."""
        option = next((each.split("=")[0] for each in arguments if each.startswith("-")), None)
        if option is None:
            self.error(f"{arguments[0]!r} is one argument too many")
        self.error(f"there is no option {option}{did_you_mean(option, self._option_string_actions)}")

    def has_option(self, name: str) -> bool:
        """Whether the command has this option."""
        return name in self._option_string_actions

    def family(self) -> dict[str, Parser]:
        """The commands that this one has, by name; none if it is no family."""
        found = [each for each in self._actions if isinstance(each, argparse._SubParsersAction)]
        return dict(found[0].choices) if found else {}

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(each) for each in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(right_command(str(value), self.prog, choices))
        near = did_you_mean(str(value), choices)
        raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(choices)}{near}")


class Commands:
    """Where commands are added: the top level, or a family."""

    def __init__(self, parsers: _Subparsers) -> None:
        self._parsers = parsers

    def add(
        self, name: str, text: str, run: Run, example: str = "", *, rows: bool = False, runs_on: bool = False
    ) -> Parser:
        """Add a command; returns its parser, for its own arguments.

        Args:
            name: What the user types.
            text: What it does, without a full stop.
            run: Does it.
            example: The arguments of one use, without the name of the command.
            rows: It prints rows, so it has ``--format`` and ``--wide``.
            runs_on: It runs until it is stopped.
        """
        full = f"{self._parsers._prog_prefix} {name}"
        parser = self._parsers.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"example:\n  {full} {example}\n\nfor the log and for errors: lakebed help logging",
        )
        parser.summary = text
        logs.add_options(parser)
        if rows:
            parser.add_argument(
                "--format", choices=("table", "json"), default="table", help="json: one object a line (default: table)"
            )
            parser.add_argument("--wide", action="store_true", help="all columns and whole values, however wide")
        parser.set_defaults(command=run, parser=parser, runs_on=runs_on)
        return parser

    def family(self, name: str, text: str) -> Commands:
        """Add a family of commands."""
        parser = self._parsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        inner = Commands(parser.add_subparsers(metavar="COMMAND", parser_class=Parser, title="commands"))

        def incomplete(options: argparse.Namespace) -> NoReturn:
            parser.error(f"name one of {', '.join(parser.family())}")

        parser.summary = text
        logs.add_options(parser)
        parser.set_defaults(command=incomplete, parser=parser)
        return inner


def complain(message: str, log_format: str | None = None) -> None:
    """Print why a command failed, in one line, or in a line for each error of a pipeline file."""
    first, *others = (" ".join(each.split()) for each in message.split(NEXT_ERROR))
    if log_format == "json":
        first, others = " ".join([first, *others]), []
    print(NEXT_ERROR.join([logs.complaint(first, log_format), *map(shown, others)]), file=sys.stderr)
