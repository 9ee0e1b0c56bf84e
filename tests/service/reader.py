"""A reader that knows a table only by the service's answers: pyarrow reads the files, Delta's vectors are the dead rows."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.client import Scan
from lakebed.log.deletion_vector import DeletionVector, unpack


def read(scan: Scan, schema: pa.Schema) -> list[dict[str, Any]]:
    """All live rows of the files of a scan, in no order."""
    out: list[dict[str, Any]] = []
    for file in scan.files:
        rows = pq.ParquetFile(Path(scan.root) / file["path"]).read().to_pylist()
        dead = _dead(scan.root, file)
        for place, row in enumerate(rows):
            if place not in dead:
                values = {logical: row.get(stored) for logical, stored in scan.stored_names.items()}
                out.append(values | {name: _typed(schema, name, text) for name, text in file["partition"].items()})
    if scan.rows is not None:
        out += pa.ipc.open_stream(base64.b64decode(scan.rows)).read_all().to_pylist()
    return out


def _dead(root: str, file: dict[str, Any]) -> set[int]:
    if file["deletion_vector"] is None:
        return set()
    vector = DeletionVector.from_json(file["deletion_vector"])
    path = vector.file_path()
    return set(unpack(vector, None if path is None else (Path(root) / path).read_bytes()))


def _typed(schema: pa.Schema, name: str, text: str | None) -> Any:
    return pa.array([text]).cast(schema.field(name).type)[0].as_py()
