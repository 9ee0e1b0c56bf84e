"""Metrics say what an S3 server received, a crash in between or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra.fault_proxy import FaultProxy
from tests.infra.s3 import S3Server
from tests.monitoring.truth_on_s3 import run


@pytest.mark.long
def test_bytes_and_write_amplification_are_those_of_the_server_after_a_crash_too(
    flaky_s3: FaultProxy, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    truth, told = run(flaky_s3, s3_server, batches=12)
    assert truth.merges >= 2, "there is something to count"
    exported = told.exported

    # From the log: as if nothing had happened. Vectors lie in files with some bytes around them.
    assert exported["lakebed_log_ingested_bytes"] == truth.ingested
    assert exported["lakebed_log_written_bytes"] == pytest.approx(truth.written - truth.orphan, rel=0.01)
    without_orphans = (truth.written - truth.orphan) / truth.ingested
    assert exported["lakebed_write_amplification"] == pytest.approx(without_orphans, rel=0.01)
    assert exported["lakebed_stored_bytes"] == truth.lying

    # Counters: of each process what it did. What was done between the last scrape and the crash is in none of them.
    assert told.second_at_first["lakebed_batches_total"] < told.killed["lakebed_batches_total"], "they began at zero"
    for name, true in (
        ("lakebed_ingested_bytes_total", truth.ingested),
        ("lakebed_written_bytes_total", truth.written - truth.orphan),
        ("lakebed_store_written_bytes_total", truth.sent),
    ):
        counted = told.killed[name] + told.second[name]
        assert 0.8 * true < counted < 1.01 * true, name
