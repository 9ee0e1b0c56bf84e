"""How much there is to learn: statements, names, imports between rooms, files, words and commands, counted from the sources.

    python -m benchmarks.house [--beside FOLDER]

A room is a folder of ``lakebed``, or a file right in it. An import counts once for each file and name that it takes from another
room. ``--beside`` counts the sources of another version too.
"""

from __future__ import annotations

import argparse
import ast
import math
from collections.abc import Iterator
from pathlib import Path

from benchmarks.workload import table as print_table

HERE = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="the sources of another version")
    args = parser.parse_args()
    versions = [counted(folder) for folder in (args.beside, HERE) if folder is not None]
    rows = [
        [
            name,
            *(one[name] for one in versions),
            *([versions[1][name] / versions[0][name] if versions[0][name] else math.nan] if args.beside else []),
        ]
        for name in versions[0]
    ]
    columns = ["", *(["other"] if args.beside else []), "this", *(["ratio"] if args.beside else [])]
    print_table("The sources, counted", columns, rows)


def counted(folder: Path) -> dict[str, float]:
    """The counts of one version."""
    files = sorted((folder / "lakebed").rglob("*.py"))
    trees = {path.relative_to(folder / "lakebed"): ast.parse(path.read_text()) for path in files}
    tests = sorted((folder / "tests").rglob("*.py"))
    papers = [folder / "README.md", folder / "CONTRIBUTING.md", folder / "CHANGELOG.md", *folder.glob("docs/**/*.md")]
    return {
        "files": len(trees),
        "files over 500 lines": sum(len(path.read_text().splitlines()) > 500 for path in files),
        "folders of over 20 files": sum(
            len(list(one.glob("*.py"))) > 20 for one in (folder / "lakebed").rglob("*") if one.is_dir()
        ),
        "statements": sum(isinstance(node, ast.stmt) for tree in trees.values() for node in ast.walk(tree)),
        "classes": sum(isinstance(node, ast.ClassDef) for tree in trees.values() for node in ast.walk(tree)),
        "public names": sum(len(list(_public_names(tree))) for tree in trees.values()),
        "names imported across rooms": sum(_imported(path, tree) for path, tree in trees.items()),
        "`fmt: skip`": sum(path.read_text().count("# fmt: skip") for path in files),
        "lines of tests": sum(len(path.read_text().splitlines()) for path in tests),
        "words of papers": sum(len(path.read_text().split()) for path in papers if path.exists()),
        "words of the README": len((folder / "README.md").read_text().split()),
    }


def _public_names(tree: ast.Module) -> Iterator[str]:
    """What another file may take from this one, and the public members of its public classes."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        public = [name for name in names if not name.startswith("_")]
        yield from public
        if isinstance(node, ast.ClassDef) and public:
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
                    yield member.name


def _imported(path: Path, tree: ast.Module) -> int:
    """How many names a file takes from other rooms."""
    room = path.parts[0].removesuffix(".py")
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lakebed":
            parts = str(node.module).split(".")
            names |= {
                (node.module, one.name) for one in node.names if (parts[1] if len(parts) > 1 else one.name) != room
            }
    return len(names)


if __name__ == "__main__":
    main()
