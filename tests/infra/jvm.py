"""How the Java servers of the tests (broker, Connect, registry) are run: small heaps, quick start, log to standard output."""

from __future__ import annotations

from pathlib import Path

from tests.infra.downloads import program

LOG_SETTINGS = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{HH:mm:ss.SSS} %p %c{1} %m%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""


def java_options(heap_mb_max: int) -> list[str]:
    """Java itself, and what every server is run with."""
    return [
        program("java", "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)"),
        f"-Xmx{heap_mb_max}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
    ]


def java_command(jars: Path, run_folder: Path, heap_mb_max: int, main: str, *arguments: str) -> list[str]:
    """A command line for a main class out of a folder of jars."""
    log_settings = run_folder / "log4j2.properties"
    log_settings.write_text(LOG_SETTINGS)
    return [
        *java_options(heap_mb_max),
        f"-Dlog4j2.configurationFile={log_settings}",
        "-cp",
        f"{jars}/*",
        main,
        *arguments,
    ]


def properties_text(settings: dict[str, object]) -> str:
    """A Java properties file, one setting a line."""
    return "".join(f"{key}={value}\n" for key, value in settings.items())
