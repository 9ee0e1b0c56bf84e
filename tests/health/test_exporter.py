"""An exporter tells of many tables, whatever is wrong with one of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.health import sampler as exporter_module
from lakebed.health.sampler import Exporter
from lakebed.monitoring.metrics import Metrics
from tests.infra.s3 import S3Server
from tests.waiting import outcome, wait_until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def new_table(path: str | Path, rows: int = 3) -> lakebed.Table:
    table = lakebed.create(path, SCHEMA, keys=["id"])
    table.apply(pa.table({"id": range(rows)}, SCHEMA))
    return table


class Watched:
    """An exporter that looks five times a second."""

    def __init__(self, *paths: str) -> None:
        self.metrics = Metrics()
        self.exporter = Exporter(paths, self.metrics, 0.2, Path(paths[0], "none"))
        self.exporter.start()

    def value(self, name: str, table: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"table": table, **labels})

    def comes(self, name: str, table: str, wanted: float, **labels: str) -> None:
        wait_until(lambda: self.value(name, table, **labels) == wanted)


def test_tables_are_shown_as_they_change(tmp_path: Path) -> None:
    one, two = new_table(tmp_path / "one"), new_table(tmp_path / "two", rows=5)
    watched = Watched(one.path, two.path)
    watched.comes("lakebed_tail_rows", one.path, 3)
    watched.comes("lakebed_tail_rows", two.path, 5)
    one.settle()
    watched.comes("lakebed_table_rows", one.path, 3)
    watched.comes("lakebed_tail_rows", one.path, 0)
    watched.exporter.close()


def test_a_table_that_is_missing_or_broken_is_down_and_the_others_are_not(tmp_path: Path) -> None:
    good, broken = new_table(tmp_path / "good"), new_table(tmp_path / "broken")
    commit = Path(broken.path, "_delta_log", f"{1:020}.json")
    whole = commit.read_bytes()
    commit.write_bytes(b"{ not JSON")
    missing = str(tmp_path / "missing")
    watched = Watched(broken.path, missing, good.path)
    watched.comes("lakebed_table_up", good.path, 1)
    watched.comes("lakebed_table_up", broken.path, 0)
    watched.comes("lakebed_table_up", missing, 0)
    commit.write_bytes(whole)
    new_table(missing)
    watched.comes("lakebed_table_up", broken.path, 1)
    watched.comes("lakebed_table_up", missing, 1)
    watched.exporter.close()


def test_a_table_whose_store_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "SLOW_SECONDS", 0.5)
    good, slow = new_table(tmp_path / "good"), new_table(tmp_path / "slow")
    watched = Watched(slow.path, good.path)
    watched.comes("lakebed_table_up", slow.path, 1)
    pipe = Path(slow.path, "_delta_log", f"{2:020}.json")
    os.mkfifo(pipe)  # whoever reads it waits
    watched.comes("lakebed_table_up", slow.path, 0)
    assert watched.value("lakebed_tail_rows", slow.path) is None, "an earlier figure would look like one of now"
    good.settle()
    watched.comes("lakebed_tail_rows", good.path, 0)
    with pipe.open("wb"):
        pipe.unlink()
    watched.exporter.close()


@pytest.mark.slow
def test_the_command_serves_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    command = [sys.executable, "-c", "import sys; from lakebed.cli import main; sys.exit(main())", "serve", "metrics"]
    arguments = [table.path, str(tmp_path / "none"), "--port", "0", "--interval", "0.2"]
    with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"http://\S+", said)
        assert found, said

        def body() -> str:
            text: str = urllib.request.urlopen(found[0]).read().decode()
            return text

        wait_until(lambda: f'lakebed_tail_rows{{table="{table.path}"}} 3.0' in body())
        wait_until(lambda: f'lakebed_table_up{{table="{tmp_path / "none"}"}} 0.0' in body())
        assert "there is no table" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        outcome(process)
        assert process.returncode == 0


def test_a_port_that_can_not_be_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "metrics", str(tmp_path), "--port", "off"])
    assert "'off' is no port" in capsys.readouterr().err


def test_a_table_in_s3_is_shown(s3: S3Server, tmp_path: Path) -> None:
    table = new_table(f"s3://{s3.create_bucket()}/t")
    watched = Watched(table.path)
    watched.comes("lakebed_tail_rows", table.path, 3)
    watched.exporter.close()
