"""A YAML text becomes nodes with line numbers, and these become frozen dataclasses; all that is wrong is reported at once.

1. The text is composed, not loaded: every node keeps its line, and a repeated key is an error.
2. In scalars ``${NAME}`` becomes the variable's value; ``${NAME:-default}`` has a default; ``$${`` stands for ``${``.
3. A scalar is its text, as it is written. The setting's type decides how the text is read, never YAML,
   which would read a password ``0123456`` as another number.
4. A value is a secret if it comes from the environment or its key looks like that of a secret. ``Document.redact``
   removes secrets from a text, and every message about the file passes through it. Only places from the environment (a
   path, a topic, the brokers) are not secret: an error without them is of no use.

Files are bounded in bytes, depth and values; the values of an alias count each time that it is used.
"""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from math import isfinite
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson
import yaml

from lakebed.errors import InvalidInput, LakebedError, Retry
from lakebed.settings import suggest

_SENSITIVE = re.compile(
    r"passw|secret|token|credential|jaas|oauthbearer|passphrase|private|user\.info|api[._-]?key|\.key$|\.pem$",
    re.IGNORECASE,
)
HIDDEN = "***"
BYTES_MAX = 1 << 20
_NODES_MAX = 20_000
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{[^}]*\}?")
_SHORT = 4
_RESOLVER: Any = yaml.resolver.Resolver()
_YAML = "tag:yaml.org,2002:"
_NULLS = frozenset(["", "~", "null", "Null", "NULL"])
_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "null"])  # common words are not secrets
_HARMLESS = ("table.", "database.")  # keys below are the user's own columns and tables
_PLACE = re.compile(
    r"\.(path|folder|topics(\[\d+\])?|topic_(pattern|prefix)|(transaction|signal|notification)_topic"
    r"|bootstrap\.servers|ssl\.ca\.location|url)$"
)


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file: a scalar's text with variables filled in, a list, or a mapping.

    ``is_null``: the text is empty or ``null``, without quotes; ``is_filled``: variables were filled in, with some text.
    """

    value: str | tuple[Node, ...] | Mapping[str, Node] = field(repr=False)
    name: str
    line: int
    is_null: bool = False
    is_filled: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file, its secrets, and the names of the scalars that contain them."""

    file: str
    root: Node = field(repr=False)
    secrets: frozenset[str] = field(repr=False)
    hidden: frozenset[str] = frozenset()

    def error(self, node: Node, message: str) -> InvalidInput:
        """The error to raise about a node."""
        where = f"{node.name}: " if node.name else ""
        return InvalidInput(f"{self.file}, line {node.line}: {where}{self.redact(message)}")

    def at(self, *place: str | int) -> Node:
        """The node at a place (``"table", "keys", 0``), or the one nearest above it that the file has."""
        node = self.root
        for step in place:
            if isinstance(step, int):
                if not isinstance(node.value, tuple) or step >= len(node.value):
                    return node
                node = node.value[step]
            elif isinstance(node.value, Mapping) and step in node.value:
                node = node.value[step]
            else:
                return node
        return node

    def all_of(self, errors: Sequence[LakebedError]) -> LakebedError:
        """Several errors about the file as one, with a line for each. InvalidInput, if one of them is."""
        texts = list(dict.fromkeys(str(error) for error in errors))
        kinds = sorted(errors, key=lambda error: (not isinstance(error, InvalidInput), isinstance(error, Retry)))
        if len(texts) == 1:
            return errors[0]
        shorter = [text.removeprefix(f"{self.file}, ") for text in texts]
        return kinds[0].with_text("\n  ".join([f"{self.file} has {len(texts)} errors:", *shorter]))

    def redact(self, text: str) -> str:
        """The text with all secrets masked, also where they are quoted. A short secret is masked only as a whole word."""
        spelled = {form for secret in self.secrets for form in _spellings(secret)}
        for secret in sorted(spelled, key=len, reverse=True):
            if len(secret) >= _SHORT:
                text = text.replace(secret, HIDDEN)
            else:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
        return text


def _spellings(secret: str) -> tuple[str, ...]:
    """The spellings of a secret in texts: Python and JSON escape characters between quotes."""
    return secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]


def parse(text: str, file: str, environment: Mapping[str, str] | None = None) -> Document:
    """Parse a file's text. Raises InvalidInput with the line."""
    reader = _Reader(file, os.environ if environment is None else environment)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise InvalidInput(f"{file} is empty; it must describe a pipeline (table or database, source, format)")
        root = reader.read(node, "", hidden=False)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidInput(f"{file}, line {line}: this is not YAML: {_problem(error)}{_hint(text, line)}") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{file}: this is not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise InvalidInput(f"{file}: lists and mappings are nested too deeply") from None
    return Document(file, root, frozenset(secret for secret in reader.secrets if secret), frozenset(reader.hidden))


def _problem(error: yaml.MarkedYAMLError) -> str:
    """The parser's message without the text that it quotes, which may be a secret."""
    problem = re.sub(r"""(['"])(?!<|\\.\1)(?:(?!\1).){2,}\1""", "…", error.problem or "")
    if "undefined alias" in problem or "undefined tag" in problem:
        return f"{problem}; a text that begins with * & or ! must be in quotes"
    return f"{problem}; indent with spaces" if "'\\t'" in problem else problem


def _hint(text: str, line: int) -> str:
    """Advice on a common mistake: a variable without quotes between braces."""
    before = "\n".join(text.splitlines()[:line])
    trapped = re.search(r"\{[^}\n]*[^\"'\w]\$\{", before)
    return "; between { } write a variable in quotes: '${NAME}'" if trapped else ""


class _Reader:
    def __init__(self, file: str, environment: Mapping[str, str]) -> None:
        self._file = file
        self._environment = environment
        self._above: set[int] = set()
        self._nodes = 0
        self.secrets: set[str] = set()
        self.hidden: set[str] = set()

    def read(self, node: yaml.Node, name: str, hidden: bool) -> Node:
        line = node.start_mark.line + 1
        self._nodes += 1
        if self._nodes > _NODES_MAX:
            raise self._wrong(line, f"the file has more than {_NODES_MAX:,} values, counting those of each alias")
        if id(node) in self._above:
            raise self._wrong(line, f"the value of {name or 'the file'} has an anchor and contains its own alias")
        self._refuse_tag(node, line)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, name, line, hidden)
        self._above.add(id(node))
        if isinstance(node, yaml.MappingNode):
            found = Node(dict(self._members(node, name, hidden)), name, line)
        else:
            items = (self.read(item, f"{name}[{number}]", hidden) for number, item in enumerate(node.value))
            found = Node(tuple(items), name, line)
        self._above.remove(id(node))
        return found

    def _scalar(self, node: yaml.ScalarNode, name: str, line: int, hidden: bool) -> Node:
        text = self._filled_in(node.value, name, line, hidden)
        if hidden:
            self.secrets.add(text)
            self.hidden.add(name)
        alone = (
            _VARIABLE.fullmatch(node.value) is not None
        )  # between braces it needs quotes, so quotes do not make it text
        is_null = text in _NULLS and (node.style is None or alone)
        return Node(text, name, line, is_null, bool(text) and text != node.value)

    def _members(self, node: yaml.MappingNode, name: str, hidden: bool) -> Iterator[tuple[str, Node]]:
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not key.value:
                raise self._wrong(line, "a key must be a name")
            self._refuse_tag(key, line)
            if key.value == "<<" and key.style is None:
                raise self._wrong(line, "<< is not supported; write the keys themselves")
            if _VARIABLE.search(key.value):
                raise self._wrong(line, f"{key.value!r} is a key; only values can contain variables")
            if key.value in seen:
                raise self._wrong(line, f"the key {key.value!r} is there twice; remove one of them")
            seen.add(key.value)
            full = f"{name}.{key.value}" if name else key.value
            sensitive = not full.startswith(_HARMLESS) and bool(_SENSITIVE.search(key.value))
            yield key.value, self.read(value, full, hidden or sensitive)

    def _filled_in(self, text: str, name: str, line: int, hidden: bool) -> str:
        def value(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                shown = "'${'" if hidden else repr(match[0])
                raise self._wrong(
                    line,
                    f"{shown} is not a variable; write ${{NAME}} or ${{NAME:-default}}, or $${{ for the characters themselves",
                )
            found = self._environment.get(match[1])
            if found:
                if hidden or (not _PLACE.search(name) and found.lower() not in _WORDS):
                    self.secrets.add(found)
                    self.hidden.add(name)
                return found
            if match[2] is None and found is None:
                raise self._wrong(
                    line,
                    f"the environment variable {match[1]} is not set; set it, or give a default: ${{{match[1]}:-default}}",
                )
            return match[2] or ""

        return _VARIABLE.sub(value, text)

    def _refuse_tag(self, node: yaml.Node, line: int) -> None:
        if isinstance(node, yaml.ScalarNode):
            plain = node.style is None
            expected = _RESOLVER.resolve(yaml.ScalarNode, node.value, (plain, not plain))
        else:
            expected = _YAML + ("map" if isinstance(node, yaml.MappingNode) else "seq")
        if node.tag != expected:
            raise self._wrong(
                line,
                "YAML tags are not supported; remove the tag, or put a text that begins with ! in quotes",
            )

    def _wrong(self, line: int, what: str) -> InvalidInput:
        return InvalidInput(f"{self._file}, line {line}: {what}")


# -- Nodes become frozen dataclasses: the fields of the class are exactly the keys that the file may have ------------------
#
# A field's type decides which values it accepts: str, int, float, bool, a Literal, ``X | None``, ``tuple[X, ...]`` (a single
# X is accepted too), ``Mapping[str, X]``, another dataclass. The type alone decides how a scalar's text is read: a str is
# the text as it is written, numbers are in plain decimal digits, and ``yes`` and ``on`` are true where a bool is expected.
#
# This is our own code because libraries that bind values to dataclasses keep no line numbers, and get the value that YAML
# made of a scalar, not its text (docs/adr/0010-own-code-where-a-library-exists.md).


T = TypeVar("T")
PropertyText = NewType("PropertyText", str)
"""The value of a table property. A mapping is written as JSON."""
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
    if hint is PropertyText:
        return orjson.dumps(_plain(node)).decode() if isinstance(node.value, Mapping) else _scalar(document, node, str)
    if origin is not None and issubclass(origin, Mapping):
        return {key: convert(document, member, arguments[1]) for key, member in mapping_of(document, node).items()}
    if is_dataclass(hint):
        return bind(document, node, hint)  # type: ignore[arg-type]
    return _scalar(document, node, hint)


def _plain(node: Node) -> Any:
    """A node as JSON has it: mappings, lists, texts, and ``true`` or ``false`` as the value of a key."""
    if isinstance(node.value, Mapping):
        return {
            key: member.value == "true" if member.value in ("true", "false") else _plain(member)
            for key, member in node.value.items()
        }
    return [_plain(item) for item in node.value] if isinstance(node.value, tuple) else node.value


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


# -- All that is wrong with a pipeline file, gathered so that it is reported at once, each with its line -------------------


class Findings:
    """Collects errors and notes about a file."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.errors: list[LakebedError] = []
        self.notes: list[str] = []
        self._places: set[tuple[str | int, ...]] = set()

    def wrong(self, text: str, *place: str | int) -> None:
        """Something is wrong with the value at a place of the file."""
        self.add(InvalidInput(text), *place)

    def add(self, error: LakebedError, *place: str | int) -> None:
        """An error about the value at a place of the file; its class stays."""
        self._places.add(place)
        self.errors.append(error.with_text(str(self._document.error(self._document.at(*place), str(error)))))

    def has(self, *place: str | int) -> bool:
        """Whether something is wrong with the value at exactly this place."""
        return place in self._places

    def note(self, text: str) -> None:
        """Something that is not wrong, but that its reader should know."""
        self.notes.append(self._document.redact(text))

    @contextmanager
    def at(self, *place: str | int) -> Iterator[None]:
        """Collects an error that is raised within, as one about the value at a place."""
        try:
            yield
        except LakebedError as error:
            self.add(error, *place)

    @contextmanager
    def within(self, section: str, settings: object) -> Iterator[None]:
        """Collects an error about a section; the place is that of the first setting that its text names."""
        try:
            yield
        except LakebedError as error:
            members, said = self._document.at(section).value, str(error)
            names = [item.name for item in fields(settings)]  # type: ignore[arg-type]
            named = [name for name in names if name in said and isinstance(members, Mapping) and name in members]
            self.add(error, section, *named[:1])

    def raise_if_any(self) -> None:
        """Raises all errors as one: InvalidInput, if one of them is."""
        if self.errors:
            raise self._document.all_of(self.errors)
