"""Names of fields and of the columns that they belong to. Delta's names are the same in any case, and so are they here.

"In any case" is what Spark and Delta mean by it: equal in lower case, by Unicode's rules and those of no language.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def by_case(columns: Iterable[str], given: Collection[str]) -> dict[str, str]:
    """The column of each given name that has one: the column of this name; else, if no given name is the column's own, the one
    whose name differs by case alone. Of several such names the first has it.
    """
    names = {name.lower(): name for name in columns}
    found = {name: name for name in given if names.get(name.lower()) == name}
    taken = set(found)
    for name in given:
        column = names.get(name.lower())
        if column is not None and column not in taken:
            found[name] = column
            taken.add(column)
    return found
