"""Nodes of a pipeline file into frozen dataclasses: a field of the class is a key of the file, and nothing else is.

A field's type says what may stand there: str, int, float, bool, a Literal, ``X | None``, ``tuple[X, ...]`` (one X alone
will do), ``Mapping[str, X]``, another dataclass. ``Any`` takes what YAML gives.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lakebed.errors import InvalidInput
from lakebed.pipeline.document import Document, Node
from lakebed.settings import suggest

T = TypeVar("T")


def bind(document: Document, node: Node, into: type[T], left_out: tuple[str, ...] = ()) -> T:
    """An instance of a dataclass out of a mapping. Raises InvalidInput naming the line and the key."""
    hints = get_type_hints(into)
    known = {item.name: item for item in fields(into) if item.init}  # type: ignore[arg-type]
    members = mapping_of(document, node)
    values: dict[str, Any] = {}
    for key, member in members.items():
        if key in left_out:
            continue
        if key not in known:
            raise document.error(member, f"there is no such key here{suggest(key, known) or _listed(known)}")
        values[key] = convert(document, member, hints[key])
    for key, item in known.items():
        if key not in values and item.default is MISSING and item.default_factory is MISSING:
            raise document.error(node, f"the key {key!r} is missing")
    try:
        return into(**values)
    except InvalidInput as error:
        raise document.error(node, str(error)) from None


def mapping_of(document: Document, node: Node) -> Mapping[str, Node]:
    """A node's members. Raises InvalidInput if it is no mapping."""
    if not isinstance(node.value, Mapping):
        raise document.error(node, "here must stand keys with values, such as 'path: ./lake/orders'")
    return node.value


def convert(document: Document, node: Node, hint: Any) -> Any:
    """A node as a value of a type. Raises InvalidInput naming the line and what is allowed."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return _plain(node)
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
    if node.value is None and type(None) in choices:
        return None
    others = [choice for choice in choices if choice is not type(None)]
    container = isinstance(node.value, Mapping)
    for choice in others:
        takes_members = is_dataclass(choice) or issubclass(get_origin(choice) or type(choice), Mapping)
        if takes_members == container:
            return convert(document, node, choice)
    return convert(document, node, others[0])


def _scalar(document: Document, node: Node, hint: Any) -> Any:
    value = node.value
    if isinstance(value, (tuple, Mapping)):
        raise document.error(node, "here must stand one value, not a list or keys")
    if hint is str and value is not None:
        return node.text
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    wanted = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}[hint]
    raise document.error(node, f"is {_shown(node)}; it must be {wanted}")


def _plain(node: Node) -> Any:
    if isinstance(node.value, Mapping):
        return {key: _plain(member) for key, member in node.value.items()}
    if isinstance(node.value, tuple):
        return [_plain(item) for item in node.value]
    return node.value


def _shown(node: Node) -> str:
    if isinstance(node.value, (tuple, Mapping)):
        return "a list" if isinstance(node.value, tuple) else "a mapping"
    return "empty" if node.value is None else repr(node.text)


def _near(node: Node, choices: tuple[Any, ...]) -> str:
    return suggest(node.text, [str(choice) for choice in choices])


def _listed(known: Mapping[str, Any]) -> str:
    return f"; there are {', '.join(known)}"
