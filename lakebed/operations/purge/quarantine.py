"""Which records of a quarantine are about the rows that a purge takes out of the table beside it.

A quarantined record could not be decoded, so nothing says for certain whose it is. It goes if its bytes, those of its headers,
or the reason that it was refused for, have

- a JSON member of a key's column with the key's value: ``"id": 7``, of all columns of the key; or
- a text of a key, or a text that the condition compares a column with, of ``_TEXT_LENGTH_MIN`` characters or more; or
- if the user gives a condition of his own (``quarantine=``), what that says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.far_times import python_rows
from lakebed.log.snapshot import Snapshot
from lakebed.parts.quarantine import HEADERS
from lakebed.quoting import literal
from lakebed.sql.expression import Expression

_TEXT_LENGTH_MIN = 6
_KEYS_MAX = 1000
_SPACE = r"(\s|\\x0A|\\x0D|\\x09)*"
_BYTES = "(coalesce(value::varchar, '') || ' ' || coalesce(key::varchar, '')"
_HEADERS = " || ' ' || coalesce(array_to_string([one.value::varchar for one in headers], ' '), '')"


def condition_of_quarantine(
    keys: pa.Table | None, snapshot: Snapshot, where: Expression, given: str | None, quarantine: Snapshot
) -> str | None:
    """A condition over the quarantine's columns; None if no record can be meant. ``keys``: of the rows, by stored names.

    Raises InvalidInput for more than ``_KEYS_MAX`` keys, unless ``given`` says which records go.
    """
    if given is not None:
        return given
    if keys is not None and len(keys) > _KEYS_MAX:
        raise InvalidInput(
            f"the rows to purge have {len(keys):,} keys, too many to look for in the records of the quarantine (at most "
            f"{_KEYS_MAX:,}): say which records go (quarantine='true' for all), or purge fewer rows at once"
        )
    everything = f"{_BYTES}{_HEADERS if HEADERS in quarantine.logical_schema.names else ''})"
    texts = {text for text in _compared(where.tree) if len(text) >= _TEXT_LENGTH_MIN}
    members = []
    for row in python_rows(keys) if keys is not None else ():
        named = {snapshot.columns.logical_name(name): value for name, value in row.items()}
        members.append(" and ".join(f"regexp_matches({everything}, {literal(_member(*one))})" for one in named.items()))
        texts |= {value for value in named.values() if isinstance(value, str) and len(value) >= _TEXT_LENGTH_MIN}
    anywhere = [
        f"contains({everything}, {literal(_as_blob_text(text))}) or contains(coalesce(reason, ''), {literal(text)})"
        for text in sorted(texts)
    ]
    conditions = [*(f"({one})" for one in members), *anywhere]
    return " or ".join(conditions) or None


def _member(column: str, value: Any) -> str:
    """A pattern for a member of a JSON object, as DuckDB spells bytes that are no plain characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    quote = re.escape(_as_blob_text('"'))
    name, shown = re.escape(_as_blob_text(column)), re.escape(_as_blob_text(text.strip('"')))
    return f"{quote}{name}{quote}{_SPACE}:{_SPACE}({quote})?{shown}({quote})?{_SPACE}[,}}]"


def _as_blob_text(text: str) -> str:
    r"""A text as DuckDB casts its bytes to one: quotes, backslashes and what is not plain ASCII as ``\xNN``."""
    return "".join(
        chr(each) if 32 <= each <= 126 and chr(each) not in "\\'\"" else f"\\x{each:02X}" for each in text.encode()
    )


def _compared(node: Any) -> Iterator[str]:
    """The texts that a condition compares columns with."""
    if isinstance(node, Mapping):
        if node.get("type") in ("COMPARE_EQUAL", "COMPARE_IN"):
            yield from _constants(node)
        for value in node.values():
            yield from _compared(value)
    elif isinstance(node, list):
        for value in node:
            yield from _compared(value)


def _constants(node: Mapping[str, Any]) -> Iterator[str]:
    sides = [node.get("left"), node.get("right"), *node.get("children", ())]
    for side in sides:
        if isinstance(side, Mapping) and side.get("type") == "VALUE_CONSTANT":
            found = side.get("literal", {})
            if found.get("kind") == "STRING":
                yield found["text"]
