"""The command ``lakebed``.

    lakebed run pipeline.yml          ingest, settle, show
    lakebed query lake/orders "select count(*) from orders"

Exit codes: see ``lakebed.cli.exit_codes``. Spark is imported by ``run`` alone, and nothing before ``main`` can catch a Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        from lakebed.cli.command_line import execute

        return execute(arguments)
    except KeyboardInterrupt:
        from lakebed.cli.exit_codes import INTERRUPTED

        return INTERRUPTED
