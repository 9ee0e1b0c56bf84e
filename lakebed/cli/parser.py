"""How commands are declared, and what the user may have meant by a wrong one.

Each module of ``lakebed.cli.commands`` adds its own, with their options, to ``Commands``.

A command belongs to the top level (``lakebed run``) or to a family (``lakebed show parts``).
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lakebed.cli import exit_codes, logs
from lakebed.cli.logs import shown

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction["Parser"]

LISTED_MAX = 5
OTHER_WORDS = {
    "vacuum": "clean --only vacuum", "expire-snapshots": "clean --only expire-snapshots",
    "remove-orphan-files": "clean --only remove-orphan-files", "expire-rows": "clean --only expire-rows",
    "settle": "compact --only settle", "merge": "compact --only merge", "optimize": "compact", "compaction": "compact",
    "zorder": "recluster", "cluster": "recluster", "set-sort-key": "alter --sort-key", "sort-key": "alter --sort-key",
    "truncate": "delete --all", "rollback": "restore", "sql": "query", "select": "query", "shell": "query",
    "ls": "status", "list": "status", "tables": "status", "get": "show", "inspect": "show", "plan": "show plan",
    "parts": "show parts", "files": "show parts", "commits": "show commits", "timeline": "show commits",
    "history": "show commits", "log": "show commits", "figures": "show figures", "detail": "show figures",
    "describe": "show figures", "info": "show figures", "stats": "show figures", "merges": "show merges",
    "compactions": "show merges", "clustering": "show clustering", "claims": "show claims", "schema": "show schemas",
    "schemas": "show schemas", "detached": "partition list", "partitions": "partition list",
    "detach-partition": "partition detach", "detach": "partition detach", "attach-partition": "partition attach",
    "attach": "partition attach", "drop-detached": "partition drop", "drop": "partition drop",
    "positions": "source positions", "offsets": "source positions", "rewind": "source rewind", "seek": "source rewind",
    "resnapshot": "source resnapshot", "snapshot": "source resnapshot", "restart-order": "source restart-order",
    "replay": "quarantine replay", "listen": "events listen", "listeners": "events list", "deliver": "events deliver",
    "exporter": "serve metrics", "metrics": "serve metrics", "ui": "serve page", "page": "serve page", "api": "serve api",
    "token": "serve token", "report": "show maintenance", "estimate": "simulate --idle-tables", "fleet": "maintain",
    "worker": "maintain", "dashboards": "export dashboards", "alerts": "export dashboards", "jar": "export spark-jar",
    "spark-jar": "export spark-jar", "example": "docs examples", "examples": "docs examples", "man": "docs",
    "doctor": "verify --self", "check": "verify --self", "fsck": "verify --self", "debug": "verify --self", "start": "run",
    "new": "init",
    "import": "convert", "adopt": "convert", "iceberg": "compact --only publish",
    "publish": "compact --only publish",
}  # fmt: skip
"""What a command is for a word that other systems, or earlier versions, have for it."""

_NEXT_ERROR = "\n  line "
"""How the next one of several errors of a pipeline file begins."""

Run = Callable[[argparse.Namespace], int]
"""What a command does; it returns the exit code."""


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line, and says what may have been meant."""

    summary = ""
    """What the command does, for a list of commands."""
    _is_apart = False  # while options are parsed apart from arguments

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Takes a list that goes on behind an option too, as in ``verify shop.yml --self orders``."""
        has_list = any(not each.option_strings and each.nargs in ("*", "+", "?") for each in self._actions)
        if self._is_apart or not has_list or self.family():
            return super().parse_known_args(args, namespace)
        self._is_apart = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_apart = False

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
            self.error(_right_command(str(value), self.prog, choices))
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
                "--format",
                choices=("table", "json"),
                default="table",
                help="json: one object per line (default: table)",
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
    first, *others = (" ".join(each.split()) for each in message.split(_NEXT_ERROR))
    if log_format == "json":
        first, others = " ".join([first, *others]), []
    print(_NEXT_ERROR.join([logs.complaint(first, log_format), *map(shown, others)]), file=sys.stderr)


def _right_command(word: str, prog: str, known: Iterable[str]) -> str:
    """The complaint about a word that is none of the commands: it names the right one, a near one, or all of a family.

    Args:
        word: What was typed.
        prog: The command before it, such as ``lakebed`` or ``lakebed show``.
        known: The words that may stand there.
    """
    if (meant := OTHER_WORDS.get(word.lower())) is not None:
        return f"`{prog} {word}` is `lakebed {meant}`"
    listed = list(known)
    near = did_you_mean(word, listed)
    if prog == "lakebed":
        return f"there is no command {word!r}{near}"
    return f"{word!r} is none of {', '.join(listed)}{near}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A ``; did you mean …?`` to append to a message, or nothing; case does not matter."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def near_table(path: str) -> str:
    """The same for a path where no table is: a table at a path like it, or tables below it. Nothing for an object store."""
    if "://" in path:
        return ""
    from lakebed.parts.quarantine import QUARANTINE_SUFFIX

    folders = _listed(Path(path))
    folders += [each for folder in folders for each in _listed(folder)]  # as a database has them: <schema>/<table>
    below = [str(each) for each in folders if _is_table(each) and not each.name.endswith(QUARANTINE_SUFFIX)]
    if below:
        more = ", …" if len(below) > LISTED_MAX else ""
        return f"; there are tables below it: {', '.join(sorted(below)[:LISTED_MAX])}{more}"
    return _near(path, _is_table)


def near_file(path: str) -> str:
    """The same for a path where no file is."""
    return _near(path, Path.is_file)


def _near(path: str, wanted: Callable[[Path], bool]) -> str:
    found = Path(Path(path).anchor)
    for name in Path(path).parts[1 if found.anchor else 0 :]:
        here = [each.name for each in _listed(found)]
        near = [name] if name in here or name == ".." else difflib.get_close_matches(name, here, n=1)
        if not near:
            return ""
        found = found / near[0]
    return f"; did you mean {found}?" if found != Path(path) and wanted(found) else ""


def _is_table(path: Path) -> bool:
    return (path / "_delta_log").is_dir()


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
