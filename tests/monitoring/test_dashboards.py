"""Dashboards: what is in the package is what the code makes, and every query of every panel finds data.

The latter on the real thing: a pipeline from Kafka into S3 and an exporter, both scraped by a Prometheus.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from lakebed import manual
from lakebed.cli import main
from lakebed.monitoring.dashboards import DASHBOARDS, content, write
from tests.end_to_end.topic_of_changes import PARTITIONS, Producing
from tests.infra.downloads import REPOSITORY, lakebed_wheel
from tests.infra.kafka import KafkaServer
from tests.infra.prometheus import PrometheusServer, promtool
from tests.infra.s3 import S3Server, aws_environment
from tests.infra.server import HOST, Server
from tests.listeners.receiver import receiver
from tests.waiting import wait_until
from tools.dashboards import dashboards

METRICS = REPOSITORY / "docs" / "metrics.md"
VARIABLES = {
    "$__rate_interval": "30s",
    "$table": ".*",
    "$price_writes": "0.005",
    "$price_reads": "0.0004",
    "$price_storage": "0.023",
}


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(content(name))["panels"] if panel["type"] != "row"]


def expressions(name: str) -> dict[str, str]:
    """Every query of a dashboard, by the titles of row and panel and its letter."""
    found, row = {}, ""
    for panel in json.loads(content(name))["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        for target in panel.get("targets", ()):
            found[f"{row} / {panel['title']} {target['refId']}"] = target["expr"]
    return found


def filled_in(expression: str) -> str:
    """As Grafana would send it."""
    expression = expression.replace('table="$table"', 'table=~"$table"')
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_json_in_the_package_is_what_the_code_makes(name: str) -> None:
    assert content(name) == dashboards()[name], "run: python -m tools.dashboards"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_ask_the_chosen_prometheus_for_metrics_that_exist(name: str) -> None:
    documented = set(re.findall(r"^\| `(lakebed_\w+)` \|", METRICS.read_text(), re.MULTILINE))
    for panel in panels(name):
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            used = {metric.removesuffix("_bucket") for metric in re.findall(r"\blakebed_\w+", target["expr"])}
            assert used <= documented, panel["title"]
            assert used or "ALERTS" in target["expr"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_group_and_filter_by_labels_that_the_metric_has(name: str) -> None:
    rows = re.findall(r"^\| `(lakebed_\w+)` \| \w+ \|([^|]*)\|", METRICS.read_text(), re.MULTILINE)
    labels = {metric: {"table", "le", *re.findall(r"`(\w+)`", cell)} for metric, cell in rows}
    for title, expression in expressions(name).items():
        for grouped, metric in re.findall(r"by \(([^)]*)\) \((?:\w+\()*(lakebed_\w+)", expression):
            assert set(re.findall(r"\w+", grouped)) <= labels[metric.removesuffix("_bucket")], (title, metric)
        for metric, filters in re.findall(r"(lakebed_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)(?:=|!)", filters)) <= labels[metric.removesuffix("_bucket")], (title, metric)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_a_unit_and_do_not_lie_over_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(content(name))["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert at["x"] + at["w"] <= 24
        assert panel["type"] in ("row", "table") or panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_are_explained_and_show_the_last_and_the_greatest_value(name: str) -> None:
    board = json.loads(content(name))
    assert board["graphTooltip"] == 2, "one tooltip for all panels"
    for panel in panels(name):
        assert re.fullmatch(r"\S.*\.", panel["description"]), panel["title"]
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["calcs"] == ["lastNotNull", "max"], panel["title"]
            assert panel["options"]["tooltip"]["mode"] == "multi", panel["title"]
        if panel["type"] == "stat":
            steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert (len(steps) > 1) == (panel["options"]["colorMode"] == "background"), panel["title"]
            assert len(steps) > 1 or panel["title"] == "Tables"


def test_one_dashboard_leads_to_the_others() -> None:
    boards = [json.loads(content(name)) for name in DASHBOARDS]
    assert [board["uid"] for board in boards] == [name.removesuffix(".json") for name in DASHBOARDS]
    for board in boards:
        assert board["links"][0]["tags"] == ["lakebed"]
        assert "lakebed" in board["tags"]
    assert "/d/lakebed-table?" in content("lakebed-tables.json")


def test_the_command_writes_files_that_refer_to_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "monitoring"
    for _ in range(2):
        assert main(["export", "dashboards", str(out), "--runbook", "https://wiki/runbook"]) == 0
    written = {Path(line) for line in capsys.readouterr().out.splitlines()}
    assert written == {path for path in out.rglob("*") if path.is_file()}
    [provider] = yaml.safe_load((out / "grafana/provisioning/dashboards/lakebed.yaml").read_text())["providers"]
    assert {path.name for path in Path(provider["options"]["path"]).iterdir()} == set(DASHBOARDS)
    [source] = yaml.safe_load((out / "grafana/provisioning/datasources/lakebed.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    rules = (out / "prometheus/alerts.yaml").read_text()
    assert "runbook_url: https://wiki/runbook#lakebedtailold" in rules
    assert "docs/runbook.md#" not in rules


def test_without_an_address_of_the_runbook_alerts_lead_to_a_copy_of_it(tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path / "out")
    [groups] = yaml.safe_load((tmp_path / "out/prometheus/alerts.yaml").read_text()).values()
    links = [urlsplit(rule["annotations"]["runbook_url"]) for group in groups for rule in group["rules"]]
    assert links
    for link in links:
        assert link.scheme == "file"
        assert manual.text(Path(unquote(link.path)), link.fragment).startswith("## Lakebed")


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["export", "dashboards", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.slow
def test_prometheus_takes_the_example_of_how_to_scrape(tmp_path: Path) -> None:
    write(tmp_path)
    passed, said = promtool("check", "config", str(tmp_path / "prometheus" / "prometheus.yml"))
    assert passed, said


@pytest.mark.long
@pytest.mark.slow
def test_the_files_are_in_the_wheel() -> None:
    with zipfile.ZipFile(lakebed_wheel()) as wheel:
        packed = {Path(name).name for name in wheel.namelist() if name.startswith("lakebed/monitoring/dashboards/")}
    here = {path.name for path in (REPOSITORY / "lakebed" / "monitoring" / "dashboards").iterdir() if path.is_file()}
    assert packed == here
    assert packed > {*DASHBOARDS, "alerts.yaml"}


class Lakebed(Server):
    """A lakebed command that serves metrics; ready when it answers a scrape."""

    def __init__(self, name: str, run_folder: Path, *arguments: str) -> None:
        self.name = name
        super().__init__(run_folder)
        self._arguments = arguments

    @property
    def target(self) -> str:
        return f"{HOST}:{self.ports[0]}"

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        program = "import sys; from lakebed.cli import main; sys.exit(main())"
        return [sys.executable, "-c", program, *(each.replace("PORT", str(self.ports[0])) for each in self._arguments)]

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return {"LAKEBED_CACHE_DIR": str(self.run_folder / "cache"), "PYTHONPATH": path}

    def is_ready(self) -> bool:
        return bool(scraped(self))


def scraped(lakebed: Lakebed) -> str:
    with urllib.request.urlopen(f"http://{lakebed.target}/metrics", timeout=60) as answer:
        return str(answer.read(), "utf-8")


@pytest.fixture(scope="module")
def prometheus(
    kafka: KafkaServer, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    """A Prometheus that scrapes a pipeline from Kafka into S3, an exporter, a worker of a fleet, and what tells a listener."""
    folder = tmp_path_factory.mktemp("monitored")
    topic = kafka.create_topic(f"monitored-{time.time_ns()}", PARTITIONS)
    path = f"s3://{s3_server.create_bucket()}/changes"
    pipeline = {
        "table": {"path": path, "schema": {"id": "long not null", "number": "long", "note": "string"}, "keys": ["id"]},
        "source": {"kind": "kafka", "config": {"bootstrap.servers": kafka.bootstrap}, "topics": [topic]},
        "format": {"kind": "json", "operation_field": "op"},
        "spark": {"master": "local[2]"},
    }
    (folder / "pipeline.yml").write_text(yaml.safe_dump(pipeline))
    write(folder)
    with ExitStack() as running:
        running.enter_context(aws_environment(s3_server.endpoint))
        running.enter_context(Producing(kafka, topic, seed=1, records_per_second=500))
        run = Lakebed("run", folder, "run", str(folder / "pipeline.yml"), "--metrics-port", "PORT")
        running.enter_context(run)
        # The quarantine is looked at once a minute: an exporter that starts now finds it at once.
        wait_until(lambda: "lakebed_quarantined_records_total{" in scraped(run), "no batch was committed")
        exporter = Lakebed("exporter", folder, "serve", "metrics", path, "--port", "PORT", "--interval", "1")
        running.enter_context(exporter)
        root = path.rpartition("/")[0]
        worker = Lakebed("fleet", folder, "maintain", root, "--metrics-port", "PORT")
        running.enter_context(worker)
        received = running.enter_context(receiver())
        assert main(["events", "listen", root, "shop", "--webhook", received.url, "--from", "oldest"]) == 0
        listeners = Lakebed("deliver", folder, "events", "deliver", root, "--metrics-port", "PORT")
        running.enter_context(listeners)
        targets = [each.target for each in (run, exporter, worker, listeners)]
        server = PrometheusServer(targets, [folder / "prometheus" / "alerts.yaml"])
        yield running.enter_context(server)


@pytest.mark.long
@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_of_every_panel_finds_data_on_a_running_pipeline(name: str, prometheus: PrometheusServer) -> None:
    missing = {where: filled_in(expression) for where, expression in expressions(name).items()}
    assert missing

    def all_have_data() -> bool:
        for where in [where for where, query in missing.items() if prometheus.has_data(query)]:
            del missing[where]
        return not missing

    wait_until(all_have_data, lambda: f"no data for {missing}", moving=lambda: len(missing))


@pytest.mark.long
def test_the_alert_rules_are_evaluated_without_an_error(prometheus: PrometheusServer) -> None:
    assert prometheus.rule_errors() == {}
