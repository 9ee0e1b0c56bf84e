"""Names that a user's column may have and that the code uses too: its own words, and what engines call their virtual columns."""

from __future__ import annotations

import ast
import random
import re
from functools import cache
from pathlib import Path

import lakebed
from tests.table.values import MAPPED_NAMES, ODD_NAMES

VIRTUAL = [
    # DuckDB
    "file_row_number", "file_index", "filename", "rowid", "oid", "ordinality", "generate_series", "column0", "current_date",
    # Spark
    "_metadata", "metadata", "file_path", "file_name", "row_index", "_corrupt_record", "input_file_name",
    # Delta
    "_change_type", "_commit_version", "_commit_timestamp", "_row_id", "_row_commit_version", "stats", "add", "path",
]  # fmt: skip
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@cache
def words_of_the_code() -> tuple[str, ...]:
    """Every word of every text in lakebed's own modules that can be an identifier: all aliases of its queries are among them."""
    words: set[str] = set()
    for module in sorted(Path(lakebed.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 2000:
                words.update(_WORD.findall(node.value))
    return tuple(sorted(words))


def hostile_names(rng: random.Random, count: int) -> list[str]:
    """Different names, also when case does not count."""
    names: dict[str, str] = {}
    while len(names) < count:
        kinds = [VIRTUAL, VIRTUAL, ODD_NAMES, MAPPED_NAMES, words_of_the_code(), words_of_the_code()]
        name = rng.choice(rng.choice(kinds))
        name = rng.choice([name, name, name.upper(), name.title(), name.swapcase()])
        names.setdefault(name.casefold(), name)
    return list(names.values())
