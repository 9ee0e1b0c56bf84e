"""What a table is made of, as its log says it: schema, partition columns, properties, and the features that readers need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Protocol:
    """The features that a reader and a writer must support."""

    min_reader_version: int
    min_writer_version: int
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Schema, partition columns and properties of a table."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]
    created_ms: int | None = None
    name: str | None = None
    description: str | None = None
    format_provider: str = "parquet"
