"""``lakebed dashboards``: files for Grafana and Prometheus."""

from __future__ import annotations

import argparse
from pathlib import Path

from lakebed.cli import exit_codes


def dashboards(options: argparse.Namespace) -> int:
    from lakebed.monitoring.dashboards import write

    for path in write(Path(options.out), options.runbook):
        print(path)
    return exit_codes.OK
