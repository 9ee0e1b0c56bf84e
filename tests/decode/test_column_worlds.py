"""Whatever a source does to the columns of a table without an event, no column of the copy is wrong without a finding."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakebed.decode.typed.registry import RegistrySettings
from tests.decode.avro_events import avro_value, encoded, envelope, envelope_schema, framed
from tests.decode.records import event, with_schema
from tests.decode.schema_registry import SchemaRegistry
from tests.decode.test_old_rows import json_schema
from tests.positions.test_source_columns import ID, NOTE, Copy
from tests.worlds import seeds

KINDS = {"note": "string", "comment": "string", "coupon": "int32", "size": "int32"}
OTHERS = {"note": "comment", "comment": "note", "coupon": "size", "size": "coupon"}
"""The column of the same type, as which a column may be renamed."""
Change = dict[str, Any]
Fields = Sequence[dict[str, Any]]
Encode = Callable[[Change, Fields], bytes]


class Source:
    """A table at a source, whose columns change with no event for its rows. Each change of a row is one."""

    def __init__(self, copy: Copy, draw: random.Random, encode: Encode) -> None:
        self.copy, self.draw, self.encode, self.ms = copy, draw, encode, 0
        self.columns: dict[str, dict[str, Any]] = {"note": NOTE}
        self.rows: dict[int, dict[str, Any]] = {}
        self.waiting: list[tuple[int, bytes]] = []

    def change_columns(self) -> None:
        """A column is added, dropped, renamed, or renamed by case alone."""
        self.ms += 1
        name = self.draw.choice(list(KINDS))
        if name not in self.columns:
            self._add(name)
        elif self.draw.random() < 0.2:
            self.columns[name] = self.columns[name] | {"field": self.columns[name]["field"].swapcase()}
        else:
            self._drop(name)

    def _add(self, name: str) -> None:
        default = self.draw.choice([None, 0, 7] if KINDS[name] == "int32" else [None, "", "x"])
        needs = default is not None and self.draw.random() < 0.5
        written = {} if default is None or (needs and self.draw.random() < 0.5) else {"default": default}
        self.columns[name] = {"type": KINDS[name], "field": name, "optional": not needs, **written}
        for row in self.rows.values():
            row[name] = default

    def _drop(self, name: str) -> None:
        new = OTHERS[name]
        is_renamed = new not in self.columns and self.draw.random() < 0.5
        del self.columns[name]
        if is_renamed:
            self.columns[new] = {"type": KINDS[new], "field": new, "optional": True}
        for row in self.rows.values():
            value = row.pop(name)
            if is_renamed:
                row[new] = value

    def change_row(self) -> None:
        self.ms += self.draw.randint(0, 2)
        id = self.draw.randrange(8)
        values = {"string": ["a", "b", ""], "int32": [0, 1, 2]}
        self.rows[id] = {name: self.draw.choice(values[column["type"]]) for name, column in self.columns.items()}
        row = {column["field"]: self.rows[id][name] for name, column in self.columns.items()}
        change = event("u", {"id": id, **row}, None, self.ms)
        self.waiting.append((id % 2, self.encode(change, [ID, *self.columns.values()])))

    def send(self, partition: int) -> None:
        """Have the waiting events of a partition read; sometimes some of them once more."""
        some = [value for number, value in self.waiting if number == partition]
        self.waiting = [one for one in self.waiting if one[0] != partition]
        again = some[-self.draw.randint(0, 3) :] if self.draw.random() < 0.2 else []
        self.copy.source.add("t", partition, *some, *again, *some[len(some) - len(again) :])
        self.copy.read()

    def send_again(self) -> None:
        """Have some of all events read again, as after a restart of the connector at an older place."""
        sent = {number: list(one.values) for number, one in self.copy.source.topics["t"].items()}
        for number in self.draw.choices(list(sent), k=6):
            begin = self.draw.randrange(len(sent[number]))
            self.copy.source.add("t", number, *sent[number][begin : begin + self.draw.randint(1, 30)])
            self.copy.read()

    @property
    def wrong(self) -> set[str]:
        """The columns in which the copy differs."""
        found = {
            one["id"]: {name.lower(): value for name, value in one.items()}
            for one in self.copy.table.to_arrow().to_pylist()
        }
        return {name for id, row in self.rows.items() for name, value in row.items() if found[id].get(name) != value}

    @property
    def advised(self) -> set[str]:
        return {name.lower() for name in self.copy.advised}


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as found:
        yield found


def encode_of(format: str, registry: SchemaRegistry) -> Encode:
    """What writes the events of a format, each with the schema of its fields."""
    ids: dict[str, int] = {}

    def registered(schema: Any, kind: str) -> int:
        text = json.dumps(schema)
        if text not in ids:
            ids[text] = registry.register(schema, kind)
        return ids[text]

    def encode(change: Change, fields: Fields) -> bytes:
        if format == "debezium-json":
            return json.dumps(with_schema(change, fields), separators=(",", ":")).encode()
        if format == "debezium-json-schema":
            schema = json_schema(envelope(fields)["fields"])
            return framed(registered(schema, "JSON"), json.dumps(change).encode())
        avro = envelope_schema(fields)
        return framed(registered(avro, "AVRO"), encoded(avro, avro_value(change, envelope(fields))))

    return encode


@pytest.mark.few(6)
@pytest.mark.parametrize("format", ["debezium-json", "debezium-avro", "debezium-json-schema"])
@seeds(4)
def test_no_column_is_wrong_without_a_finding(tmp_path: Path, seed: int, format: str, registry: SchemaRegistry) -> None:
    draw = random.Random(seed)
    options: dict[str, Any] = {} if format == "debezium-json" else {"registry": RegistrySettings(url=registry.url)}
    source = Source(Copy(tmp_path / "t", format=format, **options), draw, encode_of(format, registry))
    source.change_row()
    for _ in range(12):
        for _ in range(draw.randint(0, 6)):
            source.change_row()
        if draw.random() < 0.7 and not source.waiting:
            source.change_columns()
            source.change_row()
        for partition in draw.sample([0, 1], draw.randint(1, 2)):
            source.send(partition)
        if not source.waiting:
            source.change_row()
            source.send(source.waiting[0][0])
            assert source.wrong <= source.advised
    source.copy.table.maintenance.resume()
    source.send_again()
    assert source.advised == set(), "events that come again show no column that is back"
