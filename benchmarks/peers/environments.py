"""A virtual environment for each peer, below ``.build/peers``: made once, complete or made anew."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.peers.systems import PACKAGES

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / ".build" / "peers"


def python_of(environment: str | None) -> str:
    """The Python of an environment, which is made if need be (a minute or two). Raises SystemExit."""
    if environment is None:
        return sys.executable
    packages = PACKAGES[environment]
    folder = FOLDER / environment / "venv"
    python = folder / "bin" / "python"
    done = folder / f".installed-{hashlib.sha256(repr(packages).encode()).hexdigest()[:12]}"
    if not done.exists():
        print(f"bench-peers: installing {', '.join(packages)} into {folder.relative_to(REPOSITORY)}", flush=True)
        venv.create(folder, clear=not python.exists(), with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"bench-peers: {' '.join(packages)} could not be installed; see above")
        done.touch()
    return str(python)
