"""The web page beside a running pipeline: of its table, or of all tables of its database, with what only this process knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakebed import events
from lakebed.errors import MissingPrerequisite
from lakebed.pipeline.file.settings import AnyPipeline, Pipeline
from lakebed.ui.live import Live
from lakebed.ui.server import PageServer

LOOK_SECONDS = 2.0
_WHERE = "page.host and page.port of the pipeline file"


@contextmanager
def served_page(pipeline: AnyPipeline) -> Iterator[str | None]:
    """Serves the page until the block ends: its address, or None if the file turns it off.

    A port that is taken is no reason not to ingest: then it is any free one. Raises MissingPrerequisite if there is none.
    """
    page = pipeline.page
    if page.port is None:
        yield None
        return
    live = Live()

    def server_at(port: int) -> PageServer:
        paths, databases = ([pipeline.path], []) if isinstance(pipeline, Pipeline) else ([], [pipeline.path])
        return PageServer(paths, page.host, port, LOOK_SECONDS, live, databases=databases, where=_WHERE)

    try:
        server = server_at(page.port)
    except MissingPrerequisite:
        server = server_at(0)
    stop = events.listen(live)
    server.start()
    try:
        yield server.url
    finally:
        stop()
        server.close()
