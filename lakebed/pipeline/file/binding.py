"""Bind nodes of a pipeline file to frozen dataclasses: the fields of the class are exactly the keys that the file may have.

A field's type decides which values it accepts: str, int, float, bool, a Literal, ``X | None``, ``tuple[X, ...]`` (a single
X is accepted too), ``Mapping[str, X]``, another dataclass. The type alone decides how a scalar's text is read: a str is
the text as it is written, numbers are in plain decimal digits, and ``yes`` and ``on`` are true where a bool is expected.

This is our own code because libraries that bind values to dataclasses keep no line numbers, and get the value that YAML
made of a scalar, not its text (docs/adr/0010-own-code-where-a-library-exists.md).
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lakebed.errors import InvalidInput
from lakebed.pipeline.file.document import Document, Node
from lakebed.settings import suggest

T = TypeVar("T")
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_DIGITS = r"[0-9]{1,18}(_[0-9]{1,3}){0,6}"
_WHOLE = re.compile(rf"[+-]?{_DIGITS}")
_NUMBER = re.compile(rf"[+-]?({_DIGITS}(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{{1,3}})?", re.IGNORECASE)


def leaves(error: InvalidInput | ExceptionGroup[InvalidInput]) -> list[InvalidInput]:
    """The errors in what ``bind`` raises."""
    if isinstance(error, InvalidInput):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaves(each)]


def bind(document: Document, node: Node, into: type[T], left_out: tuple[str, ...] = ()) -> T:
    """An instance of a dataclass from a mapping.

    Raises InvalidInput with the line and the key, or an ExceptionGroup if several are wrong (``leaves``).
    """
    hints = get_type_hints(into)
    keys = {item.name: item for item in fields(into) if item.init}  # type: ignore[arg-type]
    members = mapping_of(document, node)
    values: dict[str, Any] = {}
    errors: list[InvalidInput] = []
    for key, member in members.items():
        if key in left_out:
            continue
        if key not in keys:
            errors.append(document.error(member, f"there is no such key here{suggest(key, keys) or _listed(keys)}"))
            continue
        try:
            values[key] = convert(document, member, hints[key])
        except (InvalidInput, ExceptionGroup) as error:
            errors += leaves(error)
    for key, item in keys.items():
        if key not in members and item.default is MISSING and item.default_factory is MISSING:
            errors.append(document.error(node, f"the key {key!r} is missing"))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several keys are wrong", errors)
    try:
        return into(**values)
    except InvalidInput as error:
        raise document.error(node, str(error)) from None


def mapping_of(document: Document, node: Node) -> Mapping[str, Node]:
    """A node's members. Raises InvalidInput if it is not a mapping."""
    if not isinstance(node.value, Mapping):
        raise document.error(node, "expected keys with values here, such as 'path: ./lake/orders'")
    return node.value


def convert(document: Document, node: Node, hint: Any) -> Any:
    """A node as a value of a type. Raises InvalidInput with the line and the allowed values."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(document, node, arguments)
    if origin is Literal:
        if node.value in arguments:
            return node.value
        raise document.error(
            node, f"is {_shown(node)}; it must be one of {', '.join(map(str, arguments))}{_near(node, arguments)}"
        )
    if origin is tuple:
        items = node.value if isinstance(node.value, tuple) else (node,)
        return tuple(convert(document, item, arguments[0]) for item in items)
    if origin is not None and issubclass(origin, Mapping):
        return {key: convert(document, member, arguments[1]) for key, member in mapping_of(document, node).items()}
    if is_dataclass(hint):
        return bind(document, node, hint)  # type: ignore[arg-type]
    return _scalar(document, node, hint)


def _one_of(document: Document, node: Node, choices: tuple[Any, ...]) -> Any:
    if node.is_null and type(None) in choices and not (node.is_filled and str in choices):
        return None
    others = [choice for choice in choices if choice is not type(None)]
    container = isinstance(node.value, Mapping)
    for choice in others:
        origin = get_origin(choice)
        takes_members = is_dataclass(choice) or (isinstance(origin, type) and issubclass(origin, Mapping))
        if takes_members == container:
            return convert(document, node, choice)
    return convert(document, node, others[0])


def _scalar(document: Document, node: Node, hint: Any) -> Any:
    text = node.value
    if not isinstance(text, str):
        raise document.error(node, "expected one value here, not a list or keys")
    if hint is str:
        if not node.is_null or node.is_filled:
            return text
    elif hint is bool:
        if text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
    elif hint is int:
        if _WHOLE.fullmatch(text):
            return int(text)
    elif _NUMBER.fullmatch(text) and isfinite(float(text)):
        return float(text)
    wanted = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}[hint]
    raise document.error(node, f"is {_shown(node)}; it must be {wanted}")


def _shown(node: Node) -> str:
    if isinstance(node.value, (tuple, Mapping)):
        return "a list" if isinstance(node.value, tuple) else "a mapping"
    return "empty" if node.is_null else repr(node.value)


def _near(node: Node, choices: tuple[Any, ...]) -> str:
    return suggest(str(node.value), [str(choice) for choice in choices])


def _listed(keys: Mapping[str, Any]) -> str:
    return f"; the keys are {', '.join(keys)}"
