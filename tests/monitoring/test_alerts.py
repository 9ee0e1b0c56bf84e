"""Each alert fires when its cause is there, and resolves when it is gone: told by promtool, on made-up series.

Also: rules use metrics that exist, and lead to a section of the runbook whose commands work.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from lakebed import create
from lakebed.cli import main
from lakebed.cli.command_line import command_parser
from lakebed.monitoring.dashboards import content
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, QUARANTINE_SUFFIX
from tests.infra.prometheus import promtool

DOCS = Path(__file__).resolve().parents[2] / "docs"
RUNBOOK = (DOCS / "runbook.md").read_text()
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(content("alerts.yaml"))["groups"] for rule in group["rules"]
}
NEVER_END = {"run", "maintain", "serve"}


@dataclass(frozen=True, slots=True)
class Case:
    """A story in minutes. ``series``: promtool's notation, a value a minute; all are of the table ``t``."""

    alert: str
    series: dict[str, str]
    silent: int
    fires: int | None
    resolved: int | None = None
    told: str = ""  # how the value reads in the description


STORIES = {
    "a table that can't be read": Case(
        "LakebedTableUnreadable", {"lakebed_table_up": "1x9 0x9 1x10"}, silent=11, fires=13, resolved=21
    ),
    "a look that does not end": Case(
        "LakebedTableUnreadable",
        {"lakebed_table_up": "1x40", "lakebed_observed_timestamp_seconds": "0x15 960+60x20"},
        silent=7,
        fires=9,
        resolved=18,
    ),
    "a commit that breaks an invariant": Case(
        "LakebedInvariantViolated",
        {'lakebed_invariant_violations_total{invariant="P3",when="read"}': "_x5 1x120"},
        silent=4,
        fires=7,
        resolved=70,
        told="1",
    ),
    "ingest that stopped": Case(
        "LakebedNoCommits",
        {"lakebed_ingest_timestamp_seconds": "0x40 2460x20", "lakebed_log_ingested_rows": "100x60"},
        silent=29,
        fires=34,
        resolved=42,
        told="34m 0s",
    ),
    "a table that nobody has written to today": Case(
        "LakebedNoCommits",
        {"lakebed_ingest_timestamp_seconds": "0x40", "lakebed_log_ingested_rows": "0x60"},
        silent=34,
        fires=None,
    ),
    "a topic that forgot records": Case(
        "LakebedRecordsLost", {"lakebed_lost_records_total": "_x5 7x100"}, silent=4, fires=10, resolved=70, told="7"
    ),
    "a flood": Case(
        "LakebedWriterDelayed",
        {"lakebed_backpressure_factor": "1x9 2x9 1x9"},
        silent=14,
        fires=16,
        resolved=21,
        told="2",
    ),
    "changes that are seen late": Case(
        "LakebedNotFresh",
        {
            'lakebed_freshness_seconds_bucket{stage="visible",le="60"}': "0x30 10+10x30",
            'lakebed_freshness_seconds_bucket{stage="visible",le="300"}': "0+10x61",
            'lakebed_freshness_seconds_bucket{stage="visible",le="+Inf"}': "0+10x61",
        },
        silent=4,
        fires=20,
        resolved=60,
        told="4m 48s",
    ),
    "a tail that nobody settles": Case(
        "LakebedTailOld",
        {"lakebed_tail_age_seconds": "0+60x20 0x10", 'lakebed_backlog_plans{kind="settle"}': "1x20 0x10"},
        silent=4,
        fires=10,
        resolved=22,
        told="10m 0s",
    ),
    "a tail that may wait": Case(
        "LakebedTailOld",
        {"lakebed_tail_age_seconds": "0+60x20", 'lakebed_backlog_plans{kind="settle"}': "0x20"},
        silent=15,
        fires=None,
    ),
    "merges that can't keep up": Case(
        "LakebedDepthOverBudget",
        {"lakebed_depth_max": "8x4 25x26 8x10", "lakebed_read_budget": "8x40"},
        silent=14,
        fires=16,
        resolved=32,
        told="25",
    ),
    "a table that is not to be merged": Case(
        "LakebedDepthOverBudget",
        {"lakebed_depth_max": "25x40", "lakebed_read_budget": "8x40", 'lakebed_refused{cause="off"}': "1x40"},
        silent=30,
        fires=None,
    ),
    "a backlog that grows": Case(
        "LakebedBacklogGrowing",
        {"lakebed_backlog_bytes": "1000000+100000x120 13000000x120"},
        silent=20,
        fires=60,
        resolved=200,
        told="6M",
    ),
    "a backlog that is worked off now and then": Case(
        "LakebedBacklogGrowing", {"lakebed_backlog_bytes": "0+1000x50 0+1000x50 0+1000x50"}, silent=90, fires=None
    ),
    "rows that are rewritten again and again": Case(
        "LakebedWriteAmplification",
        {"lakebed_write_amplification_ratio": "2x480 1x480"},
        silent=50,
        fires=90,
        resolved=700,
        told="2",
    ),
    "an hour in which much was merged that came in before": Case(
        "LakebedWriteAmplification", {"lakebed_write_amplification_ratio": "1x300 3x69 1x100"}, silent=369, fires=None
    ),
    "claims of a replica that is gone": Case(
        "LakebedClaimsStuck",
        {'lakebed_claims{state="expired"}': "0x4 1x10 0x10", 'lakebed_claims{state="live"}': "3x30"},
        silent=9,
        fires=12,
        resolved=17,
        told="1",
    ),
    "what two processes tell alike": Case(
        "LakebedClaimsStuck",
        {
            'lakebed_claims{state="expired",instance="pipeline"}': "0x4 2x10 0x10",
            'lakebed_claims{state="expired",instance="exporter"}': "0x4 2x10 0x10",
        },
        silent=9,
        fires=12,
        resolved=17,
        told="2",
    ),
    "claims that live": Case("LakebedClaimsStuck", {'lakebed_claims{state="live"}': "3x30"}, silent=20, fires=None),
    "merges that fail": Case(
        "LakebedPlansFailing", {"lakebed_parked_parts": "0x4 8x10 0x10"}, silent=5, fires=7, resolved=16, told="8"
    ),
    "a settle that kills": Case(
        "LakebedSettleParked", {"lakebed_settle_parked": "0x4 1x10 0x10"}, silent=5, fires=7, resolved=16
    ),
    "the first error of a process": Case(
        "LakebedQueryRestarts",
        {'lakebed_errors_total{error="Contention"}': "_x5 1x60"},
        silent=4,
        fires=7,
        resolved=25,
        told="1",
    ),
    "a query that does not come back": Case(
        "LakebedQueryDown",
        {'lakebed_query_up{role="maintain"}': "1x4 0x15 1x10", 'lakebed_query_up{role="ingest"}': "1x40"},
        silent=8,
        fires=11,
        resolved=22,
    ),
    "a query that starts again": Case(
        "LakebedQueryDown", {'lakebed_query_up{role="maintain"}': "1 0 0 1 0 1 1"}, 5, None
    ),
    "a listener whose receiver does not answer": Case(
        "LakebedListenerBehind",
        {
            'lakebed_listener_behind_seconds{listener="shop"}': "0x5 0+60x20 0x10",
            'lakebed_listener_failing{listener="shop"}': "0x5 1x20 0x10",
        },
        silent=15,
        fires=18,
        resolved=28,
        told="12m 0s",
    ),
    "a pipeline that waits for Kafka": Case(
        "LakebedRunDown",
        {
            'lakebed_findings{check="run",severity="critical"}': "_x5 1x20 0x10",
            'lakebed_findings{check="run",severity="warning"}': "1x40",
            'lakebed_findings{check="claim",severity="critical"}': "1x40",
        },
        silent=6,
        fires=8,
        resolved=28,
    ),
    "topics that can't become tables": Case(
        "LakebedTopicsWaiting",
        {'lakebed_findings{check="waiting",severity="warning"}': "_x5 3x20 0x10"},
        silent=14,
        fires=17,
        resolved=28,
        told="3",
    ),
    "a table of a database that is left alone": Case(
        "LakebedTableParked", {"lakebed_table_parked": "_x5 1x10 0x10"}, silent=4, fires=6, resolved=17
    ),
    "a worker of a fleet that was killed": Case(
        "LakebedFleetWorkerLost", {"lakebed_fleet_workers": "3x10 2x60"}, silent=10, fires=15, resolved=45, told="3"
    ),
    "a fleet that can't keep up": Case(
        "LakebedFleetBehind",
        {"lakebed_fleet_waiting_seconds": "0x5 200+60x15 0x10"},
        silent=10,
        fires=14,
        resolved=23,
        told="11m 20s",
    ),
    "a table that a fleet can't read": Case(
        "LakebedFleetTablesLeftAlone",
        {'lakebed_fleet_tables{state="troubled"}': "0x5 1x30 0x5", 'lakebed_fleet_tables{state="owned"}': "9x40"},
        silent=18,
        fires=23,
        resolved=38,
        told="1",
    ),
    "a table that is not what its source is": Case(
        "LakebedDiffersFromSource", {"lakebed_verify_differing_keys": "_x5 2x10 0x10"}, 4, 6, resolved=17, told="2"
    ),
    "records that can't be rows": Case(
        "LakebedQuarantineGrowing",
        {"lakebed_quarantine_rows": "0x20 5x60"},
        silent=20,
        fires=25,
        resolved=37,
        told="5",
    ),
    "a store that fails": Case(
        "LakebedStoreErrors",
        {
            'lakebed_store_requests_total{operation="put",result="ok"}': "0+60x90",
            'lakebed_store_requests_total{operation="put",result="failed"}': "0+20x40 800x50",
        },
        silent=4,
        fires=20,
        resolved=60,
        told="25%",
    ),
    "names that are taken, and keys that are missing": Case(
        "LakebedStoreErrors",
        {
            'lakebed_store_requests_total{operation="put",result="taken"}': "0+60x90",
            'lakebed_store_requests_total{operation="get",result="missing"}': "0+60x90",
        },
        silent=30,
        fires=None,
    ),
}


def of_table(series: str) -> str:
    name, _, labels = series.rstrip("}").partition("{")
    matchers = ",".join(part for part in ('table="t"', labels) if part)
    return f"{name}{{{matchers}}}"


def expected(case: Case) -> dict[str, Any]:
    rule = RULES[case.alert]
    annotations = {
        name: re.sub(r"\{\{ \$value[^}]*\}\}", case.told, text.replace("{{ $labels.table }}", "t"))
        for name, text in rule["annotations"].items()
    }
    return {"exp_labels": {"table": "t", **rule["labels"]}, "exp_annotations": annotations}


def promtool_test(case: Case) -> dict[str, Any]:
    moments: Sequence[tuple[int | None, list[dict[str, Any]]]] = (
        (case.silent, []),
        (case.fires, [expected(case)]),
        (case.resolved, []),
    )
    return {
        "interval": "1m",
        "input_series": [{"series": of_table(name), "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": alerts}
            for minute, alerts in moments
            if minute is not None
        ],
    }


def documented() -> set[str]:
    return set(re.findall(r"^\| `(lakebed_\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE))


def sections() -> dict[str, str]:
    """The runbook's sections by their anchors."""
    parts = re.split(r"^## (.+)$", RUNBOOK, flags=re.MULTILINE)
    return {title.strip().lower().replace(" ", "-"): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def commands() -> list[list[str]]:
    """The arguments of every lakebed command that the runbook shows."""
    shown = re.findall(r"^\$ lakebed (.+)$", RUNBOOK, re.MULTILINE)
    return [shlex.split(line) for line in dict.fromkeys(shown)]


@pytest.mark.slow
def test_each_alert_fires_for_its_causes_and_resolves(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(content("alerts.yaml"))
    tests = [{"name": story, **promtool_test(case)} for story, case in STORIES.items()]
    test = {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    passed, said = promtool("test", "rules", "test.yaml", cwd=tmp_path)
    assert passed, said


def test_every_alert_is_seen_firing_and_resolving() -> None:
    seen = {case.alert for case in STORIES.values() if case.fires is not None and case.resolved is not None}
    assert seen == set(RULES)


def test_alerts_use_metrics_that_exist() -> None:
    for rule in RULES.values():
        used = {name.removesuffix("_bucket") for name in re.findall(r"\blakebed_\w+", rule["expr"])}
        assert used
        assert used <= documented(), rule["alert"]


def test_every_alert_says_how_bad_it_is_and_leads_to_its_section_of_the_runbook() -> None:
    for name, rule in RULES.items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert "{{ $labels.table }}" in rule["annotations"]["summary"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        section = sections()[name.lower()]
        for heading in ("**It means**", "**Look**", "**Do**"):
            assert heading in section, name
        assert "\n$ lakebed " in section, name


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_a_command_of_the_runbook_is_one(arguments: list[str]) -> None:
    command_parser().parse_args(arguments)


def test_the_commands_of_the_runbook_work_on_a_real_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = create(tmp_path / "PATH", schema, keys=["id"])
    for first in range(0, 30, 3):
        table.apply(pa.table({"id": range(first, first + 5)}, schema=schema))
    create(tmp_path / f"PATH{QUARANTINE_SUFFIX}", QUARANTINE_SCHEMA).apply(QUARANTINE_SCHEMA.empty_table())
    monkeypatch.chdir(tmp_path)
    for arguments in commands():
        if arguments[0] not in NEVER_END and "pipeline.yml" not in arguments:
            assert main(arguments) == 0, (arguments, capsys.readouterr().err)


def test_the_settings_that_the_runbook_names_are_documented() -> None:
    settings = set(re.findall(r"`(lakebed\.[a-z_]+)`", RUNBOOK))
    assert settings <= set(re.findall(r"`(lakebed\.[a-z_]+)`", (DOCS / "format.md").read_text()))
