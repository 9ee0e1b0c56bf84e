"""Open a pipeline's source and decoder, and start the streaming query that ingests into its table.

**Dates and timestamps by JDBC** are read exactly: the database itself says which day or microsecond each one is.

A driver gives dates and timestamps as Java's old classes. These have the calendar from before 1582 and the time zone of this
machine. So Spark gets other days before that year and other seconds before 1900, loses the era of years before 1, misses hours
that a change of daylight saving leaves out, and ends at PostgreSQL's infinity. Whole numbers have none of this. So the columns
are read as numbers since 1970, which the database computes, and become dates and timestamps again in Spark.

PostgreSQL's hstore is read as JSON, as Debezium sends it.

This is known of PostgreSQL, MariaDB and MySQL. Columns of other databases are read as Spark reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.column_groups import AGGREGATE
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.formats import EVENTS, decoder, reads_headers
from lakebed.decode.row_changes import names_in_rows
from lakebed.decode.source_order import SourceRules
from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.failures import first_line
from lakebed.ingest.apply import OLDEST
from lakebed.ingest.transform_files import Csv, RowsOfFiles
from lakebed.ingest.transform_run import SourceRows
from lakebed.pipeline.sections import (
    BootstrapSection,
    ChangesFormat,
    FilesSection,
    GeneratorSection,
    KafkaSection,
    LakebedSection,
    RowsFormat,
)
from lakebed.pipeline.settings import AnyPipeline, Pipeline, decoder_options
from lakebed.pipeline.transforming import (
    Shape,
    check_transform,
    columns_of_files,
    columns_read,
    files_settings,
    records_before,
    schema_of_records,
    shape_of,
    transform_of,
)
from lakebed.quoting import quote, quote_for_spark
from lakebed.schema.fitting import FIXED
from lakebed.sources.files.settings import Options
from lakebed.sources.generator import OrderStream
from lakebed.sources.rows import ChangeRows, CsvLines, FileRows
from lakebed.sources.source import BATCH_SECONDS, RangeChanges, Source
from lakebed.sources.upstream import UpstreamSettings
from lakebed.storage.roots import spark_path
from lakebed.table import Table, internals_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructField, StructType

    from lakebed.sources.kafka.settings import KafkaSettings

# -- Dates and timestamps by JDBC --------------------------------------------------------------------------------------


_NAME = "_lakebed_time_{}"
_ROWS = "lakebed_rows"
_TO_TIME = {
    "date": "date_from_unix_date({})",
    "timestamp": "timestamp_micros({})",
    "timestamp_ntz": "cast(timestamp_micros({}) as timestamp_ntz)",  # in the zone of the session, which is UTC
    "string": "{}",
}
"""By the type that Spark has for a column: the value for a number. Also of the elements of an array."""

_INFINITIES = "when {0} = 'infinity' then {1} when {0} = '-infinity' then -{1} "
_POSTGRES_DATE = f"case {_INFINITIES.format('{0}', 2**31 - 1)}else {{0}} - date '1970-01-01' end"
_POSTGRES_MICROS = (
    f"case {_INFINITIES.format('{0}', 2**63 - 1)}when {{0}} >= '294247-01-10 00:00:00+00' then {2**63 - 1} "
    "else extract(epoch from date_trunc('second', {0}))::bigint * 1000000 + extract(microseconds from {0})::bigint % 1000000 end"
)
_MYSQL_MICROS = "timestampdiff(microsecond, '1970-01-01', {0})"


@dataclass(frozen=True, slots=True)
class _Database:
    """``numbers``: by the database's type, the expression for the number of a value, or its JSON. ``quote``: for names."""

    numbers: Mapping[str, str]
    quote: Callable[[str], str]


_POSTGRES = _Database(
    {
        "date": _POSTGRES_DATE,
        "timestamp": _POSTGRES_MICROS,
        "timestamptz": _POSTGRES_MICROS,
        "hstore": "hstore_to_json({0})::text",
    },
    quote,
)
_MYSQL = _Database(
    {
        "DATE": "datediff({0}, '1970-01-01')",
        "DATETIME": _MYSQL_MICROS,
        "TIMESTAMP": "cast(unix_timestamp({0}) * 1000000 as signed)",  # which does not depend on the session's zone
    },
    quote_for_spark,  # MySQL has Spark's quotes
)
_DATABASES = {"postgresql": _POSTGRES, "mariadb": _MYSQL, "mysql": _MYSQL}


@dataclass(frozen=True, slots=True)
class _ExactTimes:
    """``source``: what Spark reads in place of the table or query. ``columns``: in Spark's SQL, each column as it is."""

    source: str
    columns: tuple[str, ...]


def exact_times(url: str, schema: StructType, table: str | None, query: str | None) -> _ExactTimes | None:
    """How to read a table or query whose columns Spark would read as ``schema``; None if Spark's reading is exact, or no better
    one is known.
    """
    database = next((one for name, one in _DATABASES.items() if url.startswith(f"jdbc:{name}:")), None)
    numbers = {} if database is None else {field.name: _number(field, database) for field in schema.fields}
    numbered = {name: number for name, number in numbers.items() if number is not None}
    if not numbered:
        return None
    added: list[str] = []
    columns: list[str] = []
    for field in schema.fields:
        if field.name not in numbered:
            columns.append(quote_for_spark(field.name))
            continue
        name = _NAME.format(len(added))
        added.append(f"{numbered[field.name]} as {name}")
        columns.append(f"{_time(field, name)} as {quote_for_spark(field.name)}")
    given = query if query is not None else f"select * from {table}"
    return _ExactTimes(
        f"(select {_ROWS}.*, {', '.join(added)} from ({given}) {_ROWS}) lakebed_numbered", tuple(columns)
    )


def _number(field: StructField, database: _Database) -> str | None:
    """The expression for the number of the column's value, or for an array of them; None if Spark is to read it."""
    kind, client = field.dataType.simpleString(), str(field.metadata.get("jdbcClientType"))
    column = f"{_ROWS}.{database.quote(field.name)}"
    if _is_read(kind, client, database):
        return database.numbers[client].format(column)
    if _is_read(_element(kind), client[1:], database) and field.metadata.get("arrayDimension") == 1:
        number = database.numbers[client[1:]].format("each.value")
        elements = f"select {number} from unnest({column}) with ordinality as each(value, place) order by each.place"
        return f"case when {column} is not null then array({elements}) end"
    return None


def _is_read(kind: str, client: str, database: _Database) -> bool:
    return kind in _TO_TIME and client in database.numbers and (kind == "string") == (client == "hstore")


def _time(field: StructField, name: str) -> str:
    kind = field.dataType.simpleString()
    if kind in _TO_TIME:
        return _TO_TIME[kind].format(name)
    return f"transform({name}, number -> {_TO_TIME[_element(kind)].format('number')})"


def _element(kind: str) -> str:
    return kind.removeprefix("array<").removesuffix(">")


# -- Sources, decoders and the query -----------------------------------------------------------------------------------


_DRIVERS = {
    "postgresql": "org.postgresql.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
    "db2": "com.ibm.db2.jcc.DB2Driver",
}


def start_ingest(pipeline: Pipeline, table: Table, spark: SparkSession) -> StreamingQuery:
    """Start the query. Raises InvalidInput for settings that do not fit the table."""
    shape = shape_of(table)
    records = shape if pipeline.transform is None else records_before(pipeline, shape)
    source = open_source(pipeline, records.columns, reads_headers=reads_headers(pipeline.format_kind, shape.keys))
    frame = source.stream(spark)
    if pipeline.transform is not None:
        check_transform(pipeline, shape, spark)
    if pipeline.bootstrap is not None:
        internals_of(table).bootstrap(lambda: bootstrap_rows(pipeline, shape, spark), pipeline.bootstrap.offsets)
    changes = RangeChanges(source.reader, open_decoder(pipeline, table))
    return internals_of(table).start_ingest(
        changes,
        frame,
        checkpoint=pipeline.checkpoint,
        query_name=pipeline.query_name,
        quarantine=pipeline.quarantine,
        trigger=trigger(pipeline.trigger_seconds),
    )


def bootstrap_rows(pipeline: Pipeline, table: Shape, spark: SparkSession) -> DataFrame:
    """The rows that fill the table, after the SQL if there is any. Raises InvalidInput if Spark can't read them."""
    section = pipeline.bootstrap
    assert section is not None
    records = table if pipeline.transform is None else records_before(pipeline, table)
    places = {"dbtable": section.table, "query": section.query}
    try:
        rows = _read(spark, section, {name: value for name, value in places.items() if value is not None})
        if section.url is not None:
            exact = exact_times(section.url, rows.schema, section.table, section.query)
            if exact is not None:
                rows = _read(spark, section, {"dbtable": exact.source}).selectExpr(*exact.columns)
    except Exception as error:
        document = pipeline.document
        why = document.redact(first_line(error))
        raise document.error(document.at("bootstrap"), f"Spark can't read it: {why}{_remedy(why)}") from None
    if section.kind == "jdbc":
        _require_no_text_of_bytes(pipeline, rows, records.columns)
        rows = _in_utc(rows, records.columns)
    if pipeline.transform is None:
        return rows
    transform = transform_of(pipeline, records, table)
    return transform.over(transform.changes_in_rows(rows, None, (), sequence=OLDEST))


def _read(spark: SparkSession, section: BootstrapSection, more: Mapping[str, str]) -> DataFrame:
    reader = spark.read.format(section.kind).options(**section.options).options(**more)
    if section.url is not None:
        reader = reader.options(url=section.url, **{**_of_jdbc(section.url), **section.options})
    return reader.load(*([spark_path(section.path)] if section.path is not None else []))


def _of_jdbc(url: str) -> dict[str, str]:
    """Options of Spark's reader.

    The class of the driver: Spark does not find it by itself in a jar that was added. Times without a zone as such: it would
    take them for times in the zone of this machine. MariaDB with the quotes that Spark has for names: else they are texts.
    """
    driver = next((name for start, name in _DRIVERS.items() if url.startswith(f"jdbc:{start}:")), None)
    options = {"preferTimestampNTZ": "true"} | ({"driver": driver} if driver else {})
    if url.startswith("jdbc:mariadb:"):
        options["sessionInitStatement"] = "set session sql_mode = concat(@@session.sql_mode, ',ANSI_QUOTES')"
    return options


def _require_no_text_of_bytes(pipeline: Pipeline, rows: DataFrame, columns: pa.Schema) -> None:
    """Which bytes a text means is not guessed. PostgreSQL's bits come as the digits 0 and 1, too. Raises InvalidInput."""
    texts = {
        field.name
        for field in rows.schema
        if field.dataType.simpleString() == "string" or field.metadata.get("jdbcClientType") in ("bit", "varbit")
    }
    for field in columns:
        if pa.types.is_binary(field.type) and field.name in texts:
            text = (
                f"the column {field.name!r} comes as text, and the table's is binary: read it by a query that makes bytes of it, "
                "or leave it out"
            )
            raise pipeline.document.error(pipeline.document.at("bootstrap"), text)


def _in_utc(rows: DataFrame, columns: pa.Schema) -> DataFrame:
    """Times without a zone are in UTC for columns that have one, as in Debezium's events; so is the session's zone."""
    kinds = dict(rows.dtypes)
    zoned = [field.name for field in columns if pa.types.is_timestamp(field.type) and field.type.tz is not None]
    wanted = names_in_rows(zoned, rows.columns, FIXED).values()
    casts = {
        name: rows[quote_for_spark(name)].cast("timestamp_ltz") for name in wanted if kinds.get(name) == "timestamp_ntz"
    }
    return rows.withColumns(casts) if casts else rows


def _remedy(why: str) -> str:
    """What to do, if Spark lacks the driver."""
    if "No suitable driver" not in why and "ClassNotFoundException" not in why:
        return ""
    return (
        "; name the jar of its driver in spark.conf (spark.jars.packages), and the driver's class as driver in options"
    )


def open_source(pipeline: Pipeline, columns: pa.Schema, *, reads_headers: bool = True) -> Source:
    """The source that the file describes. Its settings are checked, but no connection is made."""
    section = pipeline.source
    if isinstance(section, KafkaSection):
        settings = kafka_settings(section)
        from lakebed.sources.kafka.source import KafkaSource

        return KafkaSource(settings, pipeline.table.path, pace(pipeline), reads_headers)
    if isinstance(section, FilesSection):
        from lakebed.sources.files.source import FileSource

        of_files, rows = files_settings(section, pipeline), pipeline.format
        if not isinstance(rows, RowsFormat):
            return FileSource(of_files, batch_seconds=pace(pipeline))
        return FileSource(of_files, columns_read(pipeline, columns), tuple(rows.except_columns), pace(pipeline))
    if isinstance(section, LakebedSection):
        from lakebed.sources.upstream import UpstreamSource

        upstream = UpstreamSettings(
            path=section.path,
            table=pipeline.table.path,
            starting_version=section.first_version,
            on_data_loss=section.on_data_loss,
        )
        return UpstreamSource(upstream, pace(pipeline))
    from lakebed.sources.generator import GeneratorSource

    return GeneratorSource(_order_stream(section), section.tasks, section.max_records_per_batch, pace(pipeline))


def _order_stream(section: GeneratorSection) -> OrderStream:
    """The settings of the generated stream."""
    values = asdict(section)
    return OrderStream(**{name: values[name] for name in OrderStream.__slots__})


def open_decoder(pipeline: Pipeline, table: Table) -> Decoder:
    """The decoder of the format for a table's columns."""
    shape = shape_of(table)
    summed = [name for name, text in table.properties.items() if name.startswith(AGGREGATE) and text == "sum"]
    if summed and pipeline.format_kind.startswith(EVENTS):
        raise InvalidInput(
            f"{summed[0]} is 'sum', and an event of {pipeline.format_kind} has the value of its row, not what was added to it; "
            "sums are for records of which each is a part, such as those of the format json"
        )
    order = shape.order_of(pipeline.policy.fills)
    decoder_schema = DecoderSchema.of_table(shape.columns, shape.keys, order, pipeline.policy)
    if isinstance(pipeline.format, RowsFormat):
        return _rows_decoder(pipeline, pipeline.format, shape, decoder_schema)
    if pipeline.transform is None:
        return _decoder(pipeline, decoder_schema)
    records = records_before(pipeline, shape)
    inner = _decoder(pipeline, schema_of_records(pipeline, records))
    return SourceRows(inner, decoder_schema, transform_of(pipeline, records, shape))


def _rows_decoder(pipeline: Pipeline, rows: RowsFormat, shape: Shape, decoder_schema: DecoderSchema) -> Decoder:
    """For files of rows."""
    records = shape if pipeline.transform is None else records_before(pipeline, shape)
    is_csv = pipeline.format_kind == "csv"
    if not pipeline.computes_in_spark:
        return FileRows(decoder_schema)
    columns = columns_of_files(pipeline, records.columns)
    csv = None
    if is_csv:
        assert isinstance(pipeline.source, FilesSection)
        options = Options.of(files_settings(pipeline.source, pipeline))
        csv = Csv(mode=options.mode, options=options.csv)
    through = RowsOfFiles(
        columns=columns,
        csv=csv,
        apply_as_deletes=rows.apply_as_deletes,
        except_columns=tuple(rows.except_columns),
        transform=None if pipeline.transform is None else transform_of(pipeline, records, shape),
    )
    of_files = DecoderSchema(pa.schema([one.with_nullable(True) for one in columns]))
    inner = CsvLines(of_files) if is_csv else FileRows(of_files, for_spark=True)
    return SourceRows(inner, decoder_schema, through)


def _decoder(pipeline: Pipeline, decoder_schema: DecoderSchema) -> Decoder:
    if isinstance(pipeline.format, ChangesFormat):
        return ChangeRows(decoder_schema)
    decoder_schema = replace(decoder_schema, source=SourceRules(tables=pipeline.table.sources))
    return decoder(pipeline.format_kind, decoder_schema, decoder_options(pipeline))


def with_rate(pipeline: Pipeline, events_per_second: float) -> Pipeline:
    """The pipeline with another rate of its generator. Raises InvalidInput if it has none."""
    if not isinstance(pipeline.source, GeneratorSection):
        raise InvalidInput(
            f"--rate is for the generator; the source of {pipeline.document.file} is {pipeline.source_kind}"
        )
    return replace(pipeline, source=replace(pipeline.source, events_per_second=events_per_second))


def trigger(seconds: float) -> Mapping[str, str]:
    """A Spark trigger of this many seconds; 0 is as soon as the source has a batch."""
    return {"processingTime": f"{round(seconds * 1000)} milliseconds"}


def pace(pipeline: AnyPipeline) -> float:
    """Without a trigger of the user's the source itself paces the batches."""
    return 0.0 if pipeline.trigger_seconds else BATCH_SECONDS


def kafka_settings(section: KafkaSection) -> KafkaSettings:
    """The settings of a source. Raises InvalidInput, MissingPrerequisite."""
    try:
        from lakebed.sources.kafka.settings import KafkaSettings
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise MissingPrerequisite("the source kafka needs confluent-kafka: pip install 'lakebed[kafka]'") from None
    return KafkaSettings(**{name: getattr(section, name) for name in KafkaSection.__slots__})
