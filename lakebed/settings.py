"""The settings of a table: the ``lakebed.*`` properties that travel in its log, parsed and checked.

They live in the table, not in a process, so that every writer and every maintaining process agrees on them.

1. A property is parsed where it is set, or refused with its name, its value and what is accepted (``parse_settings``).
2. A property in a log that can't be read, set by an unchecked writer, counts as not set. ``wrong_properties`` reports it;
   the table stays readable (``read_settings``).
3. Two texts of one property are the same setting if they have the same value (``property_value``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from types import UnionType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import orjson

from lakebed.column_groups import AGGREGATE, AGGREGATES, GROUPS, Aggregated, ColumnGroup, groups_text, parse_groups
from lakebed.errors import Corrupt, InvalidInput

PREFIX = "lakebed."
SORT_KEY_FRAME = "lakebed.sort_key_frame"
FORMAT_PROPERTY = "lakebed.format"
ConflictScope = Literal["table", "partition", "file", "column"]
MergePolicy = Literal["auto", "bin-pack", "tiered", "leveled", "recluster", "off"]
_MergeFirst = Literal["newest", "lightest"]
_Keep = Literal["last", "first"]
Volatile = Literal["auto", "on", "off"]
VerifyReads = Literal["local", "all", "off"]
_Tier = Literal["p0", "p1", "p2"]
TIERS: tuple[_Tier, ...] = get_args(_Tier)
_RETENTION_PROPERTY = "delta.deletedFileRetentionDuration"
_RETENTION_SECONDS = 7 * 86400
INTERVAL_SECONDS_MAX = 36_500 * 86400  # a hundred years: what is longer would overflow times
_UNITS_MICROSECONDS = {
    "microsecond": 1, "millisecond": 1000, "second": 10**6, "minute": 60 * 10**6, "hour": 3600 * 10**6,
    "day": 86400 * 10**6, "week": 604800 * 10**6,
}  # fmt: skip
_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class DailyHours:
    """Hours of each day (UTC), from one minute of the day up to another, possibly past midnight; as text ``22:00-06:00``."""

    start_minute: int
    end_minute: int

    def contain(self, now_ms: int) -> bool:
        """``now_ms``: epoch milliseconds."""
        start, end, minute = self.start_minute, self.end_minute, now_ms // 60_000 % 1440
        return start <= minute < end if start < end else minute >= start or minute < end

    def __str__(self) -> str:
        return "-".join(f"{at // 60:02}:{at % 60:02}" for at in (self.start_minute, self.end_minute))


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """How long rows live, from the moment in a column on; as text ``created_at: 90 days``."""

    column: str
    seconds: int

    def __str__(self) -> str:
        days, rest = divmod(self.seconds, 86_400)
        name = self.column
        if name != _unquoted(name):
            name = "`" + name.replace("`", "``") + "`"
        return f"{name}: {self.seconds} seconds" if rest else f"{name}: {days} days"


@dataclass(frozen=True, slots=True)
class ReclusterDepth:
    """How many parts of a level may lie over a point on average: a number (``2``), or per cent of the level's parts (``1%``)."""

    number: float
    is_percent: bool = False

    def of_level(self, parts: int) -> float:
        """The depth that a level of ``parts`` parts may have. A part lies over itself, so it is 1 at least."""
        return max(1.0, self.number / 100 * parts) if self.is_percent else self.number

    def __str__(self) -> str:
        return repr(self.number).removesuffix(".0") + ("%" if self.is_percent else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """What a table is (keys, sort key, sequence) and how it is kept.

    ``keys`` and ``sequence_by`` are set when the table is created, and no user changes them later. ``set_sort_key`` alone
    changes ``sort_key``, each time with the next ``sort_key_version``.
    """

    keys: tuple[str, ...] = ()
    sort_key: tuple[str, ...] = ()
    sequence_by: str | None = None
    sort_key_version: int = 1
    sort_key_frame: str = ""
    keep: _Keep = "last"
    groups: tuple[ColumnGroup, ...] = ()
    aggregates: tuple[Aggregated, ...] = ()
    conflict_scope: ConflictScope = "partition"
    checkpoint_interval: int = 100
    log_retention_seconds: int = 7 * 86400
    tombstone_retention_seconds: int = 7 * 86400
    read_budget: int = 8
    target_part_bytes: int = 128 * 2**20
    target_part_rows: int = 1_000_000
    merge: MergePolicy = "auto"
    merge_first: _MergeFirst = "newest"
    recluster_depth: ReclusterDepth = ReclusterDepth(2.0)
    plan_bytes_max: int = 2**30
    purge_dead_ratio: float = 0.3
    settle_after_changes: int | None = None
    settle_after_bytes: int | None = None
    settle_after_age_seconds: int | None = None
    # in these hours ``read_budget`` and ``purge_dead_ratio`` count half, so more is merged; in others heavy merges wait,
    # unless the read budget is exceeded
    off_peak: DailyHours | None = None
    ttl: TimeToLive | None = None  # rows that are older are removed
    volatile: Volatile = "auto"
    upload_after_seconds: int = 6 * 3600
    volatile_bytes_max: int = 10 * 2**30
    replicate_local: bool = False
    count_reads: bool = False
    verify_reads: VerifyReads = "local"
    source_topic: str | None = None
    source_begin: int | None = None
    source_table: str | None = None
    tier: _Tier = "p1"
    pool: str = "default"
    freshness_seconds: int | None = None
    iceberg: bool = False
    iceberg_seconds: int = 10

    @property
    def order_by(self) -> tuple[str, ...]:
        """What the rows of a part are sorted by: the sort key, or else the keys; nothing in a table without an order."""
        return self.sort_key or self.keys

    def to_properties(self) -> dict[str, str]:
        """The properties as the log holds them: what differs from the defaults."""
        out: dict[str, str] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name == "aggregates":
                out |= {AGGREGATE + one.column: one.function for one in value}
                continue
            text = orjson.dumps(value).decode() if field.type == "tuple[str, ...]" else str(value)
            if field.name == "groups":
                text = groups_text(value)
            if isinstance(value, bool):
                text = "on" if value else "off"
            if field.name.endswith("_seconds") and field.name != "iceberg_seconds":
                text = f"interval {value} seconds"
            out[PREFIX + _property_name(field.name)] = text
        return out


def _property_name(field_name: str) -> str:
    return field_name if field_name == "iceberg_seconds" else field_name.removesuffix("_seconds")


_FIELDS = {PREFIX + _property_name(field.name): field for field in fields(TableSettings) if field.name != "aggregates"}
_OF_CREATION = {
    "lakebed.keys": "keys", "lakebed.sequence_by": "sequence_by", "lakebed.sort_key": "sort_key",
    "lakebed.sort_key_version": "sort_key", "lakebed.sort_key_frame": "sort_key",
}  # fmt: skip
"""Properties that users can't set: lakebed writes them, from arguments of these names."""

PropertyValue: TypeAlias = str | int | float | bool | Mapping[str, Any]
"""What a caller may give as the value of a property; a mapping where the property is a JSON object."""


def property_texts(properties: Mapping[str, PropertyValue]) -> dict[str, str]:
    """The properties with the texts that the log has for numbers and truth values; anything else is left to be refused."""
    return {name: _property_text(name, value) for name, value in properties.items()}


def _property_text(name: str, value: PropertyValue) -> str:
    if isinstance(value, bool):
        return (("off", "on") if str(name).startswith(PREFIX) else ("false", "true"))[value]
    if isinstance(value, Mapping):
        return orjson.dumps(dict(value)).decode()
    return str(value) if isinstance(value, int | float) else value


def parse_settings(properties: Mapping[str, str]) -> TableSettings:
    """The settings that properties spell out. Raises InvalidInput naming the property, its value and what is accepted."""
    _check_properties(properties)
    settings = _settings({name: text for name, text in properties.items() if _is_own(name)})
    if settings.plan_bytes_max < 2 * settings.target_part_bytes:
        raise InvalidInput(
            f"lakebed.plan_bytes_max is {settings.plan_bytes_max}; it must be at least {2 * settings.target_part_bytes}, "
            "twice lakebed.target_part_bytes, so that two full parts can be merged"
        )
    return settings


def read_settings(properties: Mapping[str, str]) -> TableSettings:
    """The settings of a table as its log has them; what can't be read counts as not set (``wrong_properties``).

    Raises Corrupt where that would change what its rows are: keys, sequence, groups, sort key.
    """
    wrong = wrong_properties(properties)
    for name in [one for one in wrong if one in _OF_CREATION or one == GROUPS or one.startswith(AGGREGATE)]:
        raise Corrupt(f"the log says that {wrong[name]}; restore the commit that says so from a copy of the store")
    return _settings({name: text for name, text in properties.items() if _is_own(name) and name not in wrong})


def wrong_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with the properties in a log, by name: those that would be refused today."""
    wrong: dict[str, str] = {}
    for name, text in properties.items():
        try:
            if name.startswith(PREFIX) or name in INTERVAL_PROPERTIES:
                property_value(name, text)
        except InvalidInput as error:
            wrong[name] = str(error)
    target, most = "lakebed.target_part_bytes", "lakebed.plan_bytes_max"
    try:
        parse_settings({name: properties[name] for name in (target, most) if name in properties.keys() - wrong.keys()})
    except InvalidInput as error:
        wrong |= {name: str(error) for name in (target, most) if name in properties}
    return wrong


def retention_seconds(properties: Mapping[str, str]) -> int:
    """How long versions of a table stay readable: its ``delta.deletedFileRetentionDuration``, 7 days if that is no interval."""
    try:
        return int(property_value(_RETENTION_PROPERTY, properties.get(_RETENTION_PROPERTY)))
    except InvalidInput:
        return _RETENTION_SECONDS


def property_value(name: str, text: str | None) -> Any:
    """The value of a property for a text, its default for None. The value of a user's own property is its text.

    Raises InvalidInput naming the property, its value and what is accepted.
    """
    parser = _one_of(*AGGREGATES) if _is_aggregate(name) else _VALUES.get(name) or _DELTA_VALUES.get(name)
    if parser is None:
        _check_name(name)
    if text is None:
        return _RETENTION_SECONDS if name == _RETENTION_PROPERTY else _FIELDS[name].default if name in _FIELDS else None
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is {text!r}; a property is a text: write {str(text)!r}")
    if parser is None:
        return text
    try:
        return parser(text)
    except InvalidInput as error:
        raise InvalidInput(f"{name} is {text!r}; it must be {error}") from None


def _check_properties(properties: Mapping[str, str]) -> None:
    """Raises InvalidInput for a property that does not exist, is not supported, or can't have its value."""
    for name, text in properties.items():
        if text is None:
            raise InvalidInput(f"{name} is None; a property is a text, and one that is left out has its default")
        property_value(name, text)


def check_creatable(properties: Mapping[str, str]) -> None:
    """``_check_properties`` of those that a table is created with."""
    for name in properties:
        _refuse_format(name)
        if name in _OF_CREATION:
            raise InvalidInput(f"{name} is no property to set: give a new table its {_OF_CREATION[name]!r}")
    parse_settings(properties)


def creatable(properties: Mapping[str, str]) -> dict[str, str]:
    """Of a table's properties those with which another one can be created, beside the arguments."""
    fixed = {FORMAT_PROPERTY, *_OF_CREATION}
    return {name: text for name, text in properties.items() if name.startswith(PREFIX) and name not in fixed}


def check_changeable(properties: Mapping[str, str]) -> None:
    """``_check_properties`` of those that a table gets later; also for those that are fixed when it is created."""
    for name in properties:
        _refuse_format(name)
        if name in ("lakebed.keys", "lakebed.sequence_by", *_ALWAYS_ON):
            raise InvalidInput(f"{name} is fixed when the table is created")
        if name in _OF_CREATION:
            raise InvalidInput(f"{name} is changed by set_sort_key (lakebed alter --sort-key), and by nothing else")
    _check_properties(properties)


def _refuse_format(name: str) -> None:
    if name == FORMAT_PROPERTY:
        raise InvalidInput(
            f"{name} is no property to set: the version of lakebed that creates a table decides its format"
        )


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"{name!r} is no name of a property; it must be a text")
    if name.lower().startswith(PREFIX):
        raise InvalidInput(f"there is no table property {name!r}{suggest(name, _FIELDS)}")
    if name.lower().startswith("delta."):
        raise InvalidInput(
            f"the Delta property {name!r} is not supported; supported: {', '.join(sorted(_DELTA_VALUES))}"
        )


def _settings(properties: Mapping[str, str]) -> TableSettings:
    values = {name: property_value(name, text) for name, text in properties.items()}
    functions = {name: values.pop(name) for name in sorted(filter(_is_aggregate, values))}
    aggregates = tuple(
        Aggregated(name[len(AGGREGATE) :], function) for name, function in functions.items() if function != "last"
    )
    return TableSettings(aggregates=aggregates, **{_FIELDS[name].name: value for name, value in values.items()})


def _is_aggregate(name: str) -> bool:
    return isinstance(name, str) and name.startswith(AGGREGATE) and len(name) > len(AGGREGATE)


def _is_own(name: str) -> bool:
    return name in _FIELDS or _is_aggregate(name)


def suggest(name: str, known: Iterable[str]) -> str:
    """A ``; did you mean …?`` to append to a message, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


# -- texts to values: each raises InvalidInput saying what is accepted -------------------------------------------------


def parse_interval(text: str) -> int:
    """Seconds of an interval such as ``7 days``, ``interval 36 hours`` or ``1 week 2 days``, rounded up. Raises InvalidInput."""
    try:
        return _seconds(text)
    except InvalidInput as error:
        raise InvalidInput(f"{text!r} is no interval; write {error}") from None


def interval_seconds(interval: str | timedelta | None) -> int | None:
    """Whole seconds of an interval as a user gives it. Raises InvalidInput."""
    if isinstance(interval, timedelta):
        seconds = int(interval.total_seconds())
        if seconds > INTERVAL_SECONDS_MAX:
            raise InvalidInput(f"{interval} is too long; give at most {INTERVAL_SECONDS_MAX // 86400} days")
        return seconds
    return None if interval is None else parse_interval(interval)


def parse_hours(text: str) -> DailyHours:
    """``22:00-06:00``. Raises InvalidInput."""
    match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", text, re.ASCII)
    start, end = (int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])) if match else (0, 0)
    if start == end:
        raise InvalidInput("a part of the day (UTC) such as '22:00-06:00'")
    return DailyHours(start, end)


def parse_depth(text: str) -> ReclusterDepth:
    """``2``, or ``1%``: a share of a level's parts. Raises InvalidInput."""
    is_percent = text.endswith("%")
    number = _number(text.removesuffix("%"))
    if not (0 < number <= 100 if is_percent else 1 <= number < float("inf")):
        raise InvalidInput("a number of at least 1, or a share of a level's parts such as '1%'")
    return ReclusterDepth(number, is_percent)


def _seconds(text: str) -> int:
    pieces = re.fullmatch(r"\s*(?:interval\s+)?((?:\d+\s*[a-z]+\s*)+)", text.lower(), re.ASCII)
    total = 0
    for digits, unit in re.findall(r"(\d+)\s*([a-z]+)", pieces[1]) if pieces else [("0", "")]:
        factor = _UNITS_MICROSECONDS.get(unit.removesuffix("s"))
        if factor is None or len(digits) > _DIGITS_MAX:
            raise InvalidInput("an interval such as '7 days', '36 hours' or '1 week 12 hours'")
        total += int(digits) * factor
    seconds = -(-total // 10**6)
    if seconds > INTERVAL_SECONDS_MAX:
        raise InvalidInput(f"at most {INTERVAL_SECONDS_MAX // 86400} days")
    return seconds


def parse_time_to_live(text: str) -> TimeToLive:
    """``created_at: 90 days``. Raises InvalidInput."""
    column, _, interval = text.rpartition(":")
    try:
        seconds = _seconds(interval)
    except InvalidInput:
        seconds = 0
    if not column.strip() or not seconds:
        raise InvalidInput("a column and how long rows live from its moment on, such as 'created_at: 90 days'")
    return TimeToLive(_unquoted(column), seconds)


def _unquoted(name: str) -> str:
    """A name without the spaces around it, or without its backticks."""
    name = name.strip()
    return name[1:-1].replace("``", "`") if re.fullmatch(r"`(?:[^`]|``)+`", name) else name


def _number(text: str) -> float:
    """0 for what is no number."""
    return float(text) if re.fullmatch(r"\d*\.?\d+(e[+-]?\d+)?|\d+\.", text, re.ASCII | re.IGNORECASE) else 0.0


def _names(text: str) -> tuple[str, ...]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidInput("a JSON list of column names")
    return tuple(value)


def _count(text: str) -> int:
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not 0 < len(digits) <= _DIGITS_MAX:
        raise InvalidInput(f"a whole number from 1 to {'9' * _DIGITS_MAX}")
    return int(digits)


def _share(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise InvalidInput("a number above 0 and at most 1")
    return value


def _one_of(*allowed: str) -> Callable[[str], str]:
    def value(text: str) -> str:
        if text not in allowed:
            raise InvalidInput(f"one of {', '.join(allowed)}")
        return text

    return value


def _some_seconds(text: str) -> int:
    seconds = _seconds(text)
    if seconds < 1:
        raise InvalidInput("an interval of at least 1 second")
    return seconds


def _pool(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text, re.ASCII):
        raise InvalidInput("a name of letters, digits, '_', '-' and '.', at most 64 of them")
    return text


_BY_TYPE: dict[Any, Callable[[str], Any]] = {
    bool: lambda text: _one_of("on", "off")(text) == "on",
    int: _count,
    str: str,
    tuple[str, ...]: _names,
}
_OF_FIELDS: dict[str, Callable[[str], Any]] = {
    "groups": parse_groups,
    "recluster_depth": parse_depth,
    "purge_dead_ratio": _share,
    "off_peak": lambda text: parse_hours(text) if text else None,
    "ttl": lambda text: parse_time_to_live(text) if text else None,
    "pool": _pool,
    "freshness_seconds": _some_seconds,
    "iceberg_seconds": lambda text: _some_seconds(f"{text} seconds" if text.isdecimal() else text),
}
"""The parsers of settings whose type and name do not say what is accepted."""


def _parser(field_name: str, kind: Any) -> Callable[[str], Any]:
    """Parses the property of a field of ``TableSettings`` that has this type."""
    if field_name in _OF_FIELDS:
        return _OF_FIELDS[field_name]
    if field_name.endswith("_seconds"):
        return _seconds
    if get_origin(kind) is Literal:
        return _one_of(*get_args(kind))
    return _BY_TYPE[get_args(kind)[0] if isinstance(kind, UnionType) else kind]


_TYPES = get_type_hints(TableSettings)
_VALUES = {name: _parser(field.name, _TYPES[field.name]) for name, field in _FIELDS.items()} | {FORMAT_PROPERTY: _count}
INTERVAL_PROPERTIES = frozenset(["delta.logRetentionDuration", _RETENTION_PROPERTY])
_ALWAYS_ON = ("delta.enableDeletionVectors", "delta.enableInCommitTimestamps")
# Delta's own properties that a user may set; any other one could ask for a feature that lakebed's writers do not honour.
_DELTA_VALUES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(INTERVAL_PROPERTIES, _seconds),
    **dict.fromkeys(_ALWAYS_ON, _one_of("true")),
}
