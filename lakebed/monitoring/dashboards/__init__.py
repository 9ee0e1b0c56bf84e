"""Grafana dashboards and alert rules for lakebed's metrics, and the settings that connect them.

The dashboards are JSON that ``tools/dashboards.py`` of the repository writes, so that using them needs no Grafana SDK. The alert
rules are written by hand. A rule's ``runbook_url`` links to its section of the runbook.

``write`` lays out, under one folder:

    prometheus/prometheus.yml                          an example of how to scrape lakebed, with the rules
    prometheus/alerts.yaml
    grafana/dashboards/lakebed-*.json
    grafana/provisioning/dashboards/lakebed.yaml       registers them in Grafana
    grafana/provisioning/datasources/lakebed.yaml      registers Prometheus in Grafana
    lakebed-manual/                                    the documentation, unless the runbook is published elsewhere
"""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

from lakebed import manual
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


def write(folder: Path, runbook: str | None = None) -> list[Path]:
    """Write all files, and overwrite those of an earlier call; returns them. Raises InvalidInput if that can't be done.

    ``runbook``: the address at which docs/runbook.md is published. None: alerts link to a copy in ``folder``.
    """
    written = []
    if runbook is None:
        copied = _copy_manual(folder / "lakebed-manual")
        runbook = (copied / "docs" / "runbook.md").resolve().as_uri()
        written.append(copied)
    dashboards = (folder / _PLACES[DASHBOARDS[0]]).resolve()
    for name, place in _PLACES.items():
        text = content(name).replace("DASHBOARDS_FOLDER", str(dashboards)).replace(f"{_RUNBOOK}#", f"{runbook}#")
        path = folder / place / ("lakebed.yaml" if name.startswith("provisioned-") else name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, error) from None
        written.append(path)
    return written


def _copy_manual(target: Path) -> Path:
    """A copy of the documentation whose pages link to each other."""
    try:
        shutil.copytree(manual.FOLDER, target, ignore=shutil.ignore_patterns("*.py", "__pycache__"), dirs_exist_ok=True)
    except OSError as error:
        raise _unwritable(target, error) from None
    return target


def _unwritable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path} can't be written: {error.strerror or error}")
