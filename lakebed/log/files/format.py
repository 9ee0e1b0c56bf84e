"""The version of the format that a table is written in: one number, a property of the table, checked when a log is loaded.

A change of the content of the log or of files, or of its interpretation, raises the number. This version of
lakebed reads its own format and no other: it refuses a table of another format and says what to do. Tables that are not
lakebed's have no such number.
"""

from __future__ import annotations

from lakebed.errors import Unsupported
from lakebed.schema.metadata import Metadata, Protocol
from lakebed.settings import FORMAT_PROPERTY
from lakebed.version import __version__

GATE_FEATURE = "lakebed"
"""The writer feature of lakebed's tables: other programs do not support it, so they do not write."""
FORMAT = 3
_FIRST = 1  # of tables from before the number was written


def require_format(protocol: Protocol, metadata: Metadata, table: str) -> None:
    """Raises Unsupported for a table of lakebed's in another format than this version's."""
    if GATE_FEATURE not in protocol.writer_features:
        return
    text = metadata.configuration.get(FORMAT_PROPERTY, str(_FIRST))
    if text == str(FORMAT):
        return
    facts = (
        f"the table at {table} is in format {text} of lakebed, and lakebed {__version__} reads format {FORMAT} alone"
    )
    advice = "use the version of lakebed that wrote it, or a later one"
    if text.isdecimal() and int(text) < FORMAT:
        advice = (
            f"write it again with lakebed {__version__}, into a new table, from its source or from rows that the lakebed which "
            "wrote it exports"
        )
    raise Unsupported(f"{facts}; {advice}", table=table)
