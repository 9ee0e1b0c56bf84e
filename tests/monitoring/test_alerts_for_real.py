"""Alerts seen firing and resolving for real: the cause is provoked on real tables, and a Prometheus evaluates the rules.

The rules are those of the package with seconds for minutes, so that a test need not wait for what they wait for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed import Table, create, events
from lakebed.health.sampler import Exporter
from lakebed.monitoring.dashboards import content
from lakebed.monitoring.metrics import Metrics
from lakebed.planning.settling import TAIL_PARTS_MAX
from tests.infra.fault_proxy import FaultProxy, FaultRates
from tests.infra.prometheus import PrometheusServer
from tests.infra.s3 import S3Server
from tests.waiting import wait_until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("region", pa.int64())])


def sped_up(rules: str) -> str:
    rules = re.sub(r"(?<=for: )(\d+)m", r"\1s", rules)
    return re.sub(r"(?<=\[)(\d+)m(?=])", r"\1s", rules).replace(
        "(lakebed_tail_age_seconds) > 120", "(lakebed_tail_age_seconds) > 2"
    )


class Watched:
    """A table that a Prometheus with the alert rules watches."""

    def __init__(self, path: str, folder: Path, running: ExitStack, partition_by: list[str]) -> None:
        self.table: Table = create(path, SCHEMA, keys=["id", *partition_by], partition_by=partition_by)
        metrics = Metrics()
        running.callback(events.listen(metrics))
        exporter = Exporter([path], metrics, interval_seconds=0.5)
        exporter.start()
        running.callback(exporter.close)
        server = metrics.serve("127.0.0.1", 0)
        running.callback(server.close)
        rules = folder / "alerts.yaml"
        rules.write_text(sped_up(content("alerts.yaml")))
        self._prometheus = running.enter_context(PrometheusServer([f"127.0.0.1:{server.port}"], [rules]))
        self._prometheus.wait_until_scraped()

    def firing(self) -> set[str]:
        return {name for name, state, _ in self._prometheus.alerts() if state == "firing"}

    def wait(self, alert: str, fires: bool, meanwhile: Callable[[], object] = lambda: None) -> None:
        def is_seen() -> bool:
            meanwhile()
            return (alert in self.firing()) is fires

        wait_until(is_seen, lambda: f"{alert} does not {'fire' if fires else 'resolve'}: {self.firing()}")


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
def test_a_tail_that_nobody_settles_is_reported_until_somebody_does(tmp_path: Path, running: ExitStack) -> None:
    watched = Watched(str(tmp_path / "t"), tmp_path, running, [])
    watched.table.apply(pa.table({"id": [1], "region": [1]}, schema=SCHEMA))
    watched.wait("LakebedTailOld", fires=True)
    assert watched.firing() == {"LakebedTailOld"}
    watched.table.settle()
    watched.wait("LakebedTailOld", fires=False)


@pytest.mark.long
@pytest.mark.slow
def test_a_flood_delays_the_writer_until_maintenance_has_caught_up(tmp_path: Path, running: ExitStack) -> None:
    watched = Watched(str(tmp_path / "t"), tmp_path, running, ["region"])
    regions = range(TAIL_PARTS_MAX + 1)
    watched.table.apply(pa.table({"id": regions, "region": regions}, schema=SCHEMA))
    watched.wait("LakebedWriterDelayed", fires=True)
    watched.table.settle()
    watched.wait("LakebedWriterDelayed", fires=False)


@pytest.mark.long
def test_a_store_that_fails_is_reported_until_it_answers_again(
    flaky_s3: FaultProxy, s3_server: S3Server, tmp_path: Path, running: ExitStack
) -> None:
    watched = Watched(f"s3://{s3_server.create_bucket()}/t", tmp_path, running, [])
    row = pa.table({"id": [1], "region": [1]}, schema=SCHEMA)
    assert "LakebedStoreErrors" not in watched.firing()
    flaky_s3.set_rates(FaultRates(before=0.3))
    watched.wait("LakebedStoreErrors", fires=True, meanwhile=lambda: watched.table.apply(row))
    flaky_s3.set_rates(FaultRates())
    watched.wait("LakebedStoreErrors", fires=False, meanwhile=lambda: watched.table.apply(row))
    assert watched.table.to_arrow().num_rows == 1
