"""The session of Spark that a user's program has: built, or their own completed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakebed.errors import MissingPrerequisite
from lakebed.sparks.names import answer_with, conf_of, require_names
from lakebed.sparks.session import build, require_usable, wants_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark(
    app_name: str = "lakebed",
    master: str | None = None,
    *,
    s3: bool | None = None,
    session: SparkSession | None = None,
    conf: Mapping[str, str] | None = None,
    catalogs: Mapping[str, str | os.PathLike[str]] | None = None,
) -> SparkSession:
    """A session of Spark that reads and writes lakebed's tables: the running one, if there is one, or a new one.

    Args:
        app_name: The name of a new session.
        master: Where a new session runs. By default the environment variable ``LAKEBED_SPARK_MASTER``, or ``local[*]``.
        s3: Whether a new session has the jars for ``s3a://``. By default it has them if ``AWS_ENDPOINT_URL`` or
            ``AWS_ACCESS_KEY_ID`` is set.
        session: Your own session, which is checked. Delta's jars are needed in it for ``format("delta")`` alone.
        conf: Settings of Spark for a new session. Packages and extensions are added to those that lakebed needs.
        catalogs: Folders of tables by the names that they have in SQL: ``{"lake": "s3://lake"}`` makes the table in
            ``s3://lake/shop/orders`` ``lake.shop.orders`` (docs/guides/sql.md).

    Raises:
        MissingPrerequisite: There is no Java, or the jars can't be fetched; or the session is of a Spark that is too old, or of
            Spark Connect; or it can't have ``catalogs``.
    """
    from pyspark.sql import SparkSession as Session

    own = session or Session.getActiveSession()
    named = conf_of({name: os.fspath(folder) for name, folder in (catalogs or {}).items()})
    if own is None:
        own = build(
            app_name, master, wants_s3(s3), {**named, **(conf or {})}
        )  # so that sessions beside it have them too
    require_usable(own)
    _register(own)
    if catalogs:
        require_names(own)
        for name, value in named.items():
            own.conf.set(name, value)
    return own


def _register(session: SparkSession) -> None:
    """Register our data sources in a session."""
    from lakebed.compaction.log_source import LogSource  # only those who use Spark wait for its import
    from lakebed.names.answers import Answers
    from lakebed.view.changes import ChangesSource

    for source in (LogSource, ChangesSource):
        session.dataSource.register(source)
    answer_with(session, Answers())


def main() -> int:
    """``python -m lakebed.session --fetch-jars``: bring the jars into Spark's cache."""
    parser = argparse.ArgumentParser(prog="python -m lakebed.session")
    parser.add_argument(
        "--fetch-jars", action="store_true", help="start a session once, with all optional jars, and stop it"
    )
    parser.parse_args()
    try:
        session = spark("lakebed-fetch-jars", "local[1]", s3=True)
    except MissingPrerequisite as error:
        print(f"lakebed: {error}", file=sys.stderr)
        return 1
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
