"""Pipelines that read folders of files, with Spark: lines of CSV, what a user wrote in SQL, and tasks that share the files."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import lakebed
from lakebed import far_times
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import InvalidChanges
from lakebed.far_times import finite
from lakebed.ingest import stream, transform_files
from lakebed.ingest.stream import FilesIngest, run_in_tasks
from lakebed.ingest.table_batch import run_alone
from lakebed.ingest.transform_files import number_of
from lakebed.ingest.transform_run import SourceRows
from lakebed.pipeline import sources
from lakebed.pipeline.settings import parse_pipeline
from lakebed.pipeline.target import open_or_create
from lakebed.schema.type_names import table_schema
from lakebed.sources.files import lines
from lakebed.sources.files import reader as reader_module
from lakebed.sources.files.planner import FilesPlanner
from lakebed.table import internals_of
from tests.decode.records import records
from tests.sources.files.folders import NOW, remarks, write
from tests.worlds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
COLUMNS = {"id": "long not null", "v": "string", "n": "double", "day": "date"}


def run(
    spark: SparkSession, folder: Path, form: Any, *, table: dict[str, Any] | None = None, **more: Any
) -> lakebed.Table:
    """Read what is in ``in`` into ``t``, by a pipeline file. Raises the error of the run."""
    options = more.pop("options", {})
    content = {
        "table": {"path": str(folder / "t"), "schema": COLUMNS, **({"keys": ["id"]} if table is None else table)},
        "source": {"kind": "files", "folder": str(folder / "in"), "options": options},
        "format": form,
        **more,
    }
    pipeline = parse_pipeline(yaml.safe_dump(content, sort_keys=False), "p.yml", {})
    opened = open_or_create(pipeline)
    columns = table_schema(more["transform"]["columns"]) if "transform" in more else opened.schema
    reader, decoding = sources.open_source(pipeline, columns).reader, sources.open_decoder(pipeline, opened)
    internals = internals_of(opened)
    ingest = FilesIngest(
        opened.path,
        internals.log,
        reader,
        decoding,
        evolution=internals.evolution("nothing"),
        quarantine_log=internals.quarantine_log,
    )
    transform = decoding.transform if isinstance(decoding, SourceRows) else None
    document = FilesPlanner(reader.settings).next({})
    run_alone(ingest.batch(reader.ranges({}, document)), lambda work: run_in_tasks(work, spark, transform))
    return opened


def file(folder: Path, name: str, data: bytes | str, time: float = NOW) -> None:
    path = folder / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    os.utime(path, (time, time))


def rows(table: lakebed.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_arrow().to_pylist()), key=repr)


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["json", "csv", "parquet", "csv with deletes", "parquet with deletes"])
def test_tasks_that_share_files_of_all_sizes_keep_their_order(
    spark: SparkSession, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "RECORDS_HERE_MAX", 1)
    monkeypatch.setattr(reader_module, "SPLIT_BYTES", 2000)
    kind, _, deletes = form.partition(" ")
    expected: dict[int, str] = {}
    for number, count in enumerate([400, 1, 30, 1, 900, 2, 1]):
        changes = [(key, f"{number}", "u") for key in range(count)] + [(5, f"{number}", "d" if deletes else "u")]
        expected |= {key: text for key, text, _ in changes}
        if deletes:
            expected.pop(5, None)
        columns = {"id": [c[0] for c in changes], "v": [c[1] for c in changes], "n": [0.5] * len(changes)}
        columns |= {"day": [None] * len(changes)} | ({"op": [c[2] for c in changes]} if deletes else {})
        name = f"{9 - number}.{kind}"
        if kind == "parquet":
            (tmp_path / "in").mkdir(exist_ok=True)
            pq.write_table(pa.table(columns), tmp_path / "in" / name, row_group_size=50)
        elif kind == "csv":
            some = [
                "".join(f"{'' if value is None else value}," for value in row)[:-1]
                for row in zip(*columns.values(), strict=True)
            ]
            file(tmp_path, name, "\n".join([",".join(columns), *some]))
        else:
            write(tmp_path / "in", name, [{"id": key, "v": text} for key, text, _ in changes])
        os.utime(tmp_path / "in" / name, (NOW + number, NOW + number))
    rules = (
        {"extra_columns": {"op": "string"}, "except_columns": ["op"], "apply_as_deletes": 'op = "d"'} if deletes else {}
    )
    table = run(spark, tmp_path, {"kind": kind, **rules})
    assert {row[0]: row[1] for row in rows(table)} == expected
    [commit] = [row for row in table.inspect.timeline().to_pylist() if row["operation"] == "STREAMING UPDATE"]
    assert commit["version"] == 1, "all of it is one batch"


AS_SPARK: dict[str, tuple[dict[str, str], bytes]] = {
    "plain": ({}, b'id,v,n,day\n1,a,1.5,2024-01-01\n2,,,\n3,"x,""y",-0.0,0001-01-01\n'),
    "separator and nulls": ({"sep": "|", "nullValue": "-"}, b"id|v|n|day\n1|-|2|-\n2|a,b|-|2024-02-29\n"),
    "quotes": ({"quote": "'", "escape": "'"}, b"id,v,n,day\n1,'it''s',,\n2,\"b\",,\n"),
    "a backslash escapes": ({}, b'id,v,n,day\n1,"a\\"b",,\n2,"c\\\\",,\n'),
    "comments, blank lines, line ends": ({"comment": "#"}, b"#x\r\nid,v,n,day\r\n\r\n1,a,,\r\n# 2,b,,\r\n  \r\n3,#c,,"),
    "no header": ({"header": "false"}, b"1,a,1,2024-01-01\n2,b,2,2024-01-02\n"),
    "any header": ({"enforceSchema": "true"}, b"q,r,s,t\n1,a,1,2024-01-01\n"),
    "formats": ({"dateFormat": "dd.MM.yyyy", "nanValue": "none"}, b"id,v,n,day\n1,a,none,31.01.2024\n"),
    "blanks": ({"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}, b"id, v ,n,day\n 1 , a , 2 ,\n"),
    "latin": ({"encoding": "ISO-8859-1"}, "id,v,n,day\n1,größe,,\n".encode("latin-1")),
    "over several lines": ({"multiLine": "true"}, b'id,v,n,day\n1,"a\nb\r\nc, d",,\n2,"","3",\n3,5" pipe,,\n'),
    "another line end": ({"lineSep": ";"}, b"id,v,n,day;1,a,,;2,b,,"),
    "permissive": ({"mode": "PERMISSIVE"}, b"id,v,n,day\n1,a,no,never\n2,b\n3,c,1,,more\n"),
    "malformed ones dropped": ({"mode": "DROPMALFORMED"}, b"id,v,n,day\n1,a,no,never\n2,b\n3,c,1,,more\n4,d,,\n"),
    "a mark": ({}, b"\xef\xbb\xbfid,v,n,day\n1,a,,\n"),
    "only a header": ({}, b"id,v,n,day\n"),
}  # fmt: skip


@pytest.mark.long
def test_lines_of_csv_mean_what_they_mean_to_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "PIECE_BYTES", 5)
    wrong = []
    for name, (options, data) in AS_SPARK.items():
        folder = tmp_path / name
        file(folder, "a.csv", data)
        file(folder, "b.csv.gz", gzip.compress(data))
        as_spark = {"header": "true", "mode": "FAILFAST", "enforceSchema": "false", **options}
        ddl = "id long, v string, n double, day date"
        expected = sorted(
            map(tuple, spark.read.options(**as_spark).schema(ddl).csv(str(folder / "in")).collect()), key=repr
        )
        nullable = {"schema": {**COLUMNS, "id": "long"}}
        table = run(spark, folder, "csv", table=nullable, options=options)
        if repr(rows(table)) != repr(expected):  # NaN is not NaN
            wrong.append((name, rows(table), expected))
    assert wrong == []


TRANSFORM = {"sql": "select id, v, n, day, _change_type from changes", "columns": COLUMNS}


@pytest.mark.parametrize(
    ("form", "transform"),
    [
        ("csv", {}),
        pytest.param({"kind": "csv", "apply_as_deletes": "n < 0"}, {}, marks=pytest.mark.long),
        pytest.param("csv", {"transform": TRANSFORM}, marks=pytest.mark.long),
    ],
)
def test_a_line_of_csv_that_does_not_fit_ends_the_run_and_is_named(
    spark: SparkSession, tmp_path: Path, form: Any, transform: dict[str, Any]
) -> None:
    file(tmp_path, "a.csv", "id,v,n,day\n1,a,,\n")
    file(tmp_path, "b c.csv", "id,v,n,day\n2,a,,\n3,b,much,\n")
    why = f"the file {tmp_path}/in/b c.csv can't be read: the line at byte 17 does not fit the columns: '3,b,much,'"
    with pytest.raises(InvalidChanges, match=why):
        run(spark, tmp_path, form, **transform)
    table = run(spark, tmp_path, "csv", options={"mode": "DROPMALFORMED"})
    assert [row[0] for row in rows(table)] == [1, 2]
    file(tmp_path, "c.csv", "id,n,v,day\n4,1,c,\n")
    with pytest.raises(
        InvalidChanges, match=r"c.csv has the header id, n, v, day, and the columns .* are id, v, n, day"
    ):
        run(spark, tmp_path, "csv")


TIMES = {"id": "long not null", "day": "date", "at": "timestamp", "local": "timestamp_ntz"}
FAR_TEXTS = [
    "infinity", "-infinity", "0044-03-15 BC", "-0043-03-15", "0000-01-01", "20222-03-15", "+20222-03-15", "5881580-07-10",
    "+292278994-08-16Z", "999999999-01-01", "0044-03-15 10:00:00 BC", "294247-01-10 04:00:54", "294247-01-10 04:00:55",
]  # fmt: skip
NO_TIMES = ["12:30:00", "2024", "202401", "2024-13-01", "2024-01-01 BC x", "2024-01-01 x", "now", "x", " "]


def texts_of_times(seed: int) -> list[str]:
    """Texts that are times by the rules, or nearly."""
    rng = random.Random(seed)

    def two(most: int) -> str:
        return f"{rng.randint(0, most):02}"

    out = [*FAR_TEXTS, *NO_TIMES]
    for _ in range(600):
        year = f"{rng.choice(['', '', '-', '+'])}{rng.randrange(10 ** rng.randint(1, 9)):04}"
        text = f"{year}-{two(13)}-{two(31)}"
        if rng.random() < 0.7:
            parts = [two(24), two(60), two(60)][: rng.randint(1, 3)] if rng.random() < 0.7 else ["00", "00", "00"]
            text += rng.choice("T ") + rng.choice([":", ":", ""]).join(parts)
            text += f".{rng.randrange(10 ** rng.randint(1, 9))}" if len(parts) == 3 and rng.random() < 0.5 else ""
        if rng.random() < 0.5:
            text += rng.choice(
                ["Z", f"+{two(24)}", f"-{two(23)}:{two(60)}", f"+{two(1)}{two(59)}", f"-00:{two(59)}:{two(60)}"]
            )
        out.append(text + rng.choice(["", "", " BC"]))
    return out


@seeds(1, quick=0)
def test_texts_of_times_in_csv_mean_what_they_mean_in_json(spark: SparkSession, seed: int) -> None:
    texts = texts_of_times(seed)
    kinds = {"day": pa.date32(), "at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us")}
    day, at, local = (transform_files.time_of("text", kind, None) for kind in kinds.values())
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    found = frame.selectExpr(
        f"unix_date({day}) day", f"unix_micros({at}) at", f"unix_micros(cast({local} as timestamp)) local"
    ).collect()
    for name, kind in kinds.items():
        number = pa.int32() if name == "day" else pa.int64()
        numbers = pa.array([row[name] for row in found], number)
        csv = finite(numbers.view(kind)).view(number).to_pylist()
        shape = DecoderSchema(table_schema({"id": "long", name: TIMES[name]}))
        changes = decoder("json", shape).decode(
            records([json.dumps({"id": n, name: text}) for n, text in enumerate(texts)])
        )
        rows = changes.changes
        of_json = dict(zip(rows["id"].to_pylist(), rows[name].combine_chunks().view(number).to_pylist(), strict=True))
        wrong = [(text, csv[n], of_json.get(n)) for n, text in enumerate(texts) if csv[n] != of_json.get(n)]
        assert wrong == [], name


def texts_of_numbers(seed: int) -> list[str]:
    rng = random.Random(seed)
    out = [
        "",
        "1.239",
        "1.230",
        "1.995",
        "1200e-4",
        "0e-9",
        "0.000",
        "1e39",
        "-1e39",
        "1e400",
        "3.4028236e38",
        "1e-50",
        "1d",
        "0x1p3",
    ]
    out += [
        "NaN",
        "Infinity",
        "-Infinity",
        "nan",
        "1,5",
        "--1",
        "1e",
        "e1",
        "99999999.99",
        "99999999.995",
        "1e10",
        "1e-400",
        "1e-2147483648",
        "1.5e2147483647",
        "1e-99999999999",
    ]
    for _ in range(400):
        text = f"{rng.choice(['', '', '-'])}{rng.randrange(10 ** rng.randint(1, 10))}"
        text += f".{rng.randrange(10 ** rng.randint(1, 5))}{'0' * rng.randint(0, 3)}" if rng.random() < 0.7 else ""
        out.append(text + (rng.choice(["e", "E", "e+", "e-"]) + str(rng.randint(0, 12)) if rng.random() < 0.5 else ""))
    return out


@pytest.mark.parametrize("kind", ["decimal(10,2)", "decimal(38,0)", "float", "double"])
def test_texts_of_numbers_in_csv_mean_what_they_mean_in_json(spark: SparkSession, kind: str) -> None:
    shape = DecoderSchema(table_schema({"id": "long", "n": kind}))
    texts = texts_of_numbers(0)
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    found = [row[0] for row in frame.selectExpr(number_of("text", shape.columns.field("n").type, {})).collect()]
    rows = (
        decoder("json", shape)
        .decode(records([json.dumps({"id": n, "n": text}) for n, text in enumerate(texts)]))
        .changes
    )
    of_json = dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True))
    wrong = [(text, found[n], of_json.get(n)) for n, text in enumerate(texts) if repr(found[n]) != repr(of_json.get(n))]
    assert wrong == []


LIKEWISE = [("float", "Inf", "1e39"), ("int", "5", "5.5"), ("boolean", "TRUE", "1")]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [("decimal(10,2)", "1.230", "1.239"), *(pytest.param(*each, marks=pytest.mark.long) for each in LIKEWISE)],
)
def test_a_number_of_csv_that_does_not_fit_is_neither_rounded_nor_made_infinite(
    spark: SparkSession, tmp_path: Path, kind: str, good: str, bad: str
) -> None:
    table = {"keys": ["id"], "schema": {"id": "long not null", "n": kind}}
    file(tmp_path, "a.csv", f"id,n\n1,{good}\n2,\n")
    assert [row[0] for row in rows(run(spark, tmp_path, "csv", table=table)) if row[1] is not None] == [1]
    file(tmp_path, "b.csv", f"id,n\n3,{good}\n4,{bad}\n", NOW + 1)
    with pytest.raises(InvalidChanges, match=re.escape(f"'4,{bad}'")):
        run(spark, tmp_path, "csv", table=table)


@pytest.mark.long
def test_infinite_and_far_times_of_csv_are_stored_and_what_is_no_time_is_a_line_that_does_not_fit(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = {"keys": ["id"], "schema": TIMES}
    header = "id,day,at,local\n"
    lines = "1,infinity,-infinity,infinity\n2,0044-03-15 BC,0044-03-15 BC,20222-03-15\n3,,,\n"
    lines += "4,2024-01-05 00:00:00,2024-01-05 07:00:00+02,2024-1-5 07:00:00.5\n"
    expected = [
        (1, "9999-12-31", "0001-01-03T00:00:00Z", "9999-12-31T00:00:00"),
        (2, "-0043-03-15", "-0043-03-15T00:00:00Z", "+20222-03-15T00:00:00"),
        (3, None, None, None),
        (4, "2024-01-05", "2024-01-05T05:00:00Z", "2024-01-05T07:00:00.500000"),
    ]

    def found(made: lakebed.Table) -> list[tuple[Any, ...]]:
        return sorted(as_texts(row) for row in far_times.python_rows(made.to_arrow()))

    def as_texts(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(
            value.isoformat().replace("+00:00", "Z") if hasattr(value, "isoformat") else value for value in row.values()
        )

    file(tmp_path, "a.csv", header + lines)
    assert found(run(spark, tmp_path, "csv", table=table)) == expected
    for number, bad in enumerate(["2024-01-05 10:00:00,,", ",,2024"]):
        folder = tmp_path / str(number)
        file(folder, "a.csv", f"{header}{lines}5,{bad}\n6,,,\n")
        with pytest.raises(
            InvalidChanges, match=f"the line at byte {len(header + lines)} does not fit the columns: '5,{bad}'"
        ):
            run(spark, folder, "csv", table=table)
        dropped = found(run(spark, folder, "csv", table=table, options={"mode": "DROPMALFORMED"}))
        assert dropped == [*expected, (6, None, None, None)]
        with_line = {"keys": ["id"], "schema": {**TIMES, "_corrupt_record": "string"}}
        file(folder, "b.csv", f"{header}7,2024-01-05,,\n8,{bad}\n")
        (folder / "in" / "a.csv").unlink()
        shutil.rmtree(folder / "t")
        options = {"mode": "PERMISSIVE", "enforceSchema": "true"}
        rows = found(run(spark, folder, "csv", table=with_line, options=options))
        assert rows == [(7, "2024-01-05", None, None, None), (8, None, None, None, f"8,{bad}")]


def test_times_without_an_offset_are_in_the_zone_that_an_option_names(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["2024-07-05 07:00:00", "2024-07-05 07:00:00Z", "2024-07-05", "2024-07-05T07+02", "infinity"]
    file(tmp_path, "a.csv", "id,at\n" + "".join(f"{number},{text}\n" for number, text in enumerate(texts)))
    table = {"keys": ["id"], "schema": {"id": "long not null", "at": "timestamp"}}
    made = run(spark, tmp_path, "csv", table=table, options={"timeZone": "Europe/Berlin"})
    assert [f"{at:%Y-%m-%d %H}" for _, at in rows(made)] == [
        "2024-07-05 05",
        "2024-07-05 07",
        "2024-07-04 22",
        "2024-07-05 05",
        "9999-12-31 00",
    ]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_sql_selects_from_the_rows_of_files(spark: SparkSession, tmp_path: Path, form: str) -> None:
    for number in range(3):
        if form == "json":
            write(
                tmp_path / "in",
                f"{number}.json",
                [{"id": 1, "name": f"{number}"}, {"id": 2 + number, "name": "x"}],
                NOW + number,
            )
        elif form == "csv":
            file(
                tmp_path,
                f"{number}.csv",
                f"id,name,gone\n1,{number},false\n{2 + number},x,{number == 0}\n",
                NOW + number,
            )
        else:
            (tmp_path / "in").mkdir(exist_ok=True)
            columns = {"id": [1, 2 + number], "name": [f"{number}", "x"], "gone": [False, number == 0]}
            pq.write_table(pa.table(columns), tmp_path / "in" / f"{number}.parquet")
            os.utime(tmp_path / "in" / f"{number}.parquet", (NOW + number, NOW + number))
    rules = (
        {}
        if form == "json"
        else {"extra_columns": {"gone": "boolean"}, "except_columns": ["gone"], "apply_as_deletes": "gone"}
    )
    sql = {"sql": "select id, upper(name) as v, _change_type from changes", "columns": {"id": "long", "name": "string"}}
    table = run(spark, tmp_path, {"kind": form, **rules}, transform=sql)
    deleted = [] if form != "json" else [(2, "X", None, None)]
    assert rows(table) == [(1, "2", None, None), *deleted, (3, "X", None, None), (4, "X", None, None)]
    assert table.version == 1


def test_folders_named_like_partitions_give_columns_of_csv(spark: SparkSession, tmp_path: Path) -> None:
    file(tmp_path, "day=2026-01-31/a.csv", "id,v,n\n1,a,\n")
    file(tmp_path, "day=2026-02-01/b.csv", "id,v,n\n2,b,1\n")
    table = run(spark, tmp_path, "csv")
    assert [(row[0], str(row[3])) for row in rows(table)] == [(1, "2026-01-31"), (2, "2026-02-01")]
    file(tmp_path, "day=2026-02-02/c.csv", "id,v,n\n3,c,\n")
    file(tmp_path, "d.csv", "id,v,n,day\n4,d,,\n")
    with pytest.raises(InvalidChanges, match="Put files into folders of one kind"):
        run(spark, tmp_path, "csv")


def test_rows_that_the_table_refuses_go_to_the_quarantine_and_unknown_columns_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    file(tmp_path, "a.csv", "id,v,n,day,more\n1,a,,,x\n,b,,,y\n")
    table = run(spark, tmp_path, {"kind": "csv", "extra_columns": {"more": "string"}})
    assert [row[0] for row in rows(table)] == [1] and remarks(table) == {"unknown_field": ["more"]}
    [bad] = lakebed.open(f"{table.path}_quarantine").to_arrow().to_pylist()
    assert json.loads(bad["value"])["v"] == "b" and "id" in bad["reason"]
