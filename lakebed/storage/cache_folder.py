"""Where this user's processes keep on local disk what can be rebuilt from tables: key indexes, materialized parts."""

from __future__ import annotations

import os
from pathlib import Path


def base_folder() -> Path:
    """``LAKEBED_CACHE_DIR``, or ``lakebed`` in the user's cache folder."""
    base: str = os.environ.get("LAKEBED_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lakebed"
    )
    return Path(base)


def cache_folder() -> Path:
    """One folder for all tables."""
    return base_folder() / "tables"


def volatile_folder() -> Path:
    """The materialized parts of this host, a folder a table."""
    return cache_folder() / "volatile"
