"""The comparison with the field: it runs, it counts what is written, and it believes no system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.peers.__main__ import main
from benchmarks.peers.given import Given, Scale, difference, make
from benchmarks.peers.watch import FolderWatch, Written, cpu_seconds

SCALE = Scale(rows=500, batches=4, warmup=1, changes=100, read_every=2)


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return make(SCALE, tmp_path / "input")


def final_rows(given: Given) -> pa.Table:
    return pq.read_table(f"{given.final}/rows.parquet")


def write_final(rows: pa.Table, folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(rows, folder / "part.parquet")
    return folder


def test_the_oracle_is_what_applying_the_changes_one_by_one_gives(given: Given) -> None:
    rows: dict[int, dict[str, object]] = {}
    for path in given.initial + given.batches:
        for change in pq.read_table(path).to_pylist():
            if change.pop("op") == "d":
                rows.pop(change["pk"], None)
            else:
                rows[change["pk"]] = change
    found = {row["pk"]: row for row in final_rows(given).to_pylist()}
    assert found == rows


def test_reads_are_compared_after_the_warm_up_on_the_way_and_at_the_end(given: Given) -> None:
    assert list(given.checks) == [1, 3, 5]


def test_rows_in_another_order_are_the_same_table(given: Given, tmp_path: Path) -> None:
    rows = final_rows(given).sort_by([("amount", "descending")])
    assert difference(given, write_final(rows, tmp_path / "final"), resolved=True) is None


@pytest.mark.parametrize("spoil", ["a row lost", "a row twice", "another value"])
def test_a_system_with_a_wrong_row_has_no_figures(given: Given, tmp_path: Path, spoil: str) -> None:
    rows = final_rows(given)
    spoilt = {
        "a row lost": rows.slice(1),
        "a row twice": pa.concat_tables([rows, rows.slice(0, 1)]),
        "another value": rows.set_column(
            4, "amount", pc.add(rows["amount"], pa.array([0.01] + [0.0] * (len(rows) - 1)))
        ),
    }[spoil]
    wrong = difference(given, write_final(spoilt, tmp_path / "final"), resolved=True)
    assert wrong is not None and "must be" in wrong


def test_uniform_updates_reach_older_keys_than_skewed_ones(tmp_path: Path) -> None:
    def oldest_tenth(updates: str) -> int:
        scale = Scale(rows=10_000, batches=1, warmup=0, changes=5_000, read_every=1, updates=updates)
        batch = pq.read_table(make(scale, tmp_path / updates).batches[0])
        updated = batch.filter(pc.equal(batch["op"], "u"))["pk"]
        return int(pc.sum(pc.less(updated, 1_000)).as_py() or 0)

    assert oldest_tenth("uniform") > 100 * max(1, oldest_tenth("skewed"))


def test_append_only_batches_have_new_keys_alone(tmp_path: Path) -> None:
    scale = Scale(rows=500, batches=2, warmup=0, changes=100, read_every=1, append_only=True)
    given = make(scale, tmp_path / "input")
    keys = [key for path in given.initial + given.batches for key in pq.read_table(path)["pk"].to_pylist()]
    assert sorted(keys) == list(range(700))


def test_every_file_counts_once_whatever_becomes_of_it(tmp_path: Path) -> None:
    table = tmp_path / "table"
    (table / "_delta_log").mkdir(parents=True)
    (table / "before").write_bytes(b"x" * 1000)
    watch = FolderWatch(table)
    (table / "stays.parquet").write_bytes(b"x" * 10)
    (table / "temporary").write_bytes(b"x" * 100)
    (table / "temporary").rename(table / "renamed.parquet")
    (table / ".part.crc").write_bytes(b"x" * 7)
    (table / "_delta_log" / "linking").write_bytes(b"x" * 3)
    os.link(table / "_delta_log" / "linking", table / "_delta_log" / "0.json")
    (table / "_delta_log" / "linking").unlink()
    assert watch.look() == Written(data=110, metadata=3)
    (table / "gone.parquet").write_bytes(b"x" * 1000)
    assert watch.look() == Written(data=1110, metadata=3)
    (table / "gone.parquet").unlink()
    (table / "stays.parquet").write_bytes(b"x" * 20)
    assert watch.look() == Written(data=1130, metadata=3)
    watch.close()


def test_a_file_that_is_being_written_counts_when_it_is_closed(tmp_path: Path) -> None:
    watch = FolderWatch(tmp_path)
    with (tmp_path / "part.parquet").open("wb") as file:
        file.write(b"x" * 10)
        file.flush()
        assert watch.look() == Written()
        file.write(b"x" * 10)
    assert watch.look() == Written(data=20)
    watch.close()


def test_processor_time_is_that_of_the_whole_process_tree() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass\n"
    parent = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint('burnt', flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "burnt\n"
        assert 0.4 < cpu_seconds(process.pid) < 5
        process.stdin.write("\n")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("java_that_starts_quickly")
def test_lakebed_and_the_floor_are_measured_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--rows 5000 --batches 2 --changes 200 --warmup 0 --read-every 2 --reads 1 --memory 1g"
    places = ["--folder", str(tmp_path), "--results", str(tmp_path / "results")]
    assert main([*sizes.split(), *places, "--systems", "append", "lakebed-volatile"]) == 0
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    assert [run["system"] for run in results["runs"]] == ["append", "lakebed-volatile"]
    for run in results["runs"]:
        assert len(run["figures"]["batch_seconds"]) == 2
        assert run["figures"]["write_amplification"] > 0.1
        assert run["figures"]["cpu_seconds"] > 0
        assert set(run["figures"]["reads"]) == (
            set() if run["system"] == "append" else {"aggregate", "selective", "point"}
        )
    lakebed = results["runs"][1]["figures"]
    assert lakebed["metadata_bytes"] > 0
    assert (tmp_path / "results" / "results.png").stat().st_size > 0
    assert "| lakebed-volatile |" in capsys.readouterr().out
