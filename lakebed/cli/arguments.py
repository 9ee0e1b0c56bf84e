"""What arguments of commands are read as (numbers within bounds, ports, names of columns), and what several commands share:
the table, a question before much is taken away, and the wait until a command is stopped.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from lakebed.cli.logs import note, shown
from lakebed.errors import InvalidInput, TableNotFound

if TYPE_CHECKING:
    from lakebed.table import Table

_QUOTED = re.compile(r"`(?:[^`]|``)+`")
_MASKED = re.compile(rf'{_QUOTED.pattern}|"(?:[^"]|"")+"')


def takes_table(*parsers: argparse.ArgumentParser) -> None:
    """``TABLE``: a path."""
    for parser in parsers:
        parser.add_argument("path", metavar="TABLE", help="its folder, or s3://bucket/prefix")


def table_of(options: argparse.Namespace) -> Table:
    """The table that the command is about. Raises TableNotFound."""
    from lakebed.table import open as open_table

    return open_table(options.path)


def is_table(path: str) -> bool:
    """Whether there is a table at the path itself, also one that can't be read. Raises InvalidInput, StoreUnavailable."""
    from lakebed.log.stores import open_store
    from lakebed.log.table_log import TableLog
    from lakebed.storage.data_files import open_part_storage

    return TableLog(open_store(open_part_storage(path).root)).exists()


def tables_at(path: str) -> dict[str, str]:
    """The roots of the tables that a path means, by name: the table there, or all below it. Raises TableNotFound."""
    from lakebed.discovery import all_tables_below

    if is_table(path):
        return {path: path}
    if not (found := all_tables_below(path)):
        raise TableNotFound(f"there is no table at {path}, nor below it")
    return found


def until_stopped() -> threading.Event:
    """An event that Ctrl-C or SIGTERM sets, from now on."""
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    return done


def end_in_order() -> None:
    """From now on SIGTERM raises SystemExit, so that what was begun is taken back: it would end the process at once."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def add_yes(*parsers: argparse.ArgumentParser) -> None:
    """``--yes``."""
    for parser in parsers:
        parser.add_argument("--yes", action="store_true", help="do not ask; required if stdin is not a terminal")


def confirmed(what: str, options: argparse.Namespace) -> bool:
    """Whether to do it. ``what``: what will happen, as a clause. Raises InvalidInput where nobody can be asked."""
    if options.yes:
        return True
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(f"{what}; give --yes to do it without being asked")
    print(f"lakebed: {shown(what)}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    note("nothing was done")
    return False


def positive(text: str) -> float:
    """A number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def up_to(most: float) -> Callable[[str], float]:
    """Numbers above 0 up to this one."""

    def number(text: str) -> float:
        if (value := positive(text)) > most:
            raise argparse.ArgumentTypeError(f"{text} is more than {most:,.0f}")
        return value

    return number


def count(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def ratio(text: str) -> float:
    """A number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def look_seconds(text: str) -> float:
    """Seconds between two looks at an idle table."""
    if not text.isdecimal() or not 1 <= int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return float(text)


def port_or_file(text: str) -> int | Literal["file"] | None:
    """A port, None for off, or ``file`` for the port in the pipeline file."""
    if text == "off":
        return None
    if text == "file":
        return "file"
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a port, nor 'off' or 'file'")
    return int(text)


def some_port(text: str) -> int:
    """A port; 0 is any."""
    port = port_or_file(text)
    if not isinstance(port, int):
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return port


def pairs(texts: Sequence[str], sign: str, what: str, *, form: str) -> dict[str, str]:
    """``name:type`` or ``name=text``, by the name as it is written. Raises InvalidInput, which shows ``form``."""
    out: dict[str, str] = {}
    for text in texts:
        name, *rest = pieces(text, sign, 1)
        if not rest or not name.strip():
            raise InvalidInput(f"{what} is {text!r}; write {form}")
        if name.strip() in out:
            raise InvalidInput(f"{what} names {name.strip()!r} twice")
        out[name.strip()] = rest[0].strip()
    return out


def pieces(text: str, sign: str, cuts: int = -1) -> list[str]:
    """The text cut at a sign, but not within backticks. ``cuts``: at most so many, from the left."""
    ends = [len(piece) for piece in _without_names(text).split(sign, cuts)]
    out, start = [], 0
    for length in ends:
        out.append(text[start : start + length])
        start += length + len(sign)
    return out


def _without_names(text: str) -> str:
    """The text with backticks in place of the names that are quoted, with backticks or as in SQL; as long as before."""
    return _MASKED.sub(lambda quoted: "`" * len(quoted[0]), text)


def plain(name: str) -> str:
    """The name without its backticks, if it is quoted."""
    return name[1:-1].replace("``", "`") if _QUOTED.fullmatch(name) else name


def names(text: str) -> list[str]:
    """Names of columns, separated by commas."""
    return [plain(name.strip()) for name in pieces(text, ",") if name.strip()]


def parse_columns(text: str) -> dict[str, str]:
    """Columns as names and types. Raises InvalidInput, InvalidSchema.

    Args:
        text: As SQL writes them, ``id long not null, name string``, or as YAML, ``id: long not null, name: string``.
    """
    from lakebed.schema.type_names import table_schema

    columns: dict[str, str] = {}
    for piece in cut_outside_brackets(text):
        quoted = _QUOTED.match(piece.strip())
        name = quoted[0] if quoted else re.split(r"[:\s]", piece.strip(), maxsplit=1)[0]
        kind = piece.strip()[len(name) :].strip().removeprefix(":").strip()
        if not (name and kind):
            raise InvalidInput(f"{piece.strip()!r} is no column; write its name and type, such as id: long not null")
        if plain(name) in columns:
            raise InvalidInput(f"the column {plain(name)!r} is there twice")
        columns[plain(name)] = kind
    if columns:
        table_schema(columns)
    return columns


def cut_outside_brackets(text: str) -> list[str]:
    """The text, cut at the commas that are in no brackets and no backticks."""
    found: list[str] = []
    depth = 0
    for piece in pieces(text, ","):
        if depth > 0:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
        depth += sum((character in "<(") - (character in ">)") for character in _without_names(piece))
    return [piece for piece in found if piece.strip()]
