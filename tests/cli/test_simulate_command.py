"""``lakebed simulate`` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakebed.cli import main


def test_it_prints_the_figures_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "day.png"
    arguments = ["--days", "0.2", "--rate", "5", "--read-budget", "4", "--format", "json", "--png", str(file)]
    assert main(["simulate", *arguments]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["flushes"] == 288 and figures["depth_max"] <= 4
    assert figures["merged_to_reference"] == pytest.approx(1.1, abs=0.15)
    assert figures["ingested_bytes"] == 288 * 300 * 25
    assert file.exists()


def test_wrong_settings_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--read-budget", "0"]) == 2
    assert "lakebed.read_budget is '0'" in capsys.readouterr().err
    assert main(["simulate", "--plan-bytes-max", "7"]) == 2
    assert main(["simulate", "--days", "0.00001"]) == 2
