"""What users of other systems reported as wrong rows is right here, however the records fall into batches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pipeline.pipelines_in_memory import PipelineInMemory
from tests.public_reports import changes, tables, values
from tests.public_reports.report import Report

REPORTS = [*changes.REPORTS, *values.REPORTS, *tables.REPORTS]


def test_every_report_is_one_row() -> None:
    assert len({report.where for report in REPORTS}) == len(REPORTS)
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report.where) for report in REPORTS)
    assert all(len(report.saw.split()) <= 12 for report in REPORTS)


@pytest.mark.parametrize("batches", ["in one batch", "one by one"])
@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.where)
def test_the_table_is_what_the_source_is(report: Report, batches: str, tmp_path: Path) -> None:
    pipeline = PipelineInMemory(report.pipeline, {"LAKE": str(tmp_path)})
    if batches == "in one batch":
        pipeline.feed(*report.records, topic=report.topic)
    else:
        for record in report.records:
            pipeline.feed(record, topic=report.topic)

    if report.no_table is not None:
        assert re.search(report.no_table, pipeline.none[report.topic])
        return
    assert pipeline.none == {}
    stopped = pipeline.stopped.get(report.topic)
    assert (stopped is None) if report.stopped is None else re.search(report.stopped, stopped or ""), stopped
    copy = pipeline.copy(report.topic)
    expected = sorted(report.rows, key=repr)
    assert sorted((tuple(row.values()) for row in copy.rows()), key=repr) == expected
    quarantine = copy.quarantine()
    assert quarantine.keys() == report.quarantine.keys(), quarantine
    for offset, reason in report.quarantine.items():
        assert re.search(reason, quarantine[offset]), quarantine[offset]
    assert copy.findings() == report.findings | ({"quarantine"} if quarantine else set())
    if report.columns is not None:
        assert copy.table.schema.names == list(report.columns)
    copy.table.settle()
    assert sorted((tuple(row.values()) for row in copy.rows()), key=repr) == expected, "settled"
