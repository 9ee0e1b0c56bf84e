"""Random schemas, policies, crashes and changes by hand: each record is in the table whole, or in the quarantine."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import InvalidSchema
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.schema.fitting import EVOLUTIONS, EvolvePolicy
from lakebed.table import internals_of
from tests.decode.records import event, with_schema
from tests.ingest.crashes import POINTS, Crash, dying
from tests.ingest.test_evolving_streams import ID, Stream, table_at
from tests.worlds import seeds

KINDS = {"int16": 2**15 - 1, "int32": 2**31 - 1, "int64": 2**40, "string": "text", "boolean": True}
NAMES = ("qty", "a", "b", "c")
Fields = dict[str, Any]


def random_fields(world: random.Random, before: Fields) -> Fields:
    """The fields of the next schema of the source: some come, some go, some have another type."""
    fields = dict(before)
    for name in NAMES:
        match world.randrange(6):
            case 0:
                fields[name] = world.choice([*KINDS, "struct"])
            case 1:
                fields.pop(name, None)
            case 2 if fields.get(name) == "struct":
                fields[f"{name}.more"] = "int64"
    return fields


def record(world: random.Random, number: int, fields: Fields) -> dict[str, Any]:
    schema, row = [ID], {"id": number}
    for name in NAMES:
        if name not in fields:
            continue
        one: dict[str, Any] = {"type": fields[name], "field": name, "optional": True}
        value: Any = world.choice([None, 1, KINDS.get(fields[name], 1)])
        if fields[name] == "string" and value is not None:
            value = str(value)
        if fields[name] == "boolean" and value is not None:
            value = world.random() < 0.5
        if fields[name] == "struct":
            inner = [{"type": "int32", "field": "x", "optional": True}]
            value = {"x": world.choice([None, 1])}
            if f"{name}.more" in fields:
                inner.append({"type": "int64", "field": "more", "optional": True})
                value["more"] = world.choice([None, 2**40])
            one["fields"] = inner
        schema.append(one)
        row[name] = value
    return with_schema(event("c", row), schema)


def same(value: Any, stored: Any) -> bool:
    """Whether a column has what was sent. A text column may have a number as its digits, a number column digits as a number."""
    if isinstance(value, dict) and isinstance(stored, dict):
        return all(same(one, stored.get(name)) for name, one in value.items())
    if value is None or stored is None:
        return value is stored
    if isinstance(stored, str) and not isinstance(value, str):
        return json.loads(stored) == value
    return str(value) == str(stored) or (not isinstance(value, str) and value == stored)


def check(table: lakebed.Table, values: list[dict[str, Any]], first: dict[str, str]) -> None:
    """``first``: of columns that were renamed by hand, the name at the source by the name in the table."""
    sent = {change["payload"]["after"]["id"]: change["payload"]["after"] for change in values}
    path = table.path + QUARANTINE_SUFFIX
    aside = lakebed.open(path).to_arrow()["offset"].to_pylist() if Path(path, "_delta_log").exists() else []
    found = {row["id"]: row for row in table.to_arrow().to_pylist()}
    assert len(aside) == len(set(aside))
    assert sorted([*found, *aside]) == sorted(sent)
    for number, row in found.items():
        by_source = {first.get(name, name): value for name, value in row.items()}
        for name, value in sent[number].items():
            assert same(value, by_source.get(name)), (number, name, value, row)


@seeds(3)
def test_each_record_is_in_the_table_whole_or_in_the_quarantine(tmp_path: Path, seed: int) -> None:
    world = random.Random(seed)
    table = table_at(tmp_path)
    fields: Fields = {"qty": "int32"}
    values, ends, first = [], [], dict[str, str]()
    for _ in range(world.randint(2, 5)):
        for _ in range(world.randint(1, 6)):
            if world.random() < 0.4:
                fields = random_fields(world, fields)
            values.append(record(world, len(values), fields))
        ends.append(len(values))
    for batch_id, end in enumerate(ends):
        while True:
            allowed = frozenset(one for one in EVOLUTIONS if world.random() < 0.6)
            stream = Stream(table, values, EvolvePolicy(allowed=allowed, by_schema=True), ends=ends)
            if world.random() < 0.4:
                with (
                    suppress(Crash),
                    dying(*world.choice(POINTS)),
                ):  # a batch that is in the table already gets to no point
                    stream.run(batch_id)
                by_hand(world, table, first)
                continue
            stream.run(batch_id)
            break
        by_hand(world, table, first)
        check(table, values[:end], first)
    if Path(table.path + QUARANTINE_SUFFIX, "_delta_log").exists():
        whole = DecoderSchema.of_table(
            table.schema, ("id",), None, EvolvePolicy(allowed=frozenset(EVOLUTIONS), by_schema=True)
        )
        internals_of(table).replay_quarantine(decoder("debezium-json", whole))
        check(table, values, first)
    table.settle()
    check(table, values, first)


def by_hand(world: random.Random, table: lakebed.Table, first: dict[str, str]) -> None:
    """Somebody alters the table, perhaps."""
    match world.randrange(8):
        case 0 if "hand" not in table.schema.names:
            table.alter(add={"hand": "string"})
        case 1 if "qty" in table.schema.names:
            table.alter(rename={"qty": "pieces"})
            first["pieces"] = "qty"
        case 2:
            try:
                table.alter(widen={"a": "long"})
            except InvalidSchema:
                return
