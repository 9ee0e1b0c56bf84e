"""A Prometheus that scrapes what a test serves and evaluates rules every second; and ``promtool``.

Both programs are those on PATH, or else come from Debian's package ``prometheus``, unpacked under ``.build/``: nothing is
installed, and no service of the system is started.

    with PrometheusServer([f"127.0.0.1:{port}"]) as prometheus:
        prometheus.wait_until_scraped()
        prometheus.query("lakebed_tail_parts")     # [({"table": "…", …}, 3.0)]
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.infra.downloads import _apt_get, _run, fetch_once
from tests.infra.server import HOST, Server
from tests.waiting import wait_until

PACKAGE = "prometheus"
SCRAPE_SECONDS_MAX = 30
PROMTOOL_SECONDS_MAX = 120


class BadQuery(ValueError):
    """Prometheus can't parse or evaluate an expression."""


def programs() -> Path:
    """The folder with ``prometheus`` and ``promtool``."""
    found = shutil.which("promtool")
    if found is not None and shutil.which("prometheus"):
        return Path(found).parent

    def unpack(staging: Path) -> None:
        download = ["env", "-C", str(staging), "apt-get", "-q", "download", PACKAGE]
        _apt_get(download, "prometheus and promtool are not on PATH: install Prometheus 2.42 or newer")
        [package] = staging.glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), str(staging)], {})
        package.unlink()

    return fetch_once("prometheus", PACKAGE.encode(), unpack) / "usr" / "bin"


def promtool(*arguments: str, cwd: Path | None = None) -> tuple[bool, str]:
    """Runs promtool; returns whether it was content, and what it said."""
    done = subprocess.run(
        [str(programs() / "promtool"), *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROMTOOL_SECONDS_MAX,
    )
    return done.returncode == 0, done.stdout


class PrometheusServer(Server):
    """One Prometheus; scrapes ``targets`` (host:port) and evaluates ``rule_files`` every second."""

    name = "prometheus"

    def __init__(self, targets: Sequence[str], rule_files: Sequence[Path] = (), run_folder: Path | None = None) -> None:
        super().__init__(run_folder)
        self._targets = list(targets)
        self._rule_files = [str(path) for path in rule_files]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.ports[0]}"

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """What an expression gives now: labels and value of each series. Raises BadQuery."""
        answer = self._get("/api/v1/query", {"query": expression})
        if answer["resultType"] == "scalar":
            return [({}, float(answer["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in answer["result"]]

    def has_data(self, expression: str) -> bool:
        """Whether an expression gives at least one number now (a quotient of zeros is none)."""
        return any(not math.isnan(value) for _, value in self.query(expression))

    def alerts(self) -> list[tuple[str, str, dict[str, str]]]:
        """The alerts that are pending or firing: name, state, labels."""
        found = self._get("/api/v1/alerts", {})["alerts"]
        return [(alert["labels"]["alertname"], alert["state"], alert["labels"]) for alert in found]

    def rule_errors(self) -> dict[str, str]:
        """What was wrong when rules were evaluated last, by their names."""
        groups = self._get("/api/v1/rules", {})["groups"]
        return {rule["name"]: rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")}

    def wait_until_scraped(self, times: int = 1) -> None:
        """Returns when every target was scraped so many times."""

        def are_scraped() -> bool:
            counts = [value for _, value in self.query("sum_over_time(up[10m])")]
            return len(counts) == len(self._targets) and min(counts) >= times

        wait_until(are_scraped, f"prometheus did not scrape {self._targets}")

    def prepare(self) -> None:
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": self._rule_files,
            "scrape_configs": [{"job_name": "lakebed", "static_configs": [{"targets": self._targets}]}],
        }
        (self.run_folder / "prometheus.yml").write_text(yaml.safe_dump(settings))

    def command(self) -> list[str]:
        return [
            str(programs() / "prometheus"),
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address={HOST}:{self.ports[0]}",
            "--log.level=warn",
        ]

    def is_ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)

    def _get(self, path: str, arguments: dict[str, str]) -> Any:
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(arguments)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise BadQuery(f"{arguments}: {json.load(error)['error']}") from None
