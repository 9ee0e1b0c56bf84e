"""A part whose bytes are damaged: a read, a settle or a mutation that trips over it names the file, whatever the engine says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.database import TableOfQuery, query_tables
from lakebed.errors import Corrupt, LakebedError
from lakebed.table import internals_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False), ("m", pa.map_(pa.int32(), pa.string())), ("v", pa.float64()),
        ("name", pa.string()),
    ]
)  # fmt: skip


def joined_query(table: lakebed.Table) -> object:
    def opened(name: str) -> TableOfQuery:
        inside = internals_of(table)
        snapshot = inside.log.refresh()
        return TableOfQuery(inside.storage, inside.view.pin(snapshot, on_this_host=False), snapshot)

    sql = "select count(distinct t.v), count(distinct u.name) from a.t join a.u using (id)"
    return query_tables(sql, ["a.t", "a.u"], opened)


OPERATIONS: dict[str, Callable[[lakebed.Table], object]] = {
    "to_arrow": lambda table: table.to_arrow(),
    "to_arrow where": lambda table: table.to_arrow(where="name > 'b' and v > 0"),
    "query": lambda table: table.query("select count(distinct v), count(distinct name) from t", "t"),
    "joined query": joined_query,
    "lookup": lambda table: table.lookup(pa.table({"id": [1]})),
    "settle": lambda table: table.settle(),
    "update": lambda table: table.update({"v": "v + 1"}, "id > 0"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "settled"), [(["id"], True), (["id"], False), ([], False)])
@pytest.mark.parametrize("verify", ["local", "off"])
def test_what_trips_over_damage_names_the_file(
    verify: str, keys: list[str], settled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, and if reads compare nothing before, when DuckDB fails."""
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=keys, properties={"lakebed.verify_reads": verify})
    rows = {"id": range(1000), "m": [[(1, "a")]] * 1000, "v": [n / 7 for n in range(1000)]}
    table.apply(pa.table({**rows, "name": [f"name {n * 7919 % 1000}" for n in range(1000)]}, SCHEMA))
    if settled:
        table.settle()
    [part] = table.inspect.parts()["path"].to_pylist()
    file = tmp_path / "t" / part
    whole, told = file.read_bytes(), Counter[str]()
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    places = range(4, len(whole) - 8, len(whole) // 20)
    for at in places:
        for name, operation in OPERATIONS.items():
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            try:
                operation(lakebed.open(tmp_path / "t"))
            except LakebedError as error:
                assert isinstance(error, Corrupt) and part in str(error), f"{name}, byte {at}: {error}"
                told[name] += 1
    file.write_bytes(whole)
    assert lakebed.open(tmp_path / "t").version == table.version, "nothing was written of what is damaged"
    for name in OPERATIONS.keys() - ({"settle"} if settled or not keys else set()):
        assert told[name] == len(places) if verify == "local" or name == "update" else told[name] > 3, name
