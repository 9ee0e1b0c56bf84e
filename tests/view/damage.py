"""Making row groups unreadable: whoever reads one that it does not need fails, or gives wrong rows."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow.parquet as pq

UNVERIFIED = {"lakebed.verify_reads": "off"}
"""For a table that is damaged on purpose."""


def keep_row_groups(part: Path, kept: Collection[int], *, columns_kept: Collection[str] = ()) -> None:
    """Overwrite the pages of all row groups but ``kept``; ``columns_kept``, footer, indexes and Bloom filters stay."""
    footer = pq.read_metadata(part)
    with part.open("r+b") as file:
        for number in set(range(footer.num_row_groups)) - set(kept):
            for column in range(footer.num_columns):
                chunk = footer.row_group(number).column(column)
                if chunk.path_in_schema in columns_kept:
                    continue
                file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
                file.write(b"\xff" * chunk.total_compressed_size)
