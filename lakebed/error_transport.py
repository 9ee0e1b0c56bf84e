"""How an error of lakebed passes through Spark's JVM and through DuckDB, which pass on nothing but its text.

    lakebed-error: {"class": "Corrupt", "text": "the file a is missing", "data": {"path": "a"}}

1. Where Spark or DuckDB call lakebed's code, an error gets this line. Spark passes on a Python trace, which ends with the notes
   of the error: there the line is a note (``noted``, ``crosses_spark``). DuckDB passes on the text alone: there the line is
   the text of a ``Transported`` that is raised in the error's place (``as_text``).
2. Where lakebed calls Spark or DuckDB, the line is read back (``decode``), and the same error is raised again (``from_spark``).

So nothing recognises an error of lakebed by the words of its message.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from lakebed import errors
from lakebed.errors import InvalidInput, LakebedError, Unexpected

MARKER = "lakebed-error: "
_CALLED = re.compile(r"An error occurred while calling \S+\Z")  # Py4J's first line
C = TypeVar("C", bound=type)
P = ParamSpec("P")
R = TypeVar("R")


class Transported(Exception):
    """Carries an error through DuckDB; its text is the line."""


def encode(error: LakebedError) -> str:
    """The line, in ASCII and without a line break."""
    document = {"class": type(error).__name__, "text": str(error), "data": error.data()}
    return MARKER + json.dumps(document, default=str)


def decode(text: str) -> LakebedError | None:
    """The error of the last line in a text, as ``encode`` wrote it; None if none. An unknown class becomes Unexpected."""
    decoder = json.JSONDecoder()
    for piece in reversed(text.split(MARKER)[1:]):
        try:
            document, _ = decoder.raw_decode(piece)
            kind, message, data = document["class"], str(document["text"]), dict(document["data"])
        except (ValueError, KeyError, TypeError):
            continue
        known = getattr(errors, kind, None)
        if not (isinstance(known, type) and issubclass(known, LakebedError)):
            return Unexpected(f"{kind}: {message}")
        error = known(message)
        for name in vars(error).keys() & data.keys():
            setattr(error, name, tuple(data[name]) if isinstance(data[name], list) else data[name])
        return error
    return None


@contextmanager
def noted() -> Iterator[None]:
    """Add the line, as a note, to an error of lakebed that leaves the block."""
    try:
        yield
    except LakebedError as error:
        line = encode(error)
        if line not in getattr(error, "__notes__", ()):
            error.add_note(line)
        raise


@contextmanager
def as_text() -> Iterator[None]:
    """Raise ``Transported`` with the line as its text in place of an error of lakebed."""
    try:
        yield
    except LakebedError as error:
        raise Transported(encode(error)) from error


@contextmanager
def from_spark() -> Iterator[None]:
    """Raise the error of lakebed that made Spark fail, in place of Spark's."""
    try:
        yield
    except LakebedError:
        raise
    except Exception as error:
        found = decode(str(error))
        if found is None:
            raise
        # Spark adds pages of text, which do not help to fix wrong input.
        raise found from (None if isinstance(found, InvalidInput) else error)


def first_line(error: BaseException) -> str:
    """What an error says in one line. Of an error of the JVM that is not how it was called, but what it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and _CALLED.match(lines[0]):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else "no reason given"


def crosses_spark(called: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function, or a generator function, that Spark calls: see ``noted``."""

    @functools.wraps(called)
    def iterate(*args: P.args, **named: P.kwargs) -> Iterator[Any]:
        with noted():
            yield from cast("Iterator[Any]", called(*args, **named))

    @functools.wraps(called)
    def call(*args: P.args, **named: P.kwargs) -> R:
        with noted():
            return called(*args, **named)

    return cast("Callable[P, R]", iterate) if inspect.isgeneratorfunction(called) else call


def methods_cross_spark(kind: C) -> C:
    """Decorate a class whose public methods Spark calls: a data source, and its readers."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, crosses_spark(method))
    return kind
