"""What a table is made of, as its log says it: schema, partition columns, properties, and the features that readers need.

One property is the version of the format that a table is written in. A change of the content of the log or of files, or of its
interpretation, raises that number. This version of lakebed reads its own format and no other: it refuses a table of another
format and says what to do. Tables that are not lakebed's have no such number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakebed.errors import Unsupported
from lakebed.settings import FORMAT_PROPERTY
from lakebed.version import __version__

GATE_FEATURE = "lakebed"
"""The writer feature of lakebed's tables: other programs do not support it, so they do not write."""
FORMAT = 3
_FIRST = 1  # of tables from before the number was written


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


def require_format(protocol: Protocol, metadata: Metadata, table: str) -> None:
    """Raises Unsupported for a table of lakebed's in another format than this version's."""
    if GATE_FEATURE not in protocol.writer_features:
        return
    text = metadata.configuration.get(FORMAT_PROPERTY, str(_FIRST))
    if text == str(FORMAT):
        return
    facts = (
        f"the table at {table} is in format {text} of lakebed, and lakebed {__version__} reads format {FORMAT} alone"
    )
    advice = "use the version of lakebed that wrote it, or a later one"
    if text.isdecimal() and int(text) < FORMAT:
        advice = (
            f"write it again with lakebed {__version__}, into a new table, from its source or from rows that the lakebed which "
            "wrote it exports"
        )
    raise Unsupported(f"{facts}; {advice}", table=table)
