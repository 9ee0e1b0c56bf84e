"""What to put before lakebed's metrics: Grafana dashboards, alert rules, and the settings that join them.

The dashboards lie here as the JSON that ``make`` prints, so nobody needs Grafana's SDK to use them. The alert rules are
written by hand. A rule's ``runbook_url`` leads to its section of docs/runbook.md.

``write`` lays out, under one folder:

    prometheus/prometheus.yml                          an example of how to scrape lakebed, with the rules
    prometheus/alerts.yaml
    grafana/dashboards/lakebed-*.json
    grafana/provisioning/dashboards/lakebed.yaml       tells Grafana of them
    grafana/provisioning/datasources/lakebed.yaml      tells Grafana of Prometheus
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from lakebed.errors import InvalidInput

DASHBOARDS = ("lakebed-tables.json", "lakebed-table.json", "lakebed-operations.json")
_PLACES = {
    "prometheus.yml": "prometheus",
    "alerts.yaml": "prometheus",
    "provisioned-dashboards.yaml": "grafana/provisioning/dashboards",
    "provisioned-datasource.yaml": "grafana/provisioning/datasources",
} | dict.fromkeys(DASHBOARDS, "grafana/dashboards")
_RUNBOOK = "docs/runbook.md"


def content(name: str) -> str:
    """The text of one of the files of this folder."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def write(folder: Path, runbook: str = _RUNBOOK) -> list[Path]:
    """Write all files, those of an earlier call anew; returns them. Raises InvalidInput if that can't be done.

    ``runbook``: where readers of an alert find docs/runbook.md, such as the address of a copy of it.
    """
    dashboards = (folder / _PLACES[DASHBOARDS[0]]).resolve()
    written = []
    for name, place in _PLACES.items():
        text = content(name).replace("DASHBOARDS_FOLDER", str(dashboards)).replace(f"{_RUNBOOK}#", f"{runbook}#")
        path = folder / place / ("lakebed.yaml" if name.startswith("provisioned-") else name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"{path} can't be written: {error.strerror or error}") from None
        written.append(path)
    return written
