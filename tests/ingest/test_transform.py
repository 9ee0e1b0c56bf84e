"""SQL between records and table: what it gives does not depend on where batches end, and what would is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.errors import InvalidInput
from lakebed.ingest.stream import run_in_tasks
from lakebed.ingest.table_batch import TableIngest, run_alone
from lakebed.ingest.transform_query import Transform
from lakebed.ingest.transform_run import SourceRows
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.sources.rows import ChangeRows
from lakebed.sources.upstream import UpstreamReader, ranges_between
from lakebed.table import internals_of
from tests.internals import log_of
from tests.sources.test_upstream import Layer, quarantined
from tests.view.test_a_copy_of_changes import SCHEMA, as_arrow, change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
TARGET = pa.schema([pa.field("id", pa.int64()), pa.field("label", pa.string()), pa.field("double", pa.int64())])
KEYED = WriteSpec(schema=TARGET, keys=("id",))
ORDERED = WriteSpec(schema=TARGET, keys=("id",), sequence_by="source.lsn")
APPENDED = WriteSpec(schema=TARGET)
SQL = "select id, upper(large) as label, small * 2 as double, _change_type from changes"


def test_only_what_is_selected_row_by_row_is_accepted(spark: SparkSession) -> None:
    other = spark.createDataFrame([(1, "one"), (2, "two")], "code long, text string")
    other.createOrReplaceTempView("codes")
    whole = "select id, large as label, small as double, _change_type"
    hinted = whole.replace("select", "select /*+ merge(codes) */")
    fine: list[tuple[str, WriteSpec]] = [
        (SQL, KEYED),
        (f"{whole} from changes where small > 3", KEYED),
        (f"{whole} from changes union all {whole.replace('small', '-small')} from changes", KEYED),
        (
            "select /*+ broadcast(codes) */ id, text as label, small as double, _change_type "
            "from changes left join codes on small = code",
            KEYED,
        ),
        (f"with some as (select * from changes) {whole} from some where id not in (select code from codes)", KEYED),
        ("select id, explode(split(large, ',')) as label, small as double from changes", APPENDED),
        (f"{whole}, _change_sequence from changes", ORDERED),
    ]
    refused: list[tuple[str, WriteSpec, str]] = [
        ("select id, max(large) as label, 'upsert' as _change_type from changes group by id", KEYED, "aggregate"),
        (f"select distinct * from ({whole} from changes)", KEYED, "aggregate"),
        (f"{whole} from changes limit 3", KEYED, "limit"),
        (
            "select id, large as label, row_number() over (partition by id order by small) as double, _change_type from changes",
            KEYED,
            "window",
        ),
        (
            "select id, large as label, _change_type from changes join (select id as other from changes) on id = other",
            KEYED,
            "with changes",
        ),
        (f"{whole} from changes where small = (select max(small) from changes)", KEYED, "batch"),
        (
            "select code as id, large as label, _change_type from codes left join changes on small = code",
            KEYED,
            "LeftOuter",
        ),
        (f"{hinted} from changes join codes on small = code", KEYED, "sequence_by"),
        ("select id, large as label, small as double from changes", KEYED, "no column _change_type"),
        (f"{whole} from changes", ORDERED, "no column _change_sequence"),
        ("select large as label, _change_type from changes", KEYED, "lacks the column 'id'"),
        ("select id, large as label, _change_type from changes", KEYED, "lacks the column 'double'.*add it"),
        ("select nothing from changes", KEYED, "nothing.*cannot be resolved"),
        ("selekt 1", KEYED, "Syntax error"),
        ("drop table codes", KEYED, "Syntax error"),
    ]
    for sql, spec in fine:
        Transform(sql=sql, columns=SCHEMA).check(spark, spec)
    for sql, spec, why in refused:
        with pytest.raises(InvalidInput, match=why):
            Transform(sql=sql, columns=SCHEMA).check(spark, spec)
            pytest.fail(f"was accepted: {sql}")


class Transformed(Layer):
    """A layer with SQL between it and its upstream."""

    def __init__(self, upstream: lakebed.Table, copy: lakebed.Table, sql: str, spark: SparkSession) -> None:
        self.transform = Transform(sql=sql, columns=upstream.schema)
        self.spark = spark
        super().__init__(upstream, copy)

    def restart(self, checkpoint: Any = None) -> None:
        super().restart(checkpoint)
        inside = internals_of(lakebed.open(self.copy.path))
        settings = inside.log.refresh().logical_settings
        columns = DecoderSchema(inside.log.refresh().logical_schema, settings.keys, settings.sequence_by)
        inner = ChangeRows(DecoderSchema(self.transform.columns, ("id",)))
        self.ingest = TableIngest(
            self.copy.path,
            inside.log,
            UpstreamReader(self.settings),
            SourceRows(inner, columns, self.transform),
            evolution=inside.evolution("nothing"),
            quarantine_log=inside.quarantine_log,
        )

    def batch(self) -> Any:
        end = self.planner.next(self.checkpoint)
        if end == self.checkpoint:
            return None
        batch = self.ingest.batch(ranges_between(self.checkpoint, end))
        done = run_alone(batch, lambda work: run_in_tasks(work, self.spark, self.transform))
        self.checkpoint = end
        return done


def test_a_transformed_layer_follows_upserts_deletes_truncates_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    upstream = lakebed.create(tmp_path / "ods", SCHEMA, keys=["id"])
    copy = lakebed.create(tmp_path / "dwd", TARGET.set(2, pa.field("double", pa.int8())), keys=["id"])
    layer = Transformed(upstream, copy, SQL, spark)
    upstream.apply(as_arrow([change(1, 1, "a"), change(2, 2, "b"), change(3, 3, "c")], upstream))
    version = upstream.apply(as_arrow([change(1, 5, "x"), change(2, 0, None, "d"), change(4, 100, "big")], upstream))
    layer.follow()
    layer.restart({})
    layer.follow()
    assert layer.rows() == [{"id": 1, "label": "X", "double": 10}, {"id": 3, "label": "C", "double": 6}]
    [(_, _, value, reason)] = quarantined(layer)
    assert (value["id"], value["double"]) == (4, 200) and "double" in reason
    upstream.truncate()
    upstream.apply(as_arrow([change(9, 9, "i")], upstream))
    done = layer.follow()
    assert layer.rows() == [{"id": 9, "label": "I", "double": 18}]
    assert version < layer.position == upstream.version + 1 and sum(one.rows for one in done) == 1


def test_a_column_that_the_table_gets_while_the_sql_runs_stops_no_stream(spark: SparkSession, tmp_path: Path) -> None:
    upstream = lakebed.create(tmp_path / "ods", SCHEMA, keys=["id"])
    copy = lakebed.create(tmp_path / "dwd", TARGET, keys=["id"])
    layer = Transformed(upstream, copy, SQL, spark)
    copy.alter(add={"later": "string"})
    upstream.apply(as_arrow([change(1, 1, "a")], upstream))
    layer.follow()
    assert layer.rows() == [{"id": 1, "label": "A", "double": 2, "later": None}]
    with pytest.raises(InvalidInput, match="lacks the column 'later'"):
        layer.transform.check(spark, write_spec_of(log_of(copy).refresh()))
