"""The table that a pipeline of kind ``lakebed`` reads: whether it is there, and what a table of its changes is like."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from lakebed import table as tables
from lakebed.errors import LakebedError, TableNotFound
from lakebed.pipeline.file.layer_sections import LakebedSection
from lakebed.pipeline.file.settings import Pipeline, TableSection
from lakebed.pipeline.findings import Findings
from lakebed.schema.change_names import ChangeNames
from lakebed.schema.type_names import type_text
from lakebed.settings import suggest
from lakebed.sources.upstream.decoder import sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A table whose changes are read. ``sequence_by``: what orders them in a copy; None if the order of arrival does."""

    columns: pa.Schema
    keys: tuple[str, ...]
    sequence_by: str | None

    @property
    def hides_sequence(self) -> bool:
        """Whether what orders the changes is none of the columns."""
        return self.sequence_by is not None and self.sequence_by not in self.columns.names

    def section(self, section: TableSection) -> TableSection:
        """The section of a table of these changes, where the file has no schema."""
        schema = {one.name: type_text(one.type) + ("" if one.nullable else " not null") for one in self.columns}
        keys = section.keys or self.keys
        return replace(
            section, schema=schema, keys=keys, sequence_by=section.sequence_by or (self.sequence_by if keys else None)
        )


def upstream_of(section: LakebedSection) -> Upstream:
    """Raises TableNotFound, and what opening the table raises."""
    table = tables.open(section.path)
    detail = table.inspect.detail().to_pylist()[0]
    sequence_by = detail["sequence_by"]
    is_hidden = sequence_by is not None and sequence_by not in table.schema.names
    return Upstream(
        columns=table.schema,
        keys=tuple(detail["keys"]),
        sequence_by=ChangeNames.beside(table.schema.names).sequence if is_hidden else sequence_by,
    )


def with_upstream(pipeline: Pipeline, upstream: Upstream | None = None) -> Pipeline:
    """The pipeline with the schema of its upstream for a table that the file gives none. Raises as ``upstream_of`` does."""
    if not isinstance(pipeline.source, LakebedSection) or pipeline.table.schema:
        return pipeline
    found = upstream or upstream_of(pipeline.source)
    return replace(pipeline, table=found.section(pipeline.table))


def find_upstream(section: LakebedSection, findings: Findings) -> Upstream | None:
    """The upstream, if it is there."""
    try:
        return upstream_of(section)
    except TableNotFound:
        text = f"there is no table at {section.path}; the pipeline that writes it must run first, or fix the path"
        findings.wrong(text, "source", "path")
    except LakebedError as error:
        findings.add(error, "source", "path")
    return None


def check_upstream(
    upstream: Upstream, columns: pa.Schema, keys: tuple[str, ...], sequence_by: str | None, findings: Findings
) -> None:
    """Whether the changes of the upstream can become those of a table with these columns."""
    names = upstream.columns.names
    for number, key in enumerate(keys):
        if key not in names:
            near = suggest(key, names)
            findings.wrong(f"the table {key!r} is a key of has changes without it{near}", "table", "keys", number)
    if keys and upstream.sequence_by is not None and sequence_by is None:
        findings.wrong(
            f"late changes are among those of the source, which orders them: set table.sequence_by to {upstream.sequence_by}",
            "table",
        )
    besides = sequences(names)
    if sequence_by is not None and sequence_by not in (*names, *besides):
        near = suggest(sequence_by, [*names, *besides])
        findings.wrong(
            f"the changes have no column {sequence_by!r}, nor is it one of {', '.join(besides)}{near}",
            "table",
            "sequence_by",
        )
    if sequence_by == besides[0] and not upstream.hides_sequence:
        text = (
            f"the changes have no {besides[0]}: the source orders them by {upstream.sequence_by or 'arrival'}; use that"
        )
        findings.wrong(text, "table", "sequence_by")
    lacking = [one.name for one in columns if one.name not in names and not one.nullable]
    if lacking:
        findings.wrong(
            f"the source has no column {lacking[0]!r}, which is not null in the table", "table", "schema", lacking[0]
        )
