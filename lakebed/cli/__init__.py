"""The command ``lakebed``.

    lakebed run pipeline.yml          ingest, settle, show
    lakebed query lake/orders "select count(*) from orders"

Exit codes: see ``lakebed.cli.exit_codes``. Spark is imported by ``run`` alone.
"""

from lakebed.cli.main import main

__all__ = ["main"]
