"""The process that Spark forks the Python workers of a local pipeline from: it has imported what their tasks need.

    python -m lakebed.pipeline.worker_daemon pyspark.worker

So the imports happen once, and the workers share their memory. A forked process has no thread of its parent's, so what is
imported here must not start one that it needs later.
"""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress

MODULES = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "lakebed.ingest.batch_writer",
    "lakebed.decode.debezium.events",
    "lakebed.sources.rows",
    "lakebed.sources.files.reader",
    "lakebed.decode.json_rows",
    "lakebed.sources.generator",
    "lakebed.sources.kafka.source",
    "lakebed.ingest.transform_run",
)


def import_all() -> None:
    """Import the modules; those of an extra that is not installed are left out."""
    for name in MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or the first collection of each worker would write to all these objects, and so copy them


if __name__ == "__main__":
    from pyspark.daemon import manager

    import_all()
    manager()
