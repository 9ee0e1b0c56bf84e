"""``lakebed serve``: the service. ``lakebed token``: who may use it."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading

from lakebed.cli import exit_codes
from lakebed.cli.logs import note
from lakebed.errors import InvalidInput, MissingPrerequisite


def add_serve_options(serve: argparse.ArgumentParser) -> None:
    """The arguments of ``lakebed serve``."""
    serve.set_defaults(runs_on=True)
    serve.add_argument("roots", nargs="+", metavar="ROOT", help="tables, or folders with tables in them")
    serve.add_argument("--port", type=int, default=9467, metavar="PORT", help="0: any (default: 9467)")
    serve.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    serve.add_argument(
        "--tokens", metavar="FILE", help="who may read and who may change: lines that lakebed token makes"
    )
    serve.add_argument("--certificate", metavar="FILE", help="for HTTPS: the certificate and its chain, in PEM")
    serve.add_argument("--key", metavar="FILE", help="for HTTPS: the private key, in PEM")


def add_token_options(token: argparse.ArgumentParser) -> None:
    """The arguments of ``lakebed token``."""
    token.add_argument("name", metavar="NAME", help="whose it is")
    token.add_argument("--role", choices=("reader", "operator"), default="reader", help="default: reader")
    token.add_argument("--tokens", required=True, metavar="FILE", help="the file that lakebed serve reads")


def serve(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Raises MissingPrerequisite without the packages of the extra ``serve``."""
    from lakebed.http.hosts import is_loopback
    from lakebed.monitoring.event_log import log_fields

    try:
        from lakebed.http.server import Listening
        from lakebed.listeners.deliverer import Deliverer
        from lakebed.service.app import Service
        from lakebed.service.catalog import Catalog
        from lakebed.service.job_loop import JobLoop
        from lakebed.service.server import Server, tokens_of
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"lakebed serve needs {error.name}: pip install 'lakebed[serve]'") from None
    from lakebed.service.tokens import new_token

    own = new_token()
    tokens = tokens_of(options.tokens, options.host, own)
    listening = Listening(host=options.host, port=options.port, certificate=options.certificate, key=options.key)
    catalog = Catalog(options.roots)
    server = Server(Service(catalog, tokens, options.host), listening)
    jobs = JobLoop(catalog)
    deliverers = [Deliverer(root) for root in catalog.folders()]
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    server.start()
    jobs.start()
    for each in deliverers:
        each.start()
    if options.log_format == "json":
        log_fields(logging.INFO, "serving", {"url": server.url})
    else:
        print(f"lakebed: the service and its page are at {server.url}", file=sys.stderr, flush=True)
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


def token(options: argparse.Namespace) -> int:
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
