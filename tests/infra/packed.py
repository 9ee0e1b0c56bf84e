"""Python, lakebed and what it needs, packed into one archive, as conda-pack does: for machines that have none of them.

Spark itself is left out, since it has its own Python code where it is installed.
"""

from __future__ import annotations

import os
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.infra.downloads import lakebed_wheel

_ELSEWHERE = frozenset({"pyspark", "delta-spark"})


def packed_environment(folder: Path, extras: frozenset[str] = frozenset({"s3"})) -> Path:
    """An archive whose root is an environment, with ``bin/python3``. It runs where ``LD_LIBRARY_PATH`` names its ``lib``."""
    home = Path(sys.base_prefix)
    library = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    target = folder / "environment.tar.gz"  # of a .tar Spark does not keep what may be executed
    with tarfile.open(target, "w:gz", dereference=True, compresslevel=1) as archive:
        archive.add(Path(os.path.realpath(sys.executable)), "bin/python3")
        for shared in (home / "lib").glob("libpython*"):
            archive.add(shared, f"lib/{shared.name}")
        archive.add(home / library, str(library), filter=_of_python)
        for name in sorted(_needed("lakebed", extras) - _ELSEWHERE):
            for file in metadata.distribution(name).files or ():
                if ".." not in file.parts and Path(str(file.locate())).is_file():
                    archive.add(str(file.locate()), f"{library}/site-packages/{file}")
        with zipfile.ZipFile(lakebed_wheel()) as wheel:
            wheel.extractall(folder / "lakebed-wheel")
        for part in (folder / "lakebed-wheel").iterdir():
            archive.add(part, f"{library}/site-packages/{part.name}")
    return target


def _of_python(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = ("site-packages", "__pycache__", "test", "config-")
    return None if any(part.startswith(left_out) for part in Path(member.name).parts) else member


def _needed(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """The distributions that one needs, without itself."""
    found: set[str] = set()
    for text in metadata.requires(name) or ():
        wanted = Requirement(text)
        applies = [wanted.marker is None or wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)]
        if any(applies) and wanted.name not in _ELSEWHERE:
            found |= {wanted.name} | _needed(wanted.name, frozenset(wanted.extras))
    return found
