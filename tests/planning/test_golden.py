"""What the planner says of small tables, as the files in ``testdata`` have it (``tests.planning.golden``).

``pytest tests/planning --rewrite-golden`` writes what it says now; the difference is to be read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.planning.golden import FOLDER, Case, answered, cases, text_of

FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{file.stem}: {case.title}") for file in FILES for case in cases(file)]
)
def test_the_planner_says_of_a_table_what_the_file_expects(case: Case, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite-golden"):
        pytest.skip("the files are written anew")
    assert text_of([answered(case)]) == text_of([case])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_written_as_it_is_read(file: Path, request: pytest.FixtureRequest) -> None:
    found = cases(file)
    if request.config.getoption("--rewrite-golden"):
        file.write_text(text_of([answered(case) for case in found]))
    else:
        assert text_of(found) == file.read_text()


def test_a_case_that_expects_something_else_fails() -> None:
    case = cases(FOLDER / "merge.txt")[0]
    define, asked = case.blocks
    other = replace(case, blocks=(define, replace(asked, expected=("depth 7, backlog 0MB",))))
    assert text_of([answered(other)]) != text_of([other])
