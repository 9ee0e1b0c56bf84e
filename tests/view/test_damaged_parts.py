"""A part whose bytes are damaged: a read, a settle or a mutation that trips over it names the file, whatever the engine says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Corrupt, LakebedError

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("m", pa.map_(pa.int32(), pa.string())), ("v", pa.float64())])
OPERATIONS: dict[str, Callable[[lakebed.Table], object]] = {
    "to_arrow": lambda table: table.to_arrow(),
    "lookup": lambda table: table.lookup([1]),
    "settle": lambda table: table.settle(),
    "update": lambda table: table.update({"v": "v + 1"}, "id > 0"),
}


@pytest.mark.parametrize("settled", [True, False])
def test_what_trips_over_damage_names_the_file(settled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    table.apply(pa.table({"id": [1, 2, 3], "m": [[(1, "a")], [], None], "v": [0.5, None, 1.5]}, SCHEMA))
    if settled:
        table.settle()
    [part] = table.inspect.parts()["path"].to_pylist()
    file = tmp_path / "t" / part
    whole, told = file.read_bytes(), 0
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    for at in range(4, len(whole) - 8, len(whole) // 20):
        for name, operation in OPERATIONS.items():
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            try:
                operation(lakebed.open(tmp_path / "t"))
            except LakebedError as error:
                assert isinstance(error, Corrupt) and part in str(error), f"{name}, byte {at}: {error}"
                told += 1
            else:
                if name in ("settle", "update") and lakebed.open(tmp_path / "t").version > table.version:
                    file.write_bytes(whole)
                    return  # it went on with what it read; the doctor tells
    file.write_bytes(whole)
    assert told > 3
