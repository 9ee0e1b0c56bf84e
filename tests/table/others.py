"""Delta tables as other programs write them, by hand: any file, any statistics, any action."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.schema.conversion import schema_to_json

PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}


@dataclass(frozen=True)
class File:
    """``stats``: as they stand in the log, but for ``numRecords`` if it is not told; None for none."""

    rows: pa.Table
    stats: Mapping[str, Any] | None = field(default_factory=dict)
    partition: Mapping[str, str | None] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def table_of_others(
    path: Path,
    schema: pa.Schema,
    files: Sequence[File],
    partition_by: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
    protocol: Mapping[str, Any] = PLAIN,
) -> str:
    """A table of one version; returns its path."""
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_to_json(schema),
        "partitionColumns": list(partition_by),
        "configuration": dict(configuration or {}),
        "createdTime": 0,
    }
    commit(path, 0, [{"protocol": protocol}, {"metaData": metadata}, *(add(path, file) for file in files)])
    return str(path)


def add(path: Path, file: File) -> dict[str, Any]:
    """Write the file; the action that names it."""
    name = f"part-{uuid.uuid4()}.parquet"
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(file.rows, path / name, **file.options)
    action = {
        "path": name,
        "partitionValues": dict(file.partition),
        "size": (path / name).stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
    }
    if file.stats is not None:
        action["stats"] = json.dumps({"numRecords": len(file.rows), **file.stats})
    return {"add": action}


def commit(path: Path, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
    """A commit file."""
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))
