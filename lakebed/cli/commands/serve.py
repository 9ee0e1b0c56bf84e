"""``lakebed serve``: what answers over HTTP of tables: the service, its tokens, the web page, and the metrics.

``lakebed export``: what other programs need of lakebed, as files.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from lakebed.cli import exit_codes
from lakebed.cli.arguments import is_table, positive, some_port, tables_at, until_stopped
from lakebed.cli.logs import note
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite, TableNotFound

_DISCOVERY_SECONDS = 60.0
_PATHS = "tables, or folders of tables"


def add_to(commands: Commands) -> None:
    """Add ``serve``."""
    family = commands.family("serve", "serve an API, a web page or the metrics of tables over HTTP")
    api = family.add(
        "api",
        "answer over HTTP what tables are, and what to read of them",
        _api,
        "lake --tokens tokens.txt",
        runs_on=True,
    )
    page = family.add("page", "serve a read-only web page of tables", _page, "lake", runs_on=True)
    gauges = family.add(
        "metrics", "serve the gauges of tables to Prometheus", _metrics, "lake --port 9465", runs_on=True
    )
    token = family.add(
        "token", "make a token for callers of lakebed serve api", _token, "ada --role operator --tokens tokens.txt"
    )
    for each, port in ((api, 9467), (page, 9466), (gauges, 9465)):
        each.add_argument("paths", nargs="+", metavar="PATH", help=_PATHS)
        each.add_argument("--port", type=some_port, default=port, metavar="PORT", help=f"0: any (default: {port})")
        each.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    for each, seconds in ((page, 2), (gauges, 15)):
        text = f"seconds between looks (default: {seconds})"
        each.add_argument("--interval", type=positive, default=float(seconds), metavar="SECONDS", help=text)
    api.add_argument(
        "--tokens", metavar="FILE", help="who may read and who may change: lines that lakebed serve token makes"
    )
    api.add_argument("--certificate", metavar="FILE", help="for HTTPS: the certificate and its chain, in PEM")
    api.add_argument("--key", metavar="FILE", help="for HTTPS: the private key, in PEM")
    api.add_argument(
        "--share-keys",
        action="store_true",
        help="give readers of Iceberg that have a token, and ask for them, the keys with which this service reaches S3",
    )
    token.add_argument("name", metavar="NAME", help="whose token it is")
    token.add_argument("--role", choices=("reader", "operator"), default="reader", help="default: reader")
    token.add_argument("--tokens", required=True, metavar="FILE", help="the file that lakebed serve api reads")
    _add_exports(commands)


def _add_exports(commands: Commands) -> None:
    """Add ``export``."""
    family = commands.family("export", "write files for other programs: dashboards, a jar for Spark")
    boards = family.add(
        "dashboards", "write dashboards for Grafana and alert rules for Prometheus", _dashboards, "monitoring"
    )
    boards.add_argument("folder", metavar="DIR", help="where to write; files of an earlier call are replaced")
    boards.add_argument(
        "--runbook", metavar="URL", help="where you publish docs/runbook.md (default: alerts link to a copy in DIR)"
    )
    jar = family.add(
        "spark-jar", "write the jar with which a Spark finds tables by name", _spark_jar, "lakebed-spark.jar"
    )
    jar.add_argument(
        "file",
        metavar="FILE",
        help="where to write it, for the Spark that is installed here; FOLDER/: Delta's jars too",
    )


def _dashboards(options: argparse.Namespace) -> int:
    from lakebed.monitoring.dashboards import write

    for path in write(Path(options.folder), options.runbook):
        print(path)
    return exit_codes.OK


def _spark_jar(options: argparse.Namespace) -> int:
    from lakebed.sparks.names import write_jar
    from lakebed.sparks.session import require_java, write_jars

    require_java()
    if options.file.endswith("/") or Path(options.file).is_dir():
        version, lacking = write_jars(Path(options.file))
        note(
            f"{options.file} has what the class path of Spark {version} needs (docs/guides/bi-and-connect.md)"
            + (f", but for Delta's jars: {lacking}" if lacking else "")
        )
        return exit_codes.OK
    version = write_jar(Path(options.file))
    note(f"{options.file} is for Spark {version}: give it as spark.jars, with spark.sql.extensions=lakebed.Extensions")
    return exit_codes.OK


def _metrics(options: argparse.Namespace) -> int:
    """Serve the gauges until Ctrl-C or SIGTERM, also those of tables that appear below a folder meanwhile."""
    from lakebed.health.sampler import Exporter
    from lakebed.monitoring.metrics import Metrics

    metrics = Metrics()
    known = _roots(options.paths)
    exporters = [Exporter(known, metrics, options.interval)]
    server = metrics.serve(options.host, options.port, "--port")
    done = until_stopped()
    _say("metrics", server.url, options)
    exporters[0].start()
    while not done.wait(_DISCOVERY_SECONDS):
        if new := [root for root in _roots(options.paths) if root not in known]:
            known += new
            exporters.append(Exporter(new, metrics, options.interval))
            exporters[-1].start()
    for each in exporters:
        each.close()
    server.close()
    return exit_codes.OK


def _roots(paths: list[str]) -> list[str]:
    """The tables that paths mean now. A path without a table, or one that does not answer, is taken for a table to come."""
    found: list[str] = []
    for path in paths:
        try:
            found += tables_at(path).values()
        except InvalidInput:
            raise
        except LakebedError:
            found.append(path)
    return list(dict.fromkeys(found))


def _page(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C or SIGTERM."""
    from lakebed.ui.pages import PageServer

    databases = [path for path in options.paths if is_folder(path)]
    paths = [path for path in options.paths if path not in databases]
    server = PageServer(paths, options.host, options.port, options.interval, databases=databases)
    done = until_stopped()
    server.start()
    _say("the page", server.url, options)
    done.wait()
    server.close()
    return exit_codes.OK


def is_folder(path: str) -> bool:
    """Whether there are tables below the path. One that can't be looked at is shown as a table, with the reason."""
    try:
        return not is_table(path) and bool(tables_at(path))
    except (InvalidInput, TableNotFound) as error:
        if isinstance(error, TableNotFound):
            return False
        raise
    except LakebedError as error:
        note(f"{path} can't be looked at now, and is shown as one table: {error}")
        return False


def _say(what: str, url: str, options: argparse.Namespace) -> None:
    from lakebed.monitoring.event_log import log_fields

    if options.log_format == "json":
        log_fields(logging.INFO, "serving", {"url": url})
    else:
        are = "are" if what.endswith("s") else "is"
        print(f"lakebed: {what} {are} at {url}", file=sys.stderr, flush=True)


def _api(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Raises MissingPrerequisite without the packages of the extra ``serve``."""
    from lakebed.http import is_loopback

    try:
        from lakebed.http import Listening
        from lakebed.listeners.delivery import Deliverer
        from lakebed.service.app import Server, Service, tokens_of
        from lakebed.service.catalog import Catalog
        from lakebed.service.job_routes import JobLoop
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"lakebed serve api needs {error.name}: pip install 'lakebed[serve]'") from None
    from lakebed.service.tokens import new_token

    own = new_token()
    tokens = tokens_of(options.tokens, options.host, own)
    listening = Listening(host=options.host, port=options.port, certificate=options.certificate, key=options.key)
    catalog = Catalog(options.paths)
    server = Server(Service(catalog, tokens, options.host, shares_keys=options.share_keys), listening)
    jobs = JobLoop(catalog)
    deliverers = [Deliverer(root) for root in catalog.folders()]
    done = until_stopped()
    server.start()
    jobs.start()
    for each in deliverers:
        each.start()
    _say("the service and its page", server.url, options)
    if options.tokens is None:
        note(
            f"everybody on this machine may read; the page of an operator, until the service ends: {server.url}/#token={own}"
        )
    elif options.certificate is None and not is_loopback(options.host):
        note("tokens travel in the clear: give --certificate and --key, or put a proxy with TLS before the service")
    done.wait()
    for each in deliverers:
        each.close()
    jobs.close()
    server.close()
    return exit_codes.OK


def _token(options: argparse.Namespace) -> int:
    """Print a new token, and append its line to the file, which only its owner may read then."""
    from lakebed.service.tokens import Role, line_of, new_token

    made = new_token()
    line = line_of(made, Role[options.role.upper()], options.name)
    try:
        number = os.open(options.tokens, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(line + "\n")
    except OSError as error:
        raise InvalidInput(f"the token can't be added to {options.tokens}: {error.strerror}") from None
    print(made)
    note(f"{options.name} has the role {options.role}; the token is shown this once")
    return exit_codes.OK
