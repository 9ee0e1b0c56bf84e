"""Compile the C files of this folder into the shared library beside them.

    python -m lakebed.decode.native.build

The compiler is ``$CC``, or else ``cc``, ``gcc`` or ``clang``, or else the one in the package ``ziglang``. Also run by setup.py,
where lakebed is not installed yet: so this module imports the standard library alone.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "lakebed_native.so"
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror=vla")


class NotBuilt(RuntimeError):
    """There is no compiler, or it failed; the text says which."""


def compiler() -> list[str]:
    """The command of a C compiler. Raises ``NotBuilt`` if there is none."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NotBuilt("no C compiler: install gcc or clang, or `pip install ziglang`, or set CC")


def _is_current() -> bool:
    """Whether the library is there and no source is newer."""
    sources = [*FOLDER.glob("*.[ch]"), Path(__file__)]
    return LIBRARY.exists() and LIBRARY.stat().st_mtime >= max(source.stat().st_mtime for source in sources)


def build(target: Path = LIBRARY, flags: tuple[str, ...] = FLAGS) -> None:
    """Compile into ``target``, which is replaced at once, so that others may be loading it. Raises ``NotBuilt``."""
    made = target.with_name(f"{target.name}.{os.getpid()}")
    command = [*compiler(), *flags, *map(str, sorted(FOLDER.glob("*.c"))), "-o", str(made), "-lm"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise NotBuilt(f"{shlex.join(command)} failed:\n{ran.stderr.strip()}")
        os.replace(made, target)
    except OSError as error:
        raise NotBuilt(f"{shlex.join(command)}: {error}") from error
    finally:
        made.unlink(missing_ok=True)


def build_if_needed() -> None:
    """Compile if a source is newer than the library. Raises ``NotBuilt``."""
    if not _is_current():
        build()


def main() -> int:
    try:
        build_if_needed()
    except NotBuilt as error:
        print(f"native code is not built, so ingest is slower: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
