"""Which files of a folder are of the source: what users of Spark's file source know."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pytest

import lakebed
from lakebed.errors import InvalidInput
from lakebed.sources.files import folder
from lakebed.sources.files.folder import ArrowFolder, Looker, open_folder
from lakebed.sources.files.settings import (
    FilesSettings,
    Options,
    notes_on,
    partition_values,
    pattern_of,
    quoted,
    shown,
    unquoted,
)
from tests.sources.files.folders import NOW, Process, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = [
    "a b.json", "a%20b.json", "größe ä.json", "日本.json", "a:b.json", "*.json", "{a,b}.json", "[x].json", "a\\b.json",
    "'\"`.json", "a\nb.json", "#?&=+;,.json", "\u00a0\u2028.json", "👍.json", "e\u0301.json", "é.json", "\u00ad\x7f\x85.json",
    "x" * 250,
]  # fmt: skip


def settings(folder: Path | str, **options: str) -> FilesSettings:
    return FilesSettings(folder=str(folder), format="json", options=options)


def paths(folder: Path | str, **options: str) -> list[str]:
    return sorted(found.path for found in Looker(settings(folder, **options)).files())


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """Files of all kinds, each with a byte."""
    for name in [
        "a.json",
        "b.csv",
        "c.json.tmp",
        "_hidden.json",
        ".hidden.json",
        "d._COPYING_",
        "_x=1.json",
        "below/e.json",
        "day=1/f.json",
        "day=1/hour=2/g.json",
        "day=1/_temporary/h.json",
        "day=1/below/i.json",
        "_y/j.json",
        ".z/k.json",
        "_day=3/l.json",
        "_SUCCESS",
        "_metadata",
    ]:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "in" / "empty.json").touch()
    os.symlink(tmp_path / "nowhere", tmp_path / "in" / "broken.json")
    os.symlink(tmp_path / "in" / "a.json", tmp_path / "in" / "link.json")
    os.mkfifo(tmp_path / "in" / "pipe.json")
    return tmp_path / "in"


def test_hidden_and_unfinished_files_are_left_out_and_folders_are_partitions_or_asked_for(inbox: Path) -> None:
    top = ["_x=1.json", "a.json", "b.csv", "c.json.tmp", "link.json"]
    partitions = ["_day=3/l.json", "day=1/f.json", "day=1/hour=2/g.json"]
    assert paths(inbox) == sorted([*top, *partitions])
    assert paths(inbox, recursiveFileLookup="true") == sorted([*top, *partitions, "below/e.json", "day=1/below/i.json"])
    assert paths(inbox, PATHGLOBFILTER="*.{json,csv}") == sorted(
        [*partitions, "_x=1.json", "a.json", "b.csv", "link.json"]
    )
    assert paths(inbox, pathGlobFilter="[^abc]*") == sorted([*partitions, "_x=1.json", "link.json"])


def test_the_path_of_the_source_may_be_a_pattern_or_one_file(inbox: Path, tmp_path: Path) -> None:
    every = ["_x=1.json", "a.json", "b.csv", "c.json.tmp", "link.json", "below/e.json", "day=1/f.json"]
    every += ["day=1/hour=2/g.json", "_day=3/l.json"]
    assert paths(f"{inbox}/*") == sorted(every), "what a pattern matches is looked into, but for what is hidden"
    assert paths(f"{tmp_path}/i[mno]/day=*/hour=*") == ["in/day=1/hour=2/g.json"]
    assert paths(f"{inbox}/{{a,b}}.*") == ["a.json", "b.csv"]
    assert paths(inbox / "a.json") == ["a.json"]
    (tmp_path / "[x]" / "{y").mkdir(parents=True)
    write(tmp_path / "[x]" / "{y", "{*}.json", [{}])
    assert paths(tmp_path / "[x]" / "{y") == ["{*}.json"] == paths(tmp_path / "[x]" / "{y" / "{*}.json")


def test_files_are_chosen_by_their_times(tmp_path: Path) -> None:
    for day in range(4):
        write(tmp_path, f"{day}.json", [{}], 1_769_817_600 + day * 86_400)  # 31 January 2026 and on
    assert paths(tmp_path, modifiedAfter="2026-01-31T00:00:00", modifiedBefore="2026-02-03T00:00:00") == [
        "1.json",
        "2.json",
    ]
    assert paths(tmp_path, modifiedAfter="2026-02-02T00:00:00", timeZone="Asia/Tokyo") == ["2.json", "3.json"]


def test_folders_that_lead_back_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "DEPTH_MAX", 5)
    (tmp_path / "a").mkdir()
    os.symlink(tmp_path, tmp_path / "a" / "b")
    with pytest.raises(InvalidInput, match="is there a link that leads back"):
        paths(tmp_path, recursiveFileLookup="true")


@pytest.mark.parametrize("name", [*NAMES, os.fsdecode(b"\xff\xfe.json")], ids=repr)
def test_a_file_of_any_name_is_read_and_told_from_others(name: str, tmp_path: Path) -> None:
    assert unquoted(quoted(name)) == name and quoted(name).encode()
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    write(tmp_path / "in", name, [{"id": 1}, "bad"])
    write(tmp_path / "in", "other.json", [{"id": 2}], NOW - 1)
    process = Process(table.path, tmp_path / "in")
    process.follow()
    Process(table.path, tmp_path / "in").follow()
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
    [bad] = lakebed.open(f"{table.path}_quarantine").to_arrow().to_pylist()
    assert (bad["offset"], bad["value"]) == (10, b"bad")
    assert shown(bad["topic"]) == f"{tmp_path}/in/{name}".encode("utf-8", "backslashreplace").decode()


@pytest.mark.slow
def test_urls_are_spelled_as_spark_spells_them(spark: SparkSession) -> None:
    """The log has digests of paths in this spelling, from when the stream was Spark's."""
    jvm: Any = spark._jvm
    for name in NAMES:
        assert quoted(f"/in/{name}") == jvm.org.apache.hadoop.fs.Path(f"/in/{name}").toUri().toString(), name
    one = "".join(map(chr, range(1, 0x3000)))
    assert quoted("/" + one.replace("/", "")) == str(
        jvm.java.net.URI(None, None, "/" + one.replace("/", ""), None).toString()
    )


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("*.json", ["a.json", ".json", "a\nb.json"], ["a.jsonl", "json"]),
        ("a?c", ["abc"], ["ac", "abbc"]),
        ("{a,b*}c", ["ac", "bc", "bxc"], ["c", "abc"]),
        ("{a,{b,c}}", ["a", "b", "c"], ["ab"]),
        ("[a-c]", ["a", "c"], ["d", "-"]),
        ("[!a-c]", ["d"], ["a"]),
        ("[^]]", ["a"], ["]"]),
        (r"a\*b", ["a*b"], ["aab"]),
        ("a.b", ["a.b"], ["aab"]),
        ("a,b}", ["a,b}"], []),
    ],
)
def test_patterns_are_those_of_hadoop(glob: str, matching: list[str], other: list[str]) -> None:
    pattern = pattern_of(glob)
    assert [name for name in matching + other if pattern.fullmatch(name)] == matching


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"pathGlobFilter": "[a"}, "a '\\[' without its '\\]'"),
        ({"pathGlobFilter": "{a"}, "a '{' without its '}'"),
        ({"latestFirst": "true"}, "latestFirst can't be 'true': files are read in the order of their times"),
        ({"cleanSource": "delete"}, "cleanSource can't be 'delete'"),
        ({"recursivefilelookup": "yes"}, "recursiveFileLookup is 'yes'; use 'true' or 'false'"),
        ({"maxFilesPerTrigger": "0"}, "a whole number of 1 or more"),
        ({"encoding": "klingon"}, "encoding 'klingon' is not known"),
        ({"modifiedAfter": "yesterday"}, "write it like 2026-01-31T12:00:00"),
        ({"modifiedAfter": "2026-01-31T12:00:00", "timeZone": "Mars"}, "timeZone 'Mars' is not known"),
    ],
)
def test_options_that_can_not_be_are_refused_with_the_reason(options: dict[str, str], why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=why):
        settings(tmp_path, **options)


def test_options_without_effect_are_told(tmp_path: Path) -> None:
    given = settings(tmp_path, maxFileAge="7d", latestFirst="false", pathGlobFiltr="*", sep=";", lineSep="|")
    assert notes_on(given) == [
        "the option maxFileAge has no effect: files of every age are read",
        "the option pathGlobFiltr is not known for json; did you mean 'pathGlobFilter'?; it has no effect",
        "the option sep is not known for json; it has no effect",
    ]
    assert Options.of(given).line_separator == b"|"


def test_folders_named_like_partitions_say_values() -> None:
    found = partition_values("day=2026-01-31/x=a%2Fb/_y=__HIVE_DEFAULT_PARTITION__/z/=1/file=1.csv")
    assert found == {"day": "2026-01-31", "x": "a/b", "_y": None}


def test_a_place_that_arrow_can_reach_is_a_folder_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside, _ = pyarrow.fs.FileSystem.from_uri("mock:///")
    monkeypatch.setattr(ArrowFolder, "_place", property(lambda self: (inside, "in")))
    for name, data in (("in/a.json", b'{"id": 1}\n'), ("in/day=1/b.json", b'{"id": 2}\n'), ("in/_c.json", b"no")):
        inside.create_dir(name.rpartition("/")[0])
        with inside.open_output_stream(name) as out:
            out.write(data)
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    assert isinstance(open_folder("gs://bucket/in"), ArrowFolder)
    process = Process(table.path, "gs://bucket/in")
    process.follow()
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2] and process.follow() == []
