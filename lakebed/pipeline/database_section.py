"""``database``: the settings of a pipeline that keeps a copy of a whole database, one table for each topic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from lakebed.errors import InvalidInput
from lakebed.pipeline.document import Document, PropertyText
from lakebed.pipeline.sections import no_pattern, wrong_properties

# -- What a pipeline's settings say about one table of a database; what they leave out is derived from its records ---------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWishes:
    """What the file says of one table of a database."""

    keys: tuple[str, ...] | None = None  # None for those of the message key; empty if the table is only appended to
    sort_key: tuple[str, ...] = ()
    sequence_by: str | None = None  # None for the order of the source, as far as its records have one
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, PropertyText] = field(default_factory=dict)
    types: Literal["given", "wide"] = "given"
    # the new name of a field, to the name that it had before
    renamed_columns: Mapping[str, str] = field(default_factory=dict)
    # regular expressions of the names of the source's tables whose events are taken; empty for one table
    sources: tuple[str, ...] = ()
    max_age_seconds: float = 10.0


# -- The section -----------------------------------------------------------------------------------------------------------


_MAX_AGE_SECONDS = 10.0
_MAX_TABLES = 1_000
_PARTS = ("database", "tables")
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableRules:
    """``database.tables.<pattern>``: what differs from what is derived. None: nothing is said of it here."""

    keys: tuple[str, ...] | None = None
    """None: those of the message key. Empty: the table is only appended to."""
    sort_key: tuple[str, ...] | None = None
    sequence_by: str | None = None
    partition_by: tuple[str, ...] | None = None
    properties: Mapping[str, PropertyText] = field(default_factory=dict)
    types: Literal["given", "wide"] | None = None
    renamed_columns: Mapping[str, str] = field(default_factory=dict)
    """New name of a field of the source to the name that it had before."""
    sources: tuple[str, ...] | None = None
    """The tables of the source whose events the topic has, if it has several: their names, or regular expressions."""
    max_age_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointsSection:
    """``database.points``: moments of the source at which every transaction up to them is in, whole."""

    transaction_topic: str
    """Debezium's topic of transactions (``provide.transaction.metadata``), such as ``shop.transaction``."""
    interval_seconds: float = 1.0  # the least time from one point to the next
    wait_seconds: float = 60.0  # how long a point waits for a table that is not there yet
    settle_seconds: float | None = None
    """How often all tables are settled up to one point, so that every Delta reader can read them as of it; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesSection:
    """``database.prices``: what a store asks for 1,000 requests, in dollars; S3's list price. ``validate`` reckons with them."""

    puts: float = 0.005
    gets: float = 0.0004


@dataclass(frozen=True, slots=True)
class Hours:
    """A part of each day, in minutes after midnight in UTC; it may go over midnight."""

    begin: int
    end: int

    def seconds_until(self, now: datetime) -> float:
        """How long until it begins; 0 while it goes on."""
        minutes = now.hour * 60 + now.minute
        is_within = self.begin <= minutes < self.end if self.begin < self.end else not self.end <= minutes < self.begin
        if is_within:
            return 0.0
        return (self.begin * 60 - (minutes * 60 + now.second)) % _DAY_SECONDS - now.microsecond / 1e6


def hours_of(text: str) -> Hours | None:
    """The hours that a text such as ``22:00-06:00`` means; None if it means none."""
    try:
        begin, end = (datetime.strptime(each.strip(), "%H:%M") for each in text.split("-"))
    except ValueError:
        return None
    minutes = begin.hour * 60 + begin.minute, end.hour * 60 + end.minute
    return None if minutes[0] == minutes[1] else Hours(*minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySection:
    """``database.verify``: how ``lakebed verify`` reaches the database, and how much it may ask of it."""

    url: str = field(repr=False)
    """Of PostgreSQL, as libpq has it: ``postgresql://user@host/database``; of MariaDB ``mariadb://user@host``."""
    slot: str | None = None
    """PostgreSQL: the connector's ``slot.name``; None: the only one of the database."""
    offsets_topic: str | None = None
    """MariaDB and MySQL: the ``offset.storage.topic`` of the connector's worker."""
    connector: str | None = None
    """MariaDB and MySQL: the connector's name; None: the only one that has stored offsets with the topics' prefix."""
    rows_per_second: float = 50_000.0  # that are read of the database, at most; 0: without pauses
    wait_seconds: float = 300.0  # how long a table may be behind what was read
    snapshot_minutes: float = 60.0  # with --snapshot: how long the database may be held at one position
    every_hours: float = 24.0  # with --continuous: how long after a comparison of a table the next one begins
    between: str | None = None
    """With ``--continuous``: when the database may be read, in UTC, such as ``22:00-06:00``; None: at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSection:
    """The database: its tables are ``<path>/<schema>/<table>``. ``include`` and ``exclude``: regular expressions that match
    the whole name of a table, ``schema.table``.
    """

    path: str
    topic_prefix: str | None = None
    """What the names of topics begin with; None: it is known from the source's ``topics`` or ``topic_pattern``."""
    include: tuple[str, ...] = ()
    """None: all."""
    exclude: tuple[str, ...] = ()
    tables: Mapping[str, _TableRules] = field(default_factory=dict)
    """Rules by a table's name, or by a regular expression that matches the whole name."""
    properties: Mapping[str, PropertyText] = field(default_factory=dict)
    """Of all tables."""
    max_age_seconds: float = _MAX_AGE_SECONDS
    """How old a record may be before a batch takes it, where a table has so few that they can wait."""
    max_tables: int = _MAX_TABLES
    points: PointsSection | None = None
    signal_topic: str | None = None
    """The topic from which the connector takes signals (``signal.kafka.topic``); None: nothing can be asked of it."""
    notification_topic: str | None = None
    """The topic of the connector's notifications (``notification.sink.topic.name``), in JSON; None: it sends none."""
    mirror: bool = False
    """Whether the rows that the source no longer has are removed at the end of a resnapshot."""
    prices: PricesSection = field(default_factory=PricesSection)
    verify: VerifySection | None = None
    """Where the database is, for ``lakebed verify``; None: the file does not say it."""

    def rules_for(self, name: str) -> list[str]:
        """The patterns of the rules that apply to a table, in their order."""
        matching = [pattern for pattern in self.tables if pattern != name and re.fullmatch(pattern, name)]
        return [*matching, name] if name in self.tables else matching

    def wishes_for(self, name: str) -> TableWishes:
        """What the file says about a table. All rules whose pattern matches apply in their order, those of the name itself
        last; of what several say, the last one counts.
        """
        applied = [self.tables[pattern] for pattern in self.rules_for(name)]
        said = {
            key: value
            for rules in applied
            for key in ("keys", "sort_key", "sequence_by", "partition_by", "types", "max_age_seconds", "sources")
            if (value := getattr(rules, key)) is not None
        }
        return TableWishes(
            **{"max_age_seconds": self.max_age_seconds, **said},
            properties={
                **self.properties,
                **{name: text for rules in applied for name, text in rules.properties.items()},
            },
            renamed_columns={new: old for rules in applied for new, old in rules.renamed_columns.items()},
        )


def wrong_in(document: Document, section: DatabaseSection) -> Iterator[InvalidInput]:
    """What is wrong with the values of a section, each with its line."""
    for name in ("include", "exclude"):
        for number, pattern in enumerate(getattr(section, name)):
            if why := no_pattern(pattern):
                yield document.error(document.at("database", name, number), why)
    yield from _wrong_numbers(document, section)
    for name in ("signal_topic", "notification_topic"):
        if getattr(section, name) == "":
            yield document.error(document.at("database", name), "it must name a topic; leave it out if there is none")
    if section.mirror and section.notification_topic is None:
        text = "it needs notification_topic: the connector's notifications say when all rows have come"
        yield document.error(document.at("database", "mirror"), text)
    yield from wrong_properties(document, section.properties, "database", "properties")
    for pattern, rules in section.tables.items():
        if why := no_pattern(pattern):
            yield document.error(document.at(*_PARTS, pattern), why)
        yield from wrong_properties(document, rules.properties, *_PARTS, pattern, "properties")
        for number, source in enumerate(rules.sources or ()):
            if why := no_pattern(source):
                yield document.error(document.at(*_PARTS, pattern, "sources", number), why)
        if rules.max_age_seconds is not None and rules.max_age_seconds < 0:
            yield document.error(document.at(*_PARTS, pattern, "max_age_seconds"), "it must be at least 0")


def _wrong_numbers(document: Document, section: DatabaseSection) -> Iterator[InvalidInput]:
    if section.max_age_seconds < 0:
        text = "it must be at least 0; with 0 each batch takes all that is there"
        yield document.error(document.at("database", "max_age_seconds"), text)
    if section.max_tables < 1:
        yield document.error(document.at("database", "max_tables"), "it must be at least 1")
    for name in ("puts", "gets"):
        if getattr(section.prices, name) < 0:
            yield document.error(document.at("database", "prices", name), "a price must be at least 0")
    for name, is_above in (
        ("rows_per_second", False),
        ("snapshot_minutes", True),
        ("wait_seconds", False),
        ("every_hours", False),
    ):
        if section.verify is None or (given := getattr(section.verify, name)) > 0 or (given == 0 and not is_above):
            continue
        text = "it must be above 0" if is_above else "it must be at least 0"
        yield document.error(document.at("database", "verify", name), text)
    if section.verify is not None and section.verify.between is not None and hours_of(section.verify.between) is None:
        text = "it must be two times of day in UTC, such as '22:00-06:00'"
        yield document.error(document.at("database", "verify", "between"), text)
    if section.points is None:
        return
    for name in ("interval_seconds", "wait_seconds", "settle_seconds"):
        if (getattr(section.points, name) or 0) < 0:
            yield document.error(document.at("database", "points", name), "it must be at least 0")
    if not section.points.transaction_topic:
        text = "it must name Debezium's topic of transactions, such as shop.transaction"
        yield document.error(document.at("database", "points", "transaction_topic"), text)
