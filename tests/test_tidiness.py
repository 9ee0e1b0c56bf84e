"""The house is tidy: no dead code, no function longer than a screen, no line too long, no file without a use or a purpose.

Each rule has a list of what breaks it today, by name. These lists only shrink: a name that no longer breaks its rule must go too.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import lakebed
from lakebed.compaction.maintenance import Maintenance
from lakebed.listeners.event_types import EVENT_TYPES
from lakebed.table.inspect import TableInspect
from lakebed.table.maintenance import TableMaintenance

ROOT = Path(__file__).parents[1]
FUNCTION_LINES_MAX = 70
POSITIONAL_MAX = 6
LINE_MAX = 130
TERMS_MAX = 50
README_WORDS_MAX = 1_500
FILE_LINES_MAX = 500
PRIVATES_MAX = 43  # times that tests reach into an underscore of the code's: breaks that are made on purpose, mostly

LONG_FUNCTIONS: set[str] = {
    "tests/end_to_end/replicas.py fight",
}
MANY_ARGUMENTS: set[str] = set()
LONG_LINES: dict[str, int] = {}

CALLED_BY_LIBRARIES = {
    *(
        "streamReader",
        "simpleStreamReader",
        "initialOffset",
        "getDefaultReadLimit",
        "prepareForTriggerAvailableNow",
        "reportLatestOffset",
        "max_bytes",
    ),  # Spark
    "format_help",  # argparse
    *("startup", "send_400_response"),  # uvicorn
    *("seekable", "tell"),  # DuckDB, which reads files of Python
    "readinto",  # io.BufferedReader
    "_check_value",  # argparse
}
FOR_TESTS = {
    "has_option",
    "table_event",
    "TableMaintainers",
    "drain",
    "hold_back",
    "troubles",
    "KEYS",
    "list_next",
    "is_idle",
    "run_due",
    "next_due",
    "depth_to_be",
    "bytes_kept",
    "is_asleep",
    "bitmap",
    "replay",
}
"""What only tests and benchmarks use: the seams that they need."""
RUN_BY_PATH = {"benchmarks/kafka_peers", "benchmarks/peers", "tests/cluster", "tests/s3"}
"""Folders with modules that are started by a name put together when they are needed."""


@pytest.fixture(scope="module", autouse=True)
def trees_are_kept_for_these_tests_only() -> Iterator[None]:
    gc.disable()  # which would look at millions of nodes again and again
    yield
    tree.cache_clear()
    nodes.cache_clear()
    gc.enable()


@cache
def files(*suffixes: str) -> tuple[Path, ...]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = (ROOT / name for name in listed.stdout.splitlines())
    return tuple(file for file in found if file.suffix in suffixes and file.is_file() and not file.is_symlink())


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(file)))


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def in_the_package(file: Path) -> bool:
    return name_of(file).startswith("lakebed/")


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes(file) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def breaking(rule: Callable[[ast.FunctionDef | ast.AsyncFunctionDef], bool]) -> set[str]:
    return {f"{name_of(file)} {node.name}" for file in files(".py") for node in functions(file) if rule(node)}


def test_files_that_contributors_are_sent_to_are_there() -> None:
    known = [f"/{name_of(file)}" for file in files(".py")]
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in known)] == []


@pytest.mark.slow
def test_every_function_fits_a_screen() -> None:
    assert breaking(lambda node: (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX) == LONG_FUNCTIONS


def test_no_function_takes_more_than_six_arguments_by_their_place() -> None:
    def takes_many(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        by_place = [each for each in node.args.posonlyargs + node.args.args if each.arg not in ("self", "cls")]
        return len(by_place) > POSITIONAL_MAX

    assert breaking(takes_many) == MANY_ARGUMENTS


def test_no_line_is_too_long() -> None:
    long = Counter[str]()
    for file in files(".md", ".py", ".yml", ".yaml", ".sh", ".java", ".js", ".css"):
        is_code = False
        for line in file.read_text().splitlines():
            is_code ^= file.suffix == ".md" and line.lstrip().startswith("```")
            is_free = file.suffix == ".md" and (
                is_code or line.lstrip().startswith("|") or "](" in line or "://" in line
            )
            long[name_of(file)] += len(line) > LINE_MAX and not is_free
    assert {name: count for name, count in long.items() if count > LONG_LINES.get(name, 0)} == {}


def test_no_module_is_a_sack() -> None:
    sizes = {name_of(file): len(file.read_text().splitlines()) for file in files(".py") if in_the_package(file)}
    assert [name for name, lines in sizes.items() if lines > FILE_LINES_MAX] == []


def test_every_module_says_what_it_is_for() -> None:
    def needs_no_docstring(file: Path) -> bool:
        return file.name == "__init__.py" and not file.read_text().strip() and not in_the_package(file)

    silent = [
        name_of(file) for file in files(".py") if not needs_no_docstring(file) and not ast.get_docstring(tree(file))
    ]
    assert silent == []


# -- papers ----------------------------------------------------------------------------------------------------------------


def test_the_glossary_has_few_terms_and_each_once() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert [term for term, count in Counter(terms).items() if count > 1] == []
    assert len(terms) <= TERMS_MAX


def test_every_page_says_first_whom_it_is_for() -> None:
    def opening(page: Path) -> str:
        return page.read_text().split("\n\n")[1]

    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/guides").glob("*.md")]
    readers = re.compile(
        r"\bfor (those|everyone|(\w+ )?(operators|analysts|engineers|developers|contributors))\b", re.IGNORECASE
    )
    assert [name_of(page) for page in pages if not readers.search(opening(page))] == []


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS_MAX


def test_pages_say_neither_somebody_nor_anew() -> None:
    found = [
        f"{name_of(page)}: {word}"
        for page in files(".md")
        for word in re.findall(r"\b(?:somebody|anew)\b", page.read_text(), re.IGNORECASE)
    ]
    assert found == []


# -- dead code -----------------------------------------------------------------------------------------------------------


def defined(file: Path) -> Iterator[str]:
    """Names of functions, classes and their fields, and what the module itself assigns."""
    for node in nodes(file):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign) and node in tree(file).body:
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def used(file: Path) -> Iterator[str]:
    """Names that are read, imported or matched, and words of short texts, as getattr and tables of columns have them."""
    prose = {id(node.value) for node in nodes(file) if isinstance(node, ast.Expr)}
    for node in nodes(file):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                yield name
            case ast.alias(name=name):
                yield from name.split(".")
            case ast.MatchClass(kwd_attrs=names):
                yield from names
            case ast.Constant(value=str(text)) if id(node) not in prose and len(text) < 60:
                yield from re.findall(r"\w+", text)


def public() -> set[str]:
    exported = {name for name in lakebed.__all__ if not name.startswith("__")}
    kinds = [TableInspect, TableMaintenance, Maintenance, *(getattr(lakebed, name) for name in exported)]
    events = [kind for kind in vars(lakebed.events).values() if isinstance(kind, type)]
    return exported.union(*(dir(kind) for kind in [*kinds, *events, *EVENT_TYPES]))


def test_nothing_is_defined_that_nobody_uses() -> None:
    package = [file for file in files(".py") if in_the_package(file)]
    known = {name for file in package for name in used(file)} | public() | CALLED_BY_LIBRARIES | FOR_TESTS
    dead = {
        name for file in package for name in defined(file) if name not in known and not re.fullmatch("__.*__", name)
    }
    assert dead == set()


def test_seams_for_tests_are_used_by_tests() -> None:
    others = {
        name for file in files(".py") if not in_the_package(file) and file != Path(__file__) for name in used(file)
    }
    assert FOR_TESTS - others == set()


def test_every_module_is_imported_or_run_by_somebody() -> None:
    imported = set[str]()
    for file in files(".py"):
        for node in nodes(file):
            if isinstance(node, ast.Import):
                imported.update(each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    texts = "\n".join(file.read_text() for file in files(".py", ".md", ".toml", ".yml", ".yaml", ".sh", ""))

    def is_found(file: Path) -> bool:
        path = name_of(file).removesuffix(".py")
        module = path.replace("/", ".")
        return module in imported or f"-m {module}" in texts or f'{module}"' in texts or path in texts

    unused = {
        name_of(file)
        for file in files(".py")
        if not file.name.startswith("test_")
        and file.name not in ("__init__.py", "__main__.py", "conftest.py")
        and name_of(file.parent) not in RUN_BY_PATH
        and not is_found(file)
    }
    assert unused == set()


# -- tests and the inside of the code --------------------------------------------------------------------------------------


def test_tests_seldom_reach_into_what_is_private() -> None:
    """Into an object that is not their own; modules of the standard library and namedtuples name some things so too."""
    reaching = re.compile(r"(?<!self)(?<!cls)(?<!own)(?<!\bos)(?<!\bsys)\._(?!_|replace\()[a-z]\w*")
    found = Counter(
        {
            name_of(file): len(reaching.findall(file.read_text()))
            for file in files(".py")
            if name_of(file).startswith("tests/")
        }
    )
    assert found.total() <= PRIVATES_MAX, f"give the code a seam instead: {dict(+found)}"


# -- cost ------------------------------------------------------------------------------------------------------------------


def searches_of_names(node: ast.AST, is_repeated: bool = False) -> Iterator[int]:
    """Lines that look for one name among all names of a table or schema, again and again.

    Arrow makes the list of names anew each time that it is asked. So for each column that costs the square of their number.
    """
    match node:
        case ast.FunctionDef() | ast.Lambda() | ast.ClassDef() | ast.Raise():
            is_repeated = False
        case ast.For() | ast.While() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            is_repeated = True
        case ast.Compare(comparators=[ast.Attribute(attr="names" | "column_names")]) if is_repeated:
            yield node.lineno
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="names" | "column_names"), attr="count" | "index")):
            if is_repeated:
                yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from searches_of_names(child, is_repeated)


def test_no_loop_searches_the_names_of_all_columns() -> None:
    package = [file for file in files(".py") if in_the_package(file)]
    assert {f"{name_of(file)} {line}" for file in package for line in searches_of_names(tree(file))} == set()
