"""What ``lakebed validate`` says about a database: what becomes of its topics, and what a day costs."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.discovery.naming import NoTable
from lakebed.errors import LakebedError
from lakebed.pipeline.bill import Bill, batches_a_day, bill
from lakebed.pipeline.database.check import CheckedDatabase, TopicSeen, bill_of
from lakebed.pipeline.database.introducer import Expected, Introduced, NotYet
from lakebed.pipeline.file.settings import DatabasePipeline
from lakebed.pipeline.places import is_local
from lakebed.schema.conversion import canonical_schema

TOPICS_SHOWN_MAX = 200


def database_lines(pipeline: DatabasePipeline, checked: CheckedDatabase) -> Iterator[str]:
    """The tables first, then what is none and why, then the bill."""
    if not checked.topics:
        yield f"fine; what the topics become below {pipeline.path} was not looked at"
        yield from _bound(pipeline)
        return
    known = [one for one in checked.topics if isinstance(one.found, Introduced | Expected)]
    there = sum(isinstance(one.found, Introduced) for one in known)
    yield f"{len(checked.topics):,} topics: {len(known):,} are tables below {pipeline.path}, {there:,} of them are there"
    shown = sorted(checked.topics, key=lambda one: (not one.warnings, _order(one), one.topic))
    for one in shown[:TOPICS_SHOWN_MAX]:
        yield f"  {one.topic}: {_text_of(one)}"
        yield from (f"    warning: {warning}" for warning in one.warnings)
    if len(shown) > TOPICS_SHOWN_MAX:
        yield f"  and {len(shown) - TOPICS_SHOWN_MAX:,} more"
    cost, batches = bill_of(pipeline, checked.topics)
    came = f"{sum(one.records for one in known):,} records came in the last 24 hours"
    yield came if is_local(pipeline.path) else f"{came}; as many a day cost {_text_of_bill(cost)}"
    for name, often in sorted(batches.items(), key=lambda item: -item[1])[:5]:
        if often:
            yield f"  {name}: {often:,.0f} batches a day"
    yield from _bound(pipeline)


def errors_in(checked: CheckedDatabase) -> list[LakebedError]:
    """What is wrong with single tables."""
    return [one.found for one in checked.topics if isinstance(one.found, LakebedError)]


def _order(one: TopicSeen) -> int:
    kinds = (Introduced, Expected, NotYet, LakebedError, NoTable)
    return next(at for at, kind in enumerate(kinds) if isinstance(one.found, kind))


def _text_of(one: TopicSeen) -> str:
    match one.found:
        case Introduced(name, table):
            return f"{name} is there, at version {table.version}"
        case Expected(name, _, _, new):
            keys = f"keys {', '.join(new.keys)}" if new.keys else "no keys, so it is only appended to"
            order = f", in the order of {new.sequence_by}" if new.sequence_by else ", in the order of arrival"
            return f"{name} will be created: {len(canonical_schema(new.schema))} columns, {keys}{order if new.keys else ''}"
        case NotYet(reason):
            return f"no table yet: {reason}"
        case NoTable(reason):
            return f"no table: {reason}"
        case LakebedError():
            return "wrong, see below"


def _bound(pipeline: DatabasePipeline) -> Iterator[str]:
    """What a table costs at most, if it is not one of the hot ones; nothing on a local disk."""
    if is_local(pipeline.path):
        return
    section = pipeline.database
    pace = min(section.max_age_seconds, section.points.interval_seconds if section.points else section.max_age_seconds)
    one = bill([batches_a_day(86_400, pace, 0.0)], section.prices.puts, section.prices.gets)
    idle = bill([0.0], section.prices.puts, section.prices.gets)
    why = "database.points.interval_seconds" if pace < section.max_age_seconds else "max_age_seconds"
    yield (
        f"a table with a record a second costs {_text_of_bill(one)} at {why}: {pace:g}; an idle one ${idle.dollars:.4f} a day"
    )


def _text_of_bill(cost: Bill) -> str:
    return (
        f"${cost.dollars:,.2f} a day of requests to an object store ({cost.commits:,.0f} commits, {cost.puts:,.0f} puts, "
        f"{cost.gets:,.0f} gets)"
    )
