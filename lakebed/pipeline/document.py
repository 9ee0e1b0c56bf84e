"""A YAML text as nodes that know where they stand, with environment variables filled in.

1. The text is composed, not loaded: every node keeps its line, and a key named twice is an error.
2. In scalars ``${NAME}`` becomes the variable's value and ``${NAME:-default}`` falls back; ``$${`` is a plain ``${``.
   The type is found afterwards, so ``port: ${PORT}`` is a number.
3. What came from the environment, and what stands under a name that says so, is a secret: ``Document.redact`` blots it
   out of any text, and every message about the file goes through it. Only places (a path, a topic, the brokers) are none:
   an error that does not name them is of no use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from lakebed.errors import InvalidInput

SENSITIVE = re.compile(
    r"passw|secret|token|credential|jaas|oauthbearer|passphrase|private|api[._-]?key|\.key$|\.pem$", re.IGNORECASE
)
HIDDEN = "***"
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{[^}]*\}?")
_SHORT = 4
_RESOLVER: Any = yaml.resolver.Resolver()
_HARMLESS = "table."  # names below it are the user's own columns
_PLACE = re.compile(r"\.(path|folder|topics(\[\d+\])?|topic_pattern|bootstrap\.servers|ssl\.ca\.location)$")

Scalar: TypeAlias = "bool | int | float | str | None"


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file. ``text`` is a scalar as it is written, variables filled in."""

    value: Scalar | tuple[Node, ...] | Mapping[str, Node] = field(repr=False)
    text: str = field(repr=False)
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file and its secrets."""

    file: str
    root: Node = field(repr=False)
    secrets: frozenset[str] = field(repr=False)

    def error(self, node: Node, message: str) -> InvalidInput:
        """The error to raise about a node."""
        where = f"{node.name}: " if node.name else ""
        return InvalidInput(f"{self.file}, line {node.line}: {where}{self.redact(message)}")

    def redact(self, text: str) -> str:
        """The text without any secret. Short ones are blotted out only where they stand alone."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= _SHORT:
                text = text.replace(secret, HIDDEN)
            else:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
        return text


def parse(text: str, file: str, environment: Mapping[str, str] | None = None) -> Document:
    """Parse a file's text. Raises InvalidInput naming the line."""
    reader = _Reader(file, os.environ if environment is None else environment)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidInput(f"{file}, line {line}: this is no YAML: {error.problem}{_hint(text, line)}") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{file}: this is no YAML: {str(error).splitlines()[0]}") from None
    if node is None:
        raise InvalidInput(f"{file} is empty; it must describe a pipeline (table, source, format)")
    root = reader.read(node, "", hidden=False)
    return Document(file, root, frozenset(secret for secret in reader.secrets if secret))


def _hint(text: str, line: int) -> str:
    """Braces inside braces are the usual trap."""
    before = "\n".join(text.splitlines()[:line])
    trapped = re.search(r"\{[^}\n]*[^\"'\w]\$\{", before)
    return "; between { } write a variable in quotes: '${NAME}'" if trapped else ""


class _Reader:
    def __init__(self, file: str, environment: Mapping[str, str]) -> None:
        self._file = file
        self._environment = environment
        self.secrets: set[str] = set()

    def read(self, node: yaml.Node, name: str, hidden: bool) -> Node:
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            return Node(dict(self._members(node, name, hidden)), "", name, line)
        if isinstance(node, yaml.SequenceNode):
            items = tuple(self.read(item, f"{name}[{number}]", hidden) for number, item in enumerate(node.value))
            return Node(items, "", name, line)
        assert isinstance(node, yaml.ScalarNode)
        text = self._filled_in(node.value, line, secret=hidden or not _PLACE.search(name))
        tag = node.tag
        alone = _VARIABLE.fullmatch(node.value) is not None  # quotes are needed between braces, so they mean nothing
        if text != node.value and (node.style is None or alone):
            tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
        value = _typed(tag, text)
        if hidden and isinstance(value, str):
            self.secrets.add(text)
        return Node(value, text, name, line)

    def _members(self, node: yaml.MappingNode, name: str, hidden: bool) -> Iterator[tuple[str, Node]]:
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidInput(f"{self._file}, line {line}: a key must be a name")
            if key.value in seen:
                raise InvalidInput(f"{self._file}, line {line}: {key.value!r} is there twice; leave one out")
            seen.add(key.value)
            full = f"{name}.{key.value}" if name else key.value
            sensitive = not full.startswith(_HARMLESS) and bool(SENSITIVE.search(key.value))
            yield key.value, self.read(value, full, hidden or sensitive)

    def _filled_in(self, text: str, line: int, secret: bool) -> str:
        def value(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                raise InvalidInput(
                    f"{self._file}, line {line}: {match[0]!r} is no variable; write ${{NAME}} or ${{NAME:-default}}, "
                    "or $${ for the characters themselves"
                )
            found = self._environment.get(match[1])
            if found:
                if secret:
                    self.secrets.add(found)
                return found
            if match[2] is None and found is None:
                raise InvalidInput(
                    f"{self._file}, line {line}: the environment variable {match[1]} is not set; set it, "
                    f"or give a default: ${{{match[1]}:-default}}"
                )
            return match[2] or ""

        return _VARIABLE.sub(value, text)


def _typed(tag: str, text: str) -> Scalar:
    """The value of a scalar; what is neither null, boolean nor number stays text (dates too)."""
    kind = tag.rsplit(":", 1)[-1]
    if kind not in ("null", "bool", "int", "float"):
        return text
    loader = yaml.SafeLoader("")
    try:
        value: Scalar = loader.construct_object(yaml.ScalarNode(tag, text))
    except ValueError:
        return text
    finally:
        loader.dispose()
    return value
