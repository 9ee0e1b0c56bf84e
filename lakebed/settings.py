"""The settings of a table: the ``lakebed.*`` properties that travel in its log, parsed and checked.

They live in the table, not in a process, so that every writer and every maintaining process agrees on them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TypeVar

import orjson

from lakebed.errors import InvalidInput

PREFIX = "lakebed."
SORT_KEY_FRAME = "lakebed.sort_key_frame"
CONFLICT_SCOPES = ("table", "partition", "file")
MERGE_POLICIES = ("auto", "bin-pack", "tiered", "leveled", "recluster", "off")
MERGE_FIRST = ("newest", "lightest")
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

    ``keys``, ``sequence_by`` are set when the table is created and are no longer changed by a user; ``sort_key`` is changed by
    ``set_sort_key`` alone, each time with the next ``sort_key_version``.
    ``off_peak`` (``22:00-06:00``, UTC): in these hours ``read_budget`` and ``purge_dead_ratio`` count half, so more is merged;
    outside them heavy merges wait, unless the read budget is exceeded.
    """

    keys: tuple[str, ...] = ()
    sort_key: tuple[str, ...] = ()
    sequence_by: str | None = None
    sort_key_version: int = 1
    sort_key_frame: str = ""
    conflict_scope: str = "partition"
    checkpoint_interval: int = 100
    log_retention_seconds: int = 7 * 86400
    tombstone_retention_seconds: int = 7 * 86400
    read_budget: int = 8
    target_part_bytes: int = 128 * 2**20
    target_part_rows: int = 1_000_000
    merge: str = "auto"
    merge_first: str = "newest"
    recluster_depth: str = "2"
    plan_bytes_max: int = 500 * 2**20
    purge_dead_ratio: float = 0.3
    settle_after_changes: int | None = None
    settle_after_bytes: int | None = None
    settle_after_age_seconds: int | None = None
    off_peak: str = ""
    volatile: bool = False
    upload_after_seconds: int = 600
    volatile_bytes_max: int = 10 * 2**30

    def to_properties(self) -> dict[str, str]:
        """The properties as they stand in the log: what differs from the defaults."""
        out: dict[str, str] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            text = orjson.dumps(value).decode() if isinstance(value, tuple) else str(value)
            if isinstance(value, bool):
                text = "on" if value else "off"
            if field.name.endswith("_seconds"):
                text = f"interval {value} seconds"
            out[PREFIX + _property_name(field.name)] = text
        return out


def _property_name(field_name: str) -> str:
    return field_name.removesuffix("_seconds")


_DEFAULTS = TableSettings()
PROPERTY_NAMES = tuple(PREFIX + _property_name(field.name) for field in fields(TableSettings))
_FIXED_AT_CREATION = ("lakebed.keys", "lakebed.sequence_by")
_OF_SET_SORT_KEY = ("lakebed.sort_key", "lakebed.sort_key_version", "lakebed.sort_key_frame")


def parse_settings(properties: Mapping[str, str]) -> TableSettings:
    """The settings that a table's properties spell out. Raises InvalidInput naming the property."""
    check_property_names(properties)
    target_part_bytes = _count(properties, "lakebed.target_part_bytes", _DEFAULTS.target_part_bytes)
    plan_bytes_max = _count(properties, "lakebed.plan_bytes_max", _DEFAULTS.plan_bytes_max)
    if plan_bytes_max < 2 * target_part_bytes:
        raise InvalidInput(
            f"lakebed.plan_bytes_max is {plan_bytes_max}; it must be at least {2 * target_part_bytes}, "
            "twice lakebed.target_part_bytes, so that two full parts can be merged"
        )
    return TableSettings(
        keys=_names(properties, "lakebed.keys"),
        sort_key=_names(properties, "lakebed.sort_key"),
        sequence_by=properties.get("lakebed.sequence_by"),
        sort_key_version=_count(properties, "lakebed.sort_key_version", _DEFAULTS.sort_key_version),
        sort_key_frame=properties.get(SORT_KEY_FRAME, ""),
        conflict_scope=_one_of(properties, "lakebed.conflict_scope", CONFLICT_SCOPES, _DEFAULTS.conflict_scope),
        checkpoint_interval=_count(properties, "lakebed.checkpoint_interval", 100),
        log_retention_seconds=_seconds(properties, "lakebed.log_retention", 7 * 86400),
        tombstone_retention_seconds=_seconds(properties, "lakebed.tombstone_retention", 7 * 86400),
        read_budget=_count(properties, "lakebed.read_budget", _DEFAULTS.read_budget),
        target_part_bytes=target_part_bytes,
        target_part_rows=_count(properties, "lakebed.target_part_rows", _DEFAULTS.target_part_rows),
        merge=_one_of(properties, "lakebed.merge", MERGE_POLICIES, _DEFAULTS.merge),
        merge_first=_one_of(properties, "lakebed.merge_first", MERGE_FIRST, _DEFAULTS.merge_first),
        recluster_depth=_depth(properties, "lakebed.recluster_depth"),
        plan_bytes_max=plan_bytes_max,
        purge_dead_ratio=_share(properties, "lakebed.purge_dead_ratio", _DEFAULTS.purge_dead_ratio),
        settle_after_changes=_count(properties, "lakebed.settle_after_changes", None),
        settle_after_bytes=_count(properties, "lakebed.settle_after_bytes", None),
        settle_after_age_seconds=_seconds(properties, "lakebed.settle_after_age", None),
        off_peak=_hours(properties, "lakebed.off_peak"),
        volatile=_one_of(properties, "lakebed.volatile", ("on", "off"), "off") == "on",
        upload_after_seconds=_seconds(properties, "lakebed.upload_after", _DEFAULTS.upload_after_seconds),
        volatile_bytes_max=_count(properties, "lakebed.volatile_bytes_max", _DEFAULTS.volatile_bytes_max),
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
        if name in _OF_SET_SORT_KEY:
            raise InvalidInput(f"{name} is changed by set_sort_key (lakebed set-sort-key), and by nothing else")


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


def interval_seconds(interval: str | timedelta | None) -> int | None:
    """Whole seconds of an interval as a user gives it. Raises InvalidInput."""
    if isinstance(interval, timedelta):
        return int(interval.total_seconds())
    return None if interval is None else parse_interval(interval)


def parse_hours(text: str) -> tuple[int, int]:
    """Minutes of the day of ``22:00-06:00``: from, until. Raises InvalidInput."""
    match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", text, re.ASCII)
    start, end = (int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])) if match else (0, 0)
    if start == end:
        raise InvalidInput(f"{text!r} is no part of a day; write for example '22:00-06:00' (UTC)")
    return start, end


def parse_depth(text: str) -> tuple[float, bool]:
    """``2`` as (2.0, False), and ``1%`` as (0.01, True): a share of a level's parts. Raises InvalidInput."""
    is_share = text.endswith("%")
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = 0.0
    if not (0 < value <= 100 if is_share else 1 <= value < float("inf")):
        raise InvalidInput(
            f"{text!r} is no depth; write a number of at least 1, or a share of a level's parts such as '1%'"
        )
    return (value / 100, True) if is_share else (value, False)


def _depth(properties: Mapping[str, str], name: str) -> str:
    text = properties.get(name, _DEFAULTS.recluster_depth)
    try:
        parse_depth(text)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None
    return text


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


_Whole = TypeVar("_Whole", int, int | None)


def _count(properties: Mapping[str, str], name: str, default: _Whole) -> int | _Whole:
    text = properties.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise InvalidInput(f"{name} is {text!r}; it must be a whole number of at least 1")
    return int(text)


def _seconds(properties: Mapping[str, str], name: str, default: _Whole) -> int | _Whole:
    text = properties.get(name)
    if text is None:
        return default
    try:
        return parse_interval(text)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None


def _one_of(properties: Mapping[str, str], name: str, allowed: Sequence[str], default: str) -> str:
    text = properties.get(name, default)
    if text not in allowed:
        raise InvalidInput(f"{name} is {text!r}; it must be one of {', '.join(allowed)}")
    return text


def _share(properties: Mapping[str, str], name: str, default: float) -> float:
    text = properties.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise InvalidInput(f"{name} is {text!r}; it must be a number above 0 and at most 1")
    return value


def _hours(properties: Mapping[str, str], name: str) -> str:
    text = properties.get(name, "")
    if text:
        try:
            parse_hours(text)
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error}") from None
    return text
