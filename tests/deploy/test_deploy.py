"""The files that people deploy lakebed with: checked by the linters and types of the tools that read them."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakebed.cli.command_line import command_parser
from lakebed.pipeline.settings import parse_pipeline
from lakebed.version import __version__
from tests.infra.downloads import REPOSITORY, chart_renderer

DEPLOY = REPOSITORY / "deploy"
CHART = DEPLOY / "helm" / "lakebed"
FILE = "table: {path: s3://lake/orders, keys: [id], schema: {id: long}}\nsource: {kind: generator}\n"
VALUES = {
    "pipelines": {
        "orders": {"file": FILE, "envFrom": [{"secretRef": {"name": "orders"}}]},
        "other": {"file": FILE, "only": "ingest", "env": [{"name": "A", "value": "b"}], "resources": {}},
    },
    "maintainers": {"orders": {"path": "s3://lake/orders", "replicas": 2}},
    "metrics": {"annotations": True, "podMonitor": True},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccount": {"annotations": {"role": "writer"}},
}


def script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What the command makes of these arguments; it refuses what it does not have."""
    options, others = command_parser().parse_known_args(arguments)
    assert others == []
    return vars(options)


@pytest.fixture(scope="module")
def chart() -> Path:
    return chart_renderer()


def rendered(chart: Path, values: object, folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = subprocess.run([chart, CHART, file], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr)
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.slow
def test_the_chart_renders_objects_that_kubernetes_has(chart: Path, tmp_path: Path) -> None:
    objects = rendered(chart, VALUES, tmp_path)
    assert sorted(objects) == [
        ("ConfigMap", "lake-orders"),
        ("ConfigMap", "lake-other"),
        ("Deployment", "lake-orders-maintain"),
        ("NetworkPolicy", "lake"),
        ("PodMonitor", "lake"),
        ("Service", "lake-orders"),
        ("Service", "lake-other"),
        ("ServiceAccount", "lake"),
        ("StatefulSet", "lake-orders"),
        ("StatefulSet", "lake-other"),
    ]
    assert objects["Deployment", "lake-orders-maintain"]["spec"]["replicas"] == 2
    assert {each["spec"]["replicas"] for (kind, _), each in objects.items() if kind == "StatefulSet"} == {1}


@pytest.mark.slow
def test_nobody_reaches_the_page_of_a_pod_unless_the_values_say_so(chart: Path, tmp_path: Path) -> None:
    policy = rendered(chart, VALUES, tmp_path)["NetworkPolicy", "lake"]["spec"]
    pods = [
        each for (kind, _), each in rendered(chart, VALUES, tmp_path).items() if kind in ("StatefulSet", "Deployment")
    ]
    for pod in pods:
        labels = pod["spec"]["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]] == [["metrics"]]
    proxy = [{"podSelector": {"matchLabels": {"app": "proxy"}}}]
    opened = rendered(chart, {**VALUES, "networkPolicy": {"pageFrom": proxy}}, tmp_path)["NetworkPolicy", "lake"][
        "spec"
    ]
    assert opened["ingress"][1] == {"from": proxy, "ports": [{"protocol": "TCP", "port": "page"}]}


@pytest.mark.slow
def test_each_pod_runs_a_command_that_lakebed_has_on_a_file_that_is_there(chart: Path, tmp_path: Path) -> None:
    objects = rendered(chart, VALUES, tmp_path)
    pods = {key: each["spec"]["template"] for key, each in objects.items() if key[0] in ("StatefulSet", "Deployment")}
    for (kind, name), pod in pods.items():
        [container] = pod["spec"]["containers"]
        options = parsed(container["args"])
        assert options["host"] == "0.0.0.0" and options["metrics_port"] == 9464
        selector = objects[kind, name]["spec"]["selector"]["matchLabels"]
        assert selector.items() <= pod["metadata"]["labels"].items()
        if kind == "StatefulSet":
            mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
            data = objects["ConfigMap", name]["data"]
            assert options["file"] == f"{mounted['pipeline']}/pipeline.yml"
            assert data["pipeline.yml"] == FILE and parse_pipeline(FILE, "pipeline.yml", {}).table.keys == ("id",)
    assert parsed(pods["StatefulSet", "lake-other"]["spec"]["containers"][0]["args"])["only"] == "ingest"


@pytest.mark.slow
def test_another_pipeline_file_is_another_pod(chart: Path, tmp_path: Path) -> None:
    def pod(file: str) -> Any:
        objects = rendered(chart, {"pipelines": {"orders": {"file": file}}}, tmp_path)
        return objects["StatefulSet", "lake-orders"]["spec"]["template"]

    assert pod(FILE) == pod(FILE) != pod(FILE + "# changed\n")


@pytest.mark.slow
def test_a_chart_without_pipelines_has_none_and_one_without_its_file_is_refused(chart: Path, tmp_path: Path) -> None:
    assert list(rendered(chart, {}, tmp_path)) == [("ServiceAccount", "lake")]
    with pytest.raises(ValueError, match=r"pipelines\.orders\.file is the pipeline file"):
        rendered(chart, {"pipelines": {"orders": {}}}, tmp_path)
    with pytest.raises(ValueError, match=r"maintainers\.orders\.path is the path of a table"):
        rendered(chart, {"maintainers": {"orders": {}}}, tmp_path)


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {re.sub(r"\.dev\d+$", "", __version__)}


def test_the_dockerfile_passes_its_linter_and_runs_a_command_that_lakebed_has() -> None:
    file = DEPLOY / "docker" / "Dockerfile"
    done = subprocess.run([script("hadolint"), "--no-color", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [extras] = re.findall(r"^ARG EXTRAS=(.*)$", file.read_text(), re.MULTILINE)
    known = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert known.keys() - set(extras.split(",")) == {"dev", "plots", "protobuf"}
    command = re.findall(r"^CMD (.*)$", file.read_text(), re.MULTILINE)
    assert parsed(json.loads(command[-1]))["file"] == "/etc/lakebed/pipeline.yml"


def test_the_image_gets_everything_that_the_wheel_is_built_from() -> None:
    kept = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().split() if line.startswith("!")}
    assert kept >= {"lakebed", "docs", "examples", "pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md"}
    assert all((REPOSITORY / name).exists() for name in kept)


def test_the_compose_file_fits_its_schema_and_names_what_is_there() -> None:
    file = DEPLOY / "docker" / "compose.yml"
    command = [script("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    compose = yaml.safe_load(file.read_text())
    for service in compose["services"].values():
        if "build" in service:
            assert (file.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
            parsed(service["command"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (file.parent / source).exists() if source.startswith(".") else source in compose["volumes"]
        for config in service.get("configs", []):
            yaml.safe_load(compose["configs"][config["source"]]["content"])


def test_compose_shows_the_dashboards_and_rules_that_lakebed_writes(tmp_path: Path) -> None:
    from lakebed.cli import main

    assert main(["export", "dashboards", str(tmp_path)]) == 0
    configs = yaml.safe_load((DEPLOY / "docker" / "compose.yml").read_text())["configs"]
    scraping, boards, source = (
        yaml.safe_load(configs[name]["content"]) for name in ("prometheus", "dashboards", "datasource")
    )
    places = [*scraping["rule_files"], boards["providers"][0]["options"]["path"]]
    assert all((tmp_path / place.removeprefix("/dashboards/")).exists() for place in places)
    written = yaml.safe_load(next(tmp_path.glob("grafana/provisioning/datasources/*")).read_text())
    assert source["datasources"][0]["uid"] == written["datasources"][0]["uid"]


def test_the_service_of_systemd_runs_commands_that_lakebed_has() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd" / "lakebed@.service")
    for key in ("ExecStart", "ExecStartPre"):
        program, *arguments = unit["Service"][key].split()
        assert program == "/opt/lakebed/bin/lakebed" and parsed(arguments)["file"] == "/etc/lakebed/%i.yml"
    from lakebed.cli.commands.run import STOP_SECONDS_MAX

    assert int(unit["Service"]["TimeoutStopSec"]) > STOP_SECONDS_MAX
