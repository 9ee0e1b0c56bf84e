"""The table of a topic: opened, or made when the topic is seen first, from its first records and the pipeline file.

Any number of processes may do so at once: one of them makes the table, and the others open it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakebed import table as tables
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.json.values import UnknownFields
from lakebed.decode.source_order import SourceRules
from lakebed.discovery import NoTable, TableName
from lakebed.errors import InvalidInput, TableDropped, TableExists, TableNotFound
from lakebed.ingest.table_batch import TableIngest
from lakebed.operations.create import NewTable, check_layout
from lakebed.pipeline.database.new_tables import FirstRows, Rows, introduction, rows_of
from lakebed.pipeline.database_section import TableWishes
from lakebed.pipeline.sections import TableSection
from lakebed.pipeline.settings import DatabasePipeline, decoder_options
from lakebed.pipeline.target import Difference, differences, refusal
from lakebed.pipeline.transforming import shape_of
from lakebed.positions.remarks import remark, report_remarks
from lakebed.remarks import Counts
from lakebed.schema.conversion import canonical_schema
from lakebed.sources.source import Range, RangeReader
from lakebed.table import Table, internals_of

_MESSAGES = "message"
"""What Debezium calls the topic of messages, after the prefix. A table may have that name too."""
_logger = logging.getLogger("lakebed.run")
_TOPIC_PROPERTY = "lakebed.source_topic"
_OTHERWISE = "move the table elsewhere, so that a new one is made"


@dataclass(frozen=True, slots=True)
class Introduced:
    """The table of a topic. ``created``: by this call."""

    name: TableName
    table: Table
    wishes: TableWishes
    created: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """The table that a topic becomes."""

    name: TableName
    path: str
    wishes: TableWishes
    new: NewTable
    remarks: Counts

    def create(self) -> Table:
        """Raises TableExists, and what ``lakebed.create`` raises."""
        new = self.new
        return tables.create(
            self.path,
            new.schema,
            new.keys,
            new.sort_key,
            sequence_by=new.sequence_by,
            partition_by=new.partition_by,
            properties=new.properties,
            types=new.types,
        )


@dataclass(frozen=True, slots=True)
class NotYet:
    """No record has said yet what the rows of a topic are; ask again when there are more records, or after a while."""

    reason: str


class Introducer:
    """Opens and makes the tables of a database. Any number of threads may ask it at once, one for each topic."""

    def __init__(self, pipeline: DatabasePipeline, reader: RangeReader) -> None:
        """Makes no connection. Raises InvalidInput, MissingPrerequisite."""
        self._pipeline = pipeline
        self._document = pipeline.document
        self._naming = pipeline.naming
        self._read = reader.impatient().read
        self._rows_of = rows_of(pipeline.format_kind, decoder_options(pipeline))
        self._first: dict[str, FirstRows] = {}
        self._lock = threading.Lock()
        self._names: set[TableName] = set()
        self._is_full = self._said_full = False

    def table_for(self, topic: str, ranges: Sequence[Range]) -> Introduced | NoTable | NotYet:
        """``ranges``: of this topic, from which a new table is made; a table that is there needs none.

        Raises InvalidInput for a table that differs from the file, InvalidSchema for rows that no table can have, Retry for what
        may pass, and what the source raises.
        """
        found = self.expected(topic, ranges)
        if not isinstance(found, Expected):
            if isinstance(found, NoTable) and self._is_full and not self._said_full:
                self._said_full = True
                _logger.warning("the topic %s becomes no table, nor does any other new one: %s", topic, found.reason)
            return found
        try:
            table = found.create()
            remark(internals_of(table).log, found.remarks)
            report_remarks(table.path, found.remarks)
            return Introduced(found.name, table, found.wishes, created=True)
        except TableExists:  # another process was faster
            opened = self._opened(topic, found.name, found.wishes)
            assert opened is not None
            return opened

    def expected(self, topic: str, ranges: Sequence[Range]) -> Introduced | Expected | NoTable | NotYet:
        """As ``table_for``, but a table that is not there is only described."""
        name = self._naming.table_of(topic)
        if isinstance(name, NoTable):
            return name
        wishes = self._pipeline.database.wishes_for(str(name))
        opened = self._opened(topic, name, wishes)
        if opened is not None:  # a table that is there is read, however many there are
            with self._lock:
                self._names.add(name)
            return opened
        if not self._has_room(name):
            self._is_full = True
            most = self._pipeline.database.max_tables
            return NoTable(f"there are {most:,} tables already; raise database.max_tables, or exclude some")
        found: Expected | NotYet | NoTable | None = None
        try:
            found = self._described(topic, name, wishes, ranges)
        finally:
            if not isinstance(found, Expected):
                self._names.discard(name)
        return found

    def _has_room(self, name: TableName) -> bool:
        with self._lock:
            if name not in self._names and len(self._names) >= self._pipeline.database.max_tables:
                return False
            self._names.add(name)
            return True

    def _opened(self, topic: str, name: TableName, wishes: TableWishes) -> Introduced | None:
        path = _path_of(self._pipeline, name)
        try:
            table = tables.open(path)
        except TableDropped:
            raise
        except TableNotFound:
            return None
        made_for = table.properties.get(_TOPIC_PROPERTY, topic)
        if made_for != topic:
            raise InvalidInput(
                f"the table at {path} was made for the topic {made_for}, not for {topic}; exclude one of them "
                f"(database.exclude), choose another database.path, or give the table to {topic} by setting its property "
                f"{_TOPIC_PROPERTY}"
            )
        if found := _differences(self._pipeline, path, wishes, table):
            raise refusal(found, path, self._pipeline.document.file, _OTHERWISE)
        return Introduced(name, table, wishes)

    def _described(
        self, topic: str, name: TableName, wishes: TableWishes, ranges: Sequence[Range]
    ) -> Expected | NotYet | NoTable:
        if not ranges:
            return NotYet("there is no table yet")
        first = self._first.setdefault(topic, FirstRows(self._rows_of, wishes))
        rows = first.among(ranges, self._read)
        if rows is None and first.has_messages and name.text == _MESSAGES:
            return NoTable("it has messages of the source's log")
        if rows is None:
            return NotYet(first.why_not)
        try:
            return self._expected(topic, name, wishes, rows)
        except InvalidInput as error:
            rules = self._pipeline.database.rules_for(str(name))
            node = self._document.at("database", *(("tables", rules[-1]) if rules else ()))
            raise error.with_text(str(self._document.error(node, f"table {name}: {error}"))) from None
        finally:
            del self._first[topic]

    def _expected(self, topic: str, name: TableName, wishes: TableWishes, rows: Rows) -> Expected:
        unknown_fields: UnknownFields = getattr(self._pipeline.format, "unknown_fields", "warn")
        made = introduction(rows, wishes, self._pipeline.policy_of(wishes), unknown_fields)
        begin = {} if made.begin is None else {"lakebed.source_begin": str(made.begin)}
        source = {} if made.source_table is None else {"lakebed.source_table": made.source_table}
        new = NewTable(
            schema=made.columns,
            keys=made.keys,
            sort_key=wishes.sort_key,
            sequence_by=made.sequence_by,
            partition_by=wishes.partition_by,
            properties={**wishes.properties, _TOPIC_PROPERTY: topic, **begin, **source},
            types=wishes.types,
        )
        check_layout(canonical_schema(made.columns), new.settings(), new.partition_by)
        return Expected(name, _path_of(self._pipeline, name), wishes, new, made.remarks)


def _path_of(pipeline: DatabasePipeline, name: TableName) -> str:
    """Where a table is."""
    return f"{pipeline.path.rstrip('/')}/{name.folder}"


def ingest_of(pipeline: DatabasePipeline, topic: str, found: Introduced, reader: RangeReader) -> TableIngest:
    """What brings the records of a topic into its table."""
    internals, wishes = internals_of(found.table), found.wishes
    shape = _decoder_schema(pipeline, found.table, wishes)
    has_own_keys = wishes.keys is None and bool(shape.keys)
    rules = SourceRules(tables=wishes.sources, parks=True, keys_of_message=has_own_keys)
    return TableIngest(
        found.table.path,
        internals.log,
        reader,
        decoder(pipeline.format_kind, replace(shape, source=rules), decoder_options(pipeline)),
        evolution=internals.evolution(f"records of the topic {topic} need it"),
        quarantine_log=internals.quarantine_log,
        quarantine=pipeline.quarantine,
    )


def decoder_of(pipeline: DatabasePipeline, table: Table) -> Decoder:
    """The decoder of the format for the columns of a table. Raises InvalidInput for one that the pipeline does not keep."""
    topic = table.properties.get(_TOPIC_PROPERTY)
    name = pipeline.naming.table_of(topic) if topic else NoTable(f"it has no property {_TOPIC_PROPERTY}")
    if isinstance(name, NoTable):
        raise InvalidInput(f"{table.path} is no table of {pipeline.document.file}: {name.reason}")
    wishes = pipeline.database.wishes_for(str(name))
    wanted = replace(_decoder_schema(pipeline, table, wishes), source=SourceRules(tables=wishes.sources))
    return decoder(pipeline.format_kind, wanted, decoder_options(pipeline))


def _decoder_schema(pipeline: DatabasePipeline, table: Table, wishes: TableWishes) -> DecoderSchema:
    shape = shape_of(table)
    return DecoderSchema.of_table(shape.columns, shape.keys, shape.sequence_by, pipeline.policy_of(wishes))


def _differences(pipeline: DatabasePipeline, path: str, wishes: TableWishes, table: Table) -> list[Difference]:
    """Between a table and what the file says of it, as far as it says something."""
    section = TableSection(
        path=path,
        keys=wishes.keys or (),
        sort_key=wishes.sort_key,
        sequence_by=wishes.sequence_by,
        partition_by=wishes.partition_by,
        properties=wishes.properties,
    )
    found = differences(section, pipeline.policy_of(wishes), table)
    if wishes.keys == () and (keys := shape_of(table).keys):
        found.append(Difference(("keys",), f"keys is {list(keys)} in the table and empty in the file"))
    return found
