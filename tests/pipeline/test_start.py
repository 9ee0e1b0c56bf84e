"""What a pipeline does until its first batch: what is imported before Java runs, how Java starts, what is said meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakebed.cli.run_display import PlainDisplay
from lakebed.errors import MissingPrerequisite
from lakebed.monitoring.progress import Progress
from lakebed.pipeline import driver
from lakebed.pipeline.driver import Abandoned, SparkStart, phase_of_java, spark_settings
from lakebed.pipeline.run import Look, Phase, run
from lakebed.pipeline.settings import Pipeline, parse_pipeline
from lakebed.sparks import java
from lakebed.sparks import java as archives
from lakebed.sparks import session as sessions
from lakebed.sparks.java import ClassArchive, JavaEnded, QuickStart, class_archive, quick_start
from lakebed.sparks.session import prepare_environment
from tests.waiting import STILL_SECONDS_MAX, wait_until

PIPELINE = """
table: {path: lake/t, keys: [id], schema: {id: long not null}}
source: {kind: generator}
"""
SLOW_TO_IMPORT = ("pandas", "duckdb", "pyspark", "prometheus_client", "boto3", "confluent_kafka")
NO_TWO_COLLECTORS = ("-XX:+UseSerialGC", "-XX:+UseParallelGC")


def pipeline_of(more: str = "", path: Path = Path("lake/t")) -> Pipeline:
    return parse_pipeline(PIPELINE.replace("lake/t", str(path)) + more, "p.yml", {})


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without a user's options of Java, and a cache folder of its own."""
    for name in (*java.ENVIRONMENT, "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "java"


def loaded_by(code: str) -> list[str]:
    """Those of ``SLOW_TO_IMPORT``, and the rooms of lakebed, that are loaded after this code."""
    code += f"\nimport sys\nprint(*[m for m in {SLOW_TO_IMPORT!r} if m in sys.modules], 'lakebed.table' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


# -- imports ---------------------------------------------------------------------------------------------------------------


def test_the_help_loads_no_engine() -> None:
    assert loaded_by("import lakebed.cli\ntry: lakebed.cli.main(['--help'])\nexcept SystemExit: pass") == ["False"]


def test_java_starts_before_spark_the_table_and_the_metrics_are_imported() -> None:
    loaded = loaded_by("import lakebed.cli.commands.run")
    assert not {"pandas", "pyspark", "prometheus_client", "boto3", "confluent_kafka", "True"}.intersection(loaded)


@pytest.mark.slow
def test_a_run_never_loads_pandas() -> None:
    assert "pandas" not in loaded_by(
        "import pyspark.sql, lakebed.pipeline.run, lakebed.cli.run_display, lakebed.cli.commands.run"
    )


@pytest.mark.slow
def test_the_daemon_of_the_workers_has_loaded_the_code_of_their_tasks_and_runs_one_thread() -> None:
    """A thread would be missing in each forked worker. (jemalloc's own gives memory back, and pyarrow uses mimalloc.)"""
    code = (
        "import os\nfrom lakebed.pipeline.worker_daemon import import_all, MODULES\nimport_all()\nimport sys\n"
        "missing = [name for name in MODULES if name not in sys.modules and 'kafka' not in name]\n"
        "names = [open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')]\n"
        "print(missing, len([name for name in names if name != 'jemalloc_bg_thd']))"
    )
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as in what Java starts
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[] 1"


# -- how Java starts -------------------------------------------------------------------------------------------------------


def test_java_gets_the_quick_compiler_one_collector_and_a_list_to_fill(plain: Path) -> None:
    quick = quick_start({})
    assert quick is not None and quick.archive is not None
    assert {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"} <= set(quick.options)
    assert quick.archive.option.startswith(f"-XX:DumpLoadedClassList={plain}")
    quick.archive.close()
    assert not list(plain.iterdir())


@pytest.mark.parametrize(
    ("own", "left_out"),
    [
        ("-XX:+UseG1GC", "-XX:+UseSerialGC"),
        ("-XX:-TieredCompilation", "-XX:TieredStopAtLevel=1"),
        ("-Xms2g", "-Xms64m"),
    ],
)
def test_an_option_of_the_user_leaves_ours_out(
    own: str, left_out: str, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_conf = quick_start({"spark.driver.extraJavaOptions": own})
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", own)
    for quick in (by_conf, quick_start({})):
        assert quick is not None and left_out not in quick.options and len(quick.options) >= 2


def test_a_user_s_own_archive_or_another_spark_is_left_alone(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = quick_start({"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=/their.jsa"})
    assert quick is not None and quick.archive is None
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert quick_start({}) is None


def test_settings_of_the_pipeline_file_win() -> None:
    own = "spark: {conf: {spark.sql.codegen.wholeStage: 'true', spark.ui.enabled: 'true'}}\n"
    conf = spark_settings(pipeline_of(own)).conf
    assert conf["spark.sql.codegen.wholeStage"] == conf["spark.ui.enabled"] == "true"


@pytest.mark.parametrize(
    ("source", "form", "small"),
    [
        ("generator", "debezium-json", True),
        ("files, folder: arriving", "json", True),
        ("files, folder: arriving", "parquet", True),
        ("files, folder: arriving", "csv", False),
        ("files, folder: arriving", "{kind: parquet, apply_as_deletes: gone}", False),
    ],
)
def test_only_a_driver_through_which_no_rows_go_is_made_for_small_work(source: str, form: str, small: bool) -> None:
    text = PIPELINE.replace("generator", source) + f"format: {form}\n"
    settings = spark_settings(parse_pipeline(text, "p.yml", {}))
    assert settings.small is small and ("spark.sql.codegen.wholeStage" in settings.conf) is small
    assert spark_settings(parse_pipeline(text, "p.yml", {}), maintains=True).small


@pytest.mark.parametrize("master", ["spark://there:7077", "local-cluster[2,1,1024]", "k8s://there"])
def test_on_a_cluster_java_starts_as_spark_starts_it(master: str) -> None:
    settings = spark_settings(pipeline_of(f"spark: {{master: '{master}'}}\n"))
    assert not settings.small and "spark.python.daemon.module" not in settings.conf


def test_a_table_on_a_local_disk_needs_no_jars() -> None:
    local, remote = (spark_settings(pipeline_of(more)).conf for more in ("", "checkpoint: s3://bucket/checkpoint\n"))
    assert "spark.jars.packages" not in local
    assert "hadoop-aws" in remote["spark.jars.packages"] and "delta" not in remote["spark.jars.packages"]


def test_jars_of_the_pipeline_file_are_added_to_those_that_lakebed_needs() -> None:
    own = "spark: {conf: {spark.jars.packages: 'org.postgresql:postgresql:42.7.13'}}\n"
    conf = spark_settings(pipeline_of(f"checkpoint: s3://bucket/checkpoint\n{own}")).conf
    assert "hadoop-aws" in conf["spark.jars.packages"]
    assert conf["spark.jars.packages"].endswith(",org.postgresql:postgresql:42.7.13")
    assert spark_settings(pipeline_of(own)).conf["spark.jars.packages"] == "org.postgresql:postgresql:42.7.13"
    needed = sessions.settings(s3=False)
    extensions = sessions.with_own(needed, {"spark.sql.extensions": "their.Extension"})["spark.sql.extensions"]
    assert extensions == f"{needed['spark.sql.extensions']},their.Extension"


def test_no_secret_is_on_the_command_line_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each user of the machine can read it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    secret = {"spark.hadoop.fs.s3a.secret.key": "hunter3hunter3", "spark.ssl.keyPassword": "hunter4hunter4"}
    pipeline = pipeline_of(f"checkpoint: s3://bucket/checkpoint\nspark: {{conf: {secret}}}\n")
    settings = spark_settings(pipeline)
    assert {"spark.executorEnv.AWS_SECRET_ACCESS_KEY": "hunter2hunter2", **secret}.items() <= settings.conf.items()
    assert "hunter" not in str(settings.conf_of_java) and settings.conf_of_java["spark.jars.packages"]


@pytest.mark.slow
def test_a_session_has_the_secrets_that_its_java_was_not_started_with() -> None:
    code = (
        "import pathlib\nfrom lakebed.sparks.session import start_session\n"
        "conf = {'spark.ui.enabled': 'false', 'spark.executorEnv.AWS_SECRET_ACCESS_KEY': 'hunter2hunter2'}\n"
        "context = start_session('a session', 'local[1]', conf).sparkContext\n"
        "command = pathlib.Path(f'/proc/{context._gateway.proc.pid}/cmdline').read_text()\n"
        "print('a session' in command, 'ui.enabled' in command, 'hunter' in command)\n"
        "print(context.getConf().get('spark.executorEnv.AWS_SECRET_ACCESS_KEY'), context.appName)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True True False", "hunter2hunter2 a session"]


# -- the archive of classes ------------------------------------------------------------------------------------------------


def listed_classes(archive: ClassArchive) -> None:
    """Let Java fill the list, as a run does."""
    subprocess.run([java.java_path(), archive.option, "-XX:+UseSerialGC", "-version"], capture_output=True, check=True)


def test_the_classes_of_two_runs_become_one_archive_that_the_next_start_reads(
    plain: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(archives, "MAKE_AFTER_SECONDS", 0.0)
    both = [class_archive(["a start"]) for _ in range(2)]
    for archive in both:
        assert archive is not None
        listed_classes(archive)
        archive.make([java.java_path(), "-XX:+UseSerialGC"], str(tmp_path))
    wait_until(lambda: list(plain.glob("*.jsa")) and not list(plain.glob("*.part")), "no archive was made")
    for archive in both:
        assert archive is not None
        archive.close()
    assert [file.suffix for file in plain.iterdir()] == [".jsa"]
    again = class_archive(["a start"])
    assert again is not None and again.option.startswith("-XX:SharedArchiveFile=")


def test_a_run_that_ends_early_leaves_nothing_behind(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()
    popen = subprocess.Popen

    def slow(*_: Any, **options: Any) -> Any:
        started.set()
        return popen(["sleep", "600"], **options)

    monkeypatch.setattr(archives, "MAKE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(archives.subprocess, "Popen", slow)
    archive = class_archive(["a start"])
    assert archive is not None and archive.classes is not None
    archive.make(["java"], "")
    wait_until(started.is_set, "Java does not make the archive")
    archive.close()
    assert not list(plain.iterdir())


def test_without_a_cache_folder_java_starts_all_the_same(plain: Path) -> None:
    plain.parent.parent.mkdir(parents=True, exist_ok=True)
    plain.parent.write_text("a file where the folder would be")
    quick = quick_start({})
    assert quick is not None and quick.archive is None and quick.options


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", marks=pytest.mark.long, id="empty"),
        pytest.param(b"no archive", id="text"),
        pytest.param(b"\xf0\x0b\xab\xa2" + bytes(9_000), marks=pytest.mark.long, id="zeros"),
    ],
)
def test_a_broken_archive_stops_no_start(content: bytes, plain: Path, tmp_path: Path) -> None:
    prepare_environment("local[1]")
    quick = quick_start({})
    assert quick is not None and quick.archive is not None
    quick.archive.file.write_bytes(content)
    quick.archive.close()
    quick = quick_start({})
    assert quick is not None and quick.archive is not None and quick.archive.classes is None
    started = quick.launch({"spark.master": "local[1]"}, tmp_path / "log")
    assert started.port and "jars/*" in started.class_path
    assert started.process.stdin is not None
    started.process.stdin.close()
    wait_until(lambda: started.process.poll() is not None)
    assert started.process.returncode == 0


@pytest.mark.slow
def test_if_java_refuses_our_options_spark_s_scripts_start_it_and_the_archive_goes(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = quick_start({})
    assert quick is not None and quick.archive is not None
    quick.archive.file.write_bytes(b"stale")
    stubborn = QuickStart(quick.jars, NO_TWO_COLLECTORS, quick.archive)
    with pytest.raises(JavaEnded):
        stubborn.launch({}, plain / "log")
    monkeypatch.setattr(driver, "quick_start", lambda _: stubborn)
    start = SparkStart(pipeline_of())
    assert start.quick_java() is None
    gateway = driver.connected(start.java_by_scripts())
    try:
        assert gateway.jvm.java.lang.System.getProperty("java.version")
    finally:
        driver.end(gateway)
        start.log.unlink()
    assert not list(plain.glob("*.jsa"))


@pytest.mark.slow
@pytest.mark.parametrize("quickly", [True, False])
def test_a_start_that_is_given_up_ends_java_at_once_and_leaves_no_file(
    quickly: bool, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = below_this_process(b"SparkSubmit")  # the session that tests share runs below this process too
    if not quickly:
        monkeypatch.setattr(driver, "quick_start", lambda _: None)
    start = SparkStart(pipeline_of())
    with pytest.raises(Abandoned), start, start:
        start.begin()
        start.wait(lambda: bool(below_this_process(b"SparkSubmit") - others))
    assert not below_this_process(b"SparkSubmit") - others
    assert not start.log.exists() and not list(plain.rglob("*"))


def below_this_process(word: bytes) -> set[int]:
    """The children of this process with this word in their command."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread, or a child, that has just ended
            children = [int(pid) for pid in (task / "children").read_text().split()]
            found |= {pid for pid in children if word in Path(f"/proc/{pid}/cmdline").read_bytes()}
    return found


# -- what is said meanwhile ------------------------------------------------------------------------------------------------


def test_jars_are_fetched_while_ivy_resolves_them() -> None:
    fetching = ":: loading settings\n:: resolving dependencies :: org.apache.spark\ndownloading a.jar\n"
    assert [phase_of_java(log) for log in ("", fetching, fetching + ":: retrieving :: org.apache.spark\n")] == [
        "starting Java",
        "fetching jars",
        "starting Java",
    ]


def test_each_phase_of_a_start_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    phases: list[Phase] = ["starting Java", "fetching jars", "starting Spark", "first batch", "running"]
    display = PlainDisplay()
    for phase in [each for each in phases for _ in range(3)]:
        display(Look(phase, Progress("t").figures(), None, None))
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()] == phases


@pytest.mark.parametrize("error", [MissingPrerequisite("no Java"), Abandoned(), KeyboardInterrupt()])
def test_what_looks_after_a_run_ends_with_it_if_spark_never_starts(error: BaseException, tmp_path: Path) -> None:
    def fails(abandoned: Callable[[], bool]) -> None:
        assert [one.name for one in threads_of_watches()] == ["lakebed-watch-disk"]
        raise error

    pipeline = pipeline_of("metrics: {port: null}\n", path=tmp_path / "t")
    with suppress(type(error)):
        run(pipeline, cast("SparkStart", SimpleNamespace(wait=fails)), threading.Event(), lambda look: None)
    for thread in threads_of_watches():
        thread.join(STILL_SECONDS_MAX)
    assert threads_of_watches() == []


def threads_of_watches() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("lakebed-watch-")]
