"""The settings of a table: the ``lakebed.*`` properties that travel in its log, parsed and checked.

They live in the table, not in a process, so that every writer and every maintaining process agrees on them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import orjson

from lakebed.errors import InvalidInput

PREFIX = "lakebed."
CONFLICT_SCOPES = ("table", "partition", "file")
_UNITS_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
# Delta's own properties that a user may set; any other one could ask for a feature that lakebed's writers do not honour.
_DELTA_ALLOWED = {
    "delta.logRetentionDuration",
    "delta.deletedFileRetentionDuration",
    "delta.enableDeletionVectors",
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
}


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What a table is (keys, sort key, sequence) and how it is kept.

    ``keys``, ``sort_key``, ``sequence_by`` are set when the table is created and are no longer changed by a user.
    """

    keys: tuple[str, ...] = ()
    sort_key: tuple[str, ...] = ()
    sequence_by: str | None = None
    conflict_scope: str = "partition"
    checkpoint_interval: int = 100
    log_retention_seconds: int = 30 * 86400
    tombstone_retention_seconds: int = 7 * 86400

    def to_properties(self) -> dict[str, str]:
        """The properties as they stand in the log: what differs from the defaults."""
        out: dict[str, str] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            text = orjson.dumps(value).decode() if isinstance(value, tuple) else str(value)
            if field.name.endswith("_seconds"):
                text = f"interval {value} seconds"
            out[PREFIX + _property_name(field.name)] = text
        return out


def _property_name(field_name: str) -> str:
    return field_name.removesuffix("_seconds")


PROPERTY_NAMES = tuple(PREFIX + _property_name(field.name) for field in fields(TableSettings))
_FIXED_AT_CREATION = ("lakebed.keys", "lakebed.sort_key", "lakebed.sequence_by")


def parse_settings(properties: Mapping[str, str]) -> TableSettings:
    """The settings that a table's properties spell out. Raises InvalidInput naming the property."""
    check_property_names(properties)
    scope = properties.get("lakebed.conflict_scope", "partition")
    if scope not in CONFLICT_SCOPES:
        raise InvalidInput(f"lakebed.conflict_scope is {scope!r}; it must be one of {', '.join(CONFLICT_SCOPES)}")
    return TableSettings(
        keys=_names(properties, "lakebed.keys"),
        sort_key=_names(properties, "lakebed.sort_key"),
        sequence_by=properties.get("lakebed.sequence_by"),
        conflict_scope=scope,
        checkpoint_interval=_count(properties, "lakebed.checkpoint_interval", 100),
        log_retention_seconds=_seconds(properties, "lakebed.log_retention", 30 * 86400),
        tombstone_retention_seconds=_seconds(properties, "lakebed.tombstone_retention", 7 * 86400),
    )


def check_property_names(properties: Iterable[str]) -> None:
    """Raises InvalidInput for a ``lakebed.*`` or ``delta.*`` property that does not exist or is not supported."""
    for name in properties:
        if name.startswith(PREFIX) and name not in PROPERTY_NAMES:
            raise InvalidInput(f"there is no table property {name!r}{suggest(name, PROPERTY_NAMES)}")
        if name.startswith("delta.") and name not in _DELTA_ALLOWED:
            raise InvalidInput(
                f"the Delta property {name!r} is not supported; supported: {', '.join(sorted(_DELTA_ALLOWED))}"
            )


def check_changeable(properties: Iterable[str]) -> None:
    """Raises InvalidInput for a property that is fixed when the table is created."""
    for name in properties:
        if name in _FIXED_AT_CREATION or name in ("delta.enableDeletionVectors", "delta.enableInCommitTimestamps"):
            raise InvalidInput(f"{name} is fixed when the table is created")


def suggest(name: str, known: Iterable[str]) -> str:
    """A ``; did you mean …?`` to append to a message, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def parse_interval(text: str) -> int:
    """Seconds of an interval such as ``7 days``, ``interval 36 hours`` or ``90 seconds``. Raises InvalidInput."""
    match = re.fullmatch(r"\s*(?:interval\s+)?(\d+)\s*([a-z]+?)s?\s*", text.lower())
    if not match or match[2] not in _UNITS_SECONDS:
        raise InvalidInput(f"{text!r} is no interval; write for example '7 days' or '36 hours'")
    return int(match[1]) * _UNITS_SECONDS[match[2]]


def _names(properties: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = properties.get(name)
    if text is None:
        return ()
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidInput(f"{name} is {text!r}; it must be a JSON list of column names")
    return tuple(value)


def _count(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise InvalidInput(f"{name} is {text!r}; it must be a whole number of at least 1")
    return int(text)


def _seconds(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name)
    if text is None:
        return default
    try:
        return parse_interval(text)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None
