"""The public surface: ``create``, ``open`` and ``convert`` make a ``Table``. The rooms below do the work."""

from lakebed.table.internals import Internals
from lakebed.table.table import Table, convert, create, internals_of, open

__all__ = ["Internals", "Table", "convert", "create", "internals_of", "open"]
