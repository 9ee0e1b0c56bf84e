"""``lakebed docs`` and ``lakebed example``: print the documentation and the examples that the package contains."""

from __future__ import annotations

import argparse
from pathlib import Path

from lakebed import manual
from lakebed.cli import exit_codes
from lakebed.errors import InvalidInput
from lakebed.settings import suggest


def docs(options: argparse.Namespace) -> int:
    if options.page is None:
        _list(manual.pages())
        return exit_codes.OK
    name, _, section = options.page.partition("#")
    name = name.removeprefix("docs/").removesuffix(".md")
    print(manual.text(_chosen(name, manual.pages(), "page"), section), end="")
    return exit_codes.OK


def example(options: argparse.Namespace) -> int:
    if options.name is None:
        _list(manual.examples())
        return exit_codes.OK
    print(manual.text(_chosen(options.name, manual.examples(), "example")), end="")
    return exit_codes.OK


def _list(files: dict[str, Path]) -> None:
    width = max(map(len, files), default=0)
    for name, path in files.items():
        print(f"{name:<{width}}  {manual.title(path)}")


def _chosen(name: str, files: dict[str, Path], kind: str) -> Path:
    if name not in files:
        raise InvalidInput(f"there is no {kind} {name!r}{suggest(name, files) or '; there are ' + ', '.join(files)}")
    return files[name]
