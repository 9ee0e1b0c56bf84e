"""What a catalog says of a table, and which entries are lakebed's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput
from lakebed.listeners.catalogs.entry import (
    Entry,
    Name,
    entry_of,
    is_newer,
    is_same,
    merged,
    name_of,
    owned_by,
    require_ours,
)
from lakebed.listeners.targets import Catalog
from tests.internals import log_of

pytestmark = pytest.mark.usefixtures("own_cache")
SCHEMA = pa.schema(
    [
        pa.field("Id", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("at", pa.timestamp("us")),
        ("amount", pa.decimal128(12, 2)),
        ("tags", pa.map_(pa.string(), pa.list_(pa.struct([("é x", pa.int32())])))),
    ]
)


def entry(path: Path, schema: pa.Schema = SCHEMA) -> Entry:
    table = lakebed.create(path / "lake/public/orders", schema, keys=[schema.names[0]])
    table.alter(comment={"at": "when it came"})
    return entry_of(log_of(table).refresh(), table.path)


def test_columns_have_their_types_as_hive_spells_them_and_sparks_schema_has_all_of_them(tmp_path: Path) -> None:
    found = entry(tmp_path)
    assert [(each.name, each.type, each.comment) for each in found.columns] == [
        ("Id", "bigint", ""),
        ("small", "tinyint", ""),
        ("at", "timestamp", "when it came"),
        ("amount", "decimal(12,2)", ""),
        ("tags", "map<string,array<struct<é x:int>>>", ""),
    ]
    schema = orjson.loads(found.parameters["spark.sql.sources.schema"])
    assert schema["fields"][0] == {"name": "Id", "type": "long", "nullable": False, "metadata": {}}
    assert schema["fields"][2] == {
        "name": "at", "type": "timestamp_ntz", "nullable": True, "metadata": {"comment": "when it came"},
    }  # fmt: skip
    assert found.parameters["lakebed.root"] == str(tmp_path / "lake/public/orders")
    assert found.parameters["lakebed.keys"] == '["Id"]'


def test_a_schema_that_is_long_is_in_pieces_that_a_metastore_keeps(tmp_path: Path) -> None:
    wide = pa.schema([(f"column_{number}", pa.int64()) for number in range(300)] + [("at", pa.timestamp("us"))])
    parameters = entry(tmp_path, wide).parameters
    count = int(parameters["spark.sql.sources.schema.numParts"])
    pieces = [parameters[f"spark.sql.sources.schema.part.{number}"] for number in range(count)]
    assert count > 1 and max(map(len, pieces)) == 4000
    assert len(orjson.loads("".join(pieces))["fields"]) == 301


@pytest.mark.parametrize(
    ("table", "database", "expected"),
    [
        ("public.orders", "{schema}", Name("public", "orders")),
        ("public.old.orders", "shop_{schema}", Name("shop_public", "old.orders")),
        ("orders", "{schema}", Name("default", "orders")),
        ("orders", "shop", Name("shop", "orders")),
    ],
)
def test_the_name_in_the_catalog(table: str, database: str, expected: Name) -> None:
    assert name_of(table, database) == expected


def test_what_is_ours_of_an_entry_is_put_right_and_nothing_else(tmp_path: Path) -> None:
    found = entry(tmp_path)
    by_hand = {**found.parameters, "owner.team": "shop", "lakebed.keys": "nothing", "delta.gone": "1"}
    assert merged(by_hand, found.parameters) == {**found.parameters, "owner.team": "shop"}
    later = {**found.parameters, "lakebed.version": "99"}
    assert merged(later, found.parameters) == later, "a version alone is no change"
    assert is_same(found, replace(found, version=7, parameters={**found.parameters, "lakebed.version": "7"}))
    assert not is_same(found, replace(found, comment="other"))


def test_an_entry_of_somebody_else_or_of_a_later_version_is_known(tmp_path: Path) -> None:
    found, name = entry(tmp_path), Name("public", "orders")
    require_ours(found.parameters, name, found)
    with pytest.raises(InvalidInput, match=r"public\.orders is taken in the catalog by something that lakebed did not"):
        require_ours({"EXTERNAL": "TRUE"}, name, found)
    with pytest.raises(InvalidInput, match="by the table at /other: remove that entry"):
        require_ours({"lakebed.root": "/other"}, name, found)
    assert is_newer({**found.parameters, "lakebed.version": "9"}, found)
    assert not is_newer(found.parameters, found)
    assert not is_newer({**found.parameters, "lakebed.version": "9", "lakebed.table_id": "before"}, found)
    assert owned_by(lambda root: root == found.root, found.table_id)(found.parameters)
    assert not owned_by(lambda root: True, "of a table that was there before")(found.parameters)
    assert not owned_by(lambda root: False, found.table_id)(found.parameters)
    assert not owned_by(lambda root: root == found.root, found.table_id)({"EXTERNAL": "TRUE"})


def test_what_a_metastore_does_not_keep_is_cut_or_left_out(tmp_path: Path) -> None:
    """It has columns of a database for these, and asks that again and again before it refuses."""
    orders = lakebed.create(tmp_path / "orders", pa.schema([("id", pa.int64())]), keys=["id"])
    orders.alter(comment={"id": 'it\'s the "number" é\n' + "x" * 5_000})
    snapshot = log_of(orders).refresh()
    own = {"delta." + "x" * 300: "on", "delta.x": "x" * 4_001, "delta.appendOnly": "false"}
    metadata = replace(snapshot.metadata, description="é" * 5_000, configuration=own)
    found = entry_of(replace(snapshot, metadata=metadata), orders.path)
    assert [len(column.comment) for column in found.columns] == [255]
    assert found.parameters["comment"] == "é" * 4_000
    assert {name for name in found.parameters if name.startswith("delta.")} == {"delta.appendOnly"}
    text = "".join(found.parameters[f"spark.sql.sources.schema.part.{number}"] for number in range(2))
    assert len(orjson.loads(text)["fields"][0]["metadata"]["comment"]) > 5_000, "Spark's readers get all of it"


@pytest.mark.parametrize(
    ("url", "how", "message"),
    [
        ("ftp://host", {}, "is no catalog: give thrift://HOST:PORT"),
        ("thrift://", {}, "is no catalog"),
        ("glue", {}, "is no catalog"),
        ("thrift://host:port", {}, "can't be read"),
        ("thrift://ann:secret@host:9083", {}, "must not have a user or a password"),
        ("https://host/", {"format": "delta"}, "are entered there as iceberg, not as 'delta'"),
        ("thrift://host", {"config": {"token": "x"}}, "'token' can't be set"),
        ("https://host/", {"config": {"token": "x"}}, "token is a secret"),
        ("https://host/", {"config": {"token": "${HOME}"}}, "LAKEBED_SECRET_"),
        ("thrift://host", {"format": "hudi"}, "as delta or iceberg, not as 'hudi'"),
        ("thrift://host", {"database": "a b"}, "can't be a database"),
    ],
)
def test_a_catalog_that_can_not_be_is_refused(url: str, how: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Catalog(url=url, **how)  # type: ignore[arg-type]
