"""Entries of logs as values: one rule for those that are damaged, or that another version of lakebed wrote.

1. A member that is unknown is ignored; one that is missing has its default. So a later version may add members.
2. What is right rests on some entries: positions, claims, holds, purges, points. If one of these can't be decoded, whatever
   needs it ends with Corrupt, which has the name of the entry. Nothing is guessed.
3. Others are for coordination or for people (``entries.COORDINATION``). One that can't be decoded counts as not there. A warning
   says so once in a process, and ``lakebed verify --self`` shows it.

A value is checked against the annotation of its field. A number is finite and fits 64 bits. A time, which is a field whose name
ends with ``_ms``, is one that Python has a date for.
"""

from __future__ import annotations

import logging
import math
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import orjson

from lakebed.errors import Corrupt

T = TypeVar("T")
_Check = Callable[[Any], Any]
_INTEGER_MAX = 1 << 63
MS_MAX = 200_000_000_000_000
"""The latest time that an entry may have, in the year 8307."""
_SHOWN = 60
_WARNED_MAX = 4096
_CHECKS_MAX = 1024
_logger = logging.getLogger("lakebed.log")


def decoded(kind: type[T], entry: str, text: str, **given: object) -> T:
    """The dataclass that an entry is. ``given``: fields that its text does not have. Raises Corrupt."""
    with reading(entry):
        return made(kind, {**document_of(entry, text), **given})


def document_of(entry: str, text: str) -> dict[str, Any]:
    """The object that the text of an entry is. Raises Corrupt."""
    with reading(entry):
        value = orjson.loads(text)
        if not isinstance(value, dict):
            raise ValueError(f"it is {_shown(value)}, and no object")
        return value


def integer_of(entry: str, text: str | None, member: str) -> int:
    """A number that is a member of an entry; 0 without the entry. Raises Corrupt."""
    if text is None:
        return 0
    with reading(entry):
        return checked(int, document_of(entry, text)[member], member)  # type: ignore[no-any-return]


def made(kind: type[T], document: Mapping[str, Any]) -> T:
    """The dataclass with these members, by the annotations of its fields. Raises ValueError, KeyError."""
    members = _members(kind)  # type: ignore[arg-type]
    return kind(**{name: check(document[name]) for name, check, needed in members if needed or name in document})


def checked(annotation: object, value: object, name: str = "") -> Any:
    """The value as what an annotation says. ``name``: of the member. Raises ValueError."""
    return _check_of(annotation, name)(value)


@contextmanager
def reading(entry: str) -> Iterator[None]:
    """Whatever is wrong with the text of an entry becomes Corrupt, with the name of the entry as its ``path``."""
    try:
        yield
    except Corrupt:
        raise
    except KeyError as error:
        raise _corrupt(entry, f"it lacks {error}") from None
    except (ValueError, TypeError, AttributeError, ArithmeticError, IndexError, RecursionError) as error:
        raise _corrupt(entry, str(error)) from None


def readable(
    domains: Mapping[str, str], prefix: str, decode: Callable[[str, str], T | None]
) -> Iterator[tuple[str, T]]:
    """The names and values of those entries with a prefix that can be decoded, for entries that nothing rests on.

    ``decode``: from the name and the text of an entry; raises Corrupt.
    """
    for entry, text in domains.items():
        if entry.startswith(prefix) and (value := readable_or_none(entry, text, decode)) is not None:
            yield entry, value


def readable_or_none(entry: str, text: str | None, decode: Callable[[str, str], T | None]) -> T | None:
    """The value of an entry that nothing rests on; None if it is not there, or can't be decoded."""
    if text is None:
        return None
    try:
        return decode(entry, text)
    except Corrupt as error:
        _warn(str(error), hash(text))
        return None


def _corrupt(entry: str, why: str) -> Corrupt:
    return Corrupt(
        f"the entry {entry[:200]} in the log can't be read: {why[:300]}; it is damaged, or another version of lakebed wrote it. "
        'Do what "An entry that can\'t be read" in docs/runbook.md says',
        path=entry,
    )


@lru_cache(_WARNED_MAX)
def _warn(text: str, _of: int) -> None:
    """Once for each text of an entry, as long as they are not too many."""
    _logger.warning("%s. It counts as not there", text)


@lru_cache(256)
def _members(kind: Hashable) -> list[tuple[str, _Check, bool]]:
    assert isinstance(kind, type)
    hints = typing.get_type_hints(kind)
    return [
        (each.name, _check_of(hints[each.name], each.name), each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
        if each.init
    ]


@lru_cache(_CHECKS_MAX)
def _check_of(annotation: Any, name: str) -> _Check:
    """What makes a value of an annotation from JSON, or raises ValueError."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if annotation is Any or annotation is object:
        return lambda value: value
    if annotation in (int, float, str, bool):
        return _plain(annotation, name)
    if origin in (Union, types.UnionType):
        [other] = [_check_of(each, name) for each in inside if each is not type(None)]
        return lambda value: None if value is None else other(value)
    if origin is Literal:
        return _one_of(inside, name)
    if origin is tuple and inside[1:] == (...,):
        item = _check_of(inside[0], name)
        return lambda value: tuple(item(each) for each in _of_kind(list, value, name))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(inside[0], _check_of(inside[1], name), name)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation, name)
    return lambda value: made(annotation, _of_kind(dict, value, name))


def _plain(kind: Any, name: str) -> _Check:
    def check(value: Any) -> Any:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ValueError(f"{name} is {_shown(value)}, and not {_CALLED[kind]}")
        if kind is int and not -_INTEGER_MAX <= value < _INTEGER_MAX:
            raise ValueError(f"{name} is {value}, which is too large")
        if kind is int and name.endswith("_ms") and not -MS_MAX <= value <= MS_MAX:
            raise ValueError(f"{name} is {value}, which is no time in milliseconds")
        if kind is float and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
        return value

    return check


_CALLED = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def _one_of(allowed: tuple[Any, ...], name: str) -> _Check:
    def check(value: Any) -> Any:
        if value not in allowed:
            raise ValueError(f"{name} is {_shown(value)}, and not one of {', '.join(map(str, allowed))}")
        return value

    return check


def _enum(kind: type[Enum], name: str) -> _Check:
    known = {each.value: each for each in kind}
    one_of = _one_of(tuple(known), name)
    return lambda value: known[one_of(value)]


def _mapping(key: Any, item: _Check, name: str) -> _Check:
    key_of: _Check = int if key is int else str
    return lambda value: {key_of(each): item(one) for each, one in _of_kind(dict, value, name).items()}


def _of_kind(kind: type, value: Any, name: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{name} is {_shown(value)}, and not {'a list' if kind is list else 'an object'}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
