"""``lakebed docs``, ``lakebed help`` and ``lakebed dashboards``: what the package contains to read, and files for others."""

from __future__ import annotations

import argparse
from pathlib import Path

from lakebed.cli import exit_codes, logs
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput

_EXAMPLES = "examples/"
TOPICS = {
    "exit-codes": "what the exit codes mean:\n" + "\n".join((exit_codes.__doc__ or "").splitlines()[2:]),
    "logging": logs.HELP,
    "completion": """completing commands and options in a shell:

  eval "$(register-python-argcomplete lakebed)"                     bash, zsh
  register-python-argcomplete --shell fish lakebed | source         fish

in the start file of the shell, such as ~/.bashrc. The command that it runs
comes with lakebed.""",
}
"""What ``lakebed help`` explains beside the commands; the first line says what."""


def add_to(commands: Commands) -> None:
    """Add the commands."""
    docs = commands.add("docs", "print a page of the documentation, or an example", _docs, "guides/faq")
    docs.add_argument(
        "page", nargs="?", metavar="PAGE", help="such as runbook, runbook#lakebedtailold or examples/orders"
    )
    boards = commands.add(
        "dashboards", "write dashboards for Grafana and alert rules for Prometheus", _dashboards, "--out monitoring"
    )
    boards.add_argument(
        "--out", required=True, metavar="DIR", help="the folder to write to; files of an earlier call are replaced"
    )
    boards.add_argument(
        "--runbook", metavar="URL", help="where you publish docs/runbook.md (default: alerts link to a copy in DIR)"
    )
    explain = commands.add("help", f"explain a command, or {', '.join(TOPICS)}", _help, "exit-codes")
    explain.add_argument(
        "words", nargs="*", metavar="COMMAND", help=f"such as run or show parts, or {', '.join(TOPICS)}"
    )


def _docs(options: argparse.Namespace) -> int:
    from lakebed import manual
    from lakebed.settings import suggest

    files = manual.pages() | {f"{_EXAMPLES}{name}": path for name, path in manual.examples().items()}
    if options.page is None:
        width = max(map(len, files), default=0)
        for name, path in files.items():
            print(f"{name:<{width}}  {manual.title(path)}")
        return exit_codes.OK
    name, _, section = options.page.partition("#")
    name = name.removeprefix("docs/").removesuffix(".md").removesuffix(".yml")
    if name not in files:
        kind = "example" if name.startswith(_EXAMPLES) else "page"
        others = [each for each in files if each.startswith(_EXAMPLES) == (kind == "example")]
        raise InvalidInput(f"there is no {kind} {name!r}{suggest(name, others) or '; there are ' + ', '.join(others)}")
    print(manual.text(files[name], section), end="")
    return exit_codes.OK


def _help(options: argparse.Namespace) -> int:
    if len(options.words) == 1 and options.words[0] in TOPICS:
        print(TOPICS[options.words[0]])
    else:
        options.of_all.parse_args([*options.words, "--help"])  # prints it and ends the process
    return exit_codes.OK


def _dashboards(options: argparse.Namespace) -> int:
    from lakebed.monitoring.dashboards import write

    for path in write(Path(options.out), options.runbook):
        print(path)
    return exit_codes.OK
