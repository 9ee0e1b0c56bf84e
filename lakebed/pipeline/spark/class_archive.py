"""An archive of the classes that Java loads when it starts (class data sharing): made by the first run, read by later ones.

1. Where there is none yet, Java lists the classes that it loads.
2. When the run has committed a batch, a process of the lowest priority makes the archive from this list. It ends with the run.
3. The archive is written beside its place and then renamed: nobody reads half of one, and of several processes the last one wins.

The name of the file stands for the Java, its options and the jars, so after an upgrade another one is made. Java itself goes
without an archive that does not fit. Where the cache folder can't be written, nothing is made.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lakebed.storage.cache_folder import base_folder

ARCHIVES_MAX = 2
MAKE_AFTER_SECONDS = 20.0
"""The first batches have the processor for themselves."""
_LEFT_BEHIND_SECONDS = 86_400.0


@dataclass(slots=True)
class ClassArchive:
    """The archive of one kind of start. ``classes``: the list that Java writes, if there is no archive yet."""

    file: Path
    classes: Path | None
    _over: threading.Event = field(default_factory=threading.Event)
    _making: threading.Thread | None = None

    @property
    def option(self) -> str:
        """The option of Java that reads the archive, or has the classes listed."""
        if self.classes is None:
            return f"-XX:SharedArchiveFile={self.file}"
        return f"-XX:DumpLoadedClassList={self.classes}"

    def make(self, java: Sequence[str], class_path: str) -> None:
        """Make the archive in the background, if there is none, with this command and these options of Java."""
        if self.classes is not None and self._making is None:
            self._making = threading.Thread(
                target=self._make, args=(java, class_path), name="lakebed-class-archive", daemon=True
            )
            self._making.start()

    def discard(self) -> None:
        """Remove the archive: Java did not start with it."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """End the process that makes the archive, and remove the list."""
        self._over.set()
        if self._making is not None:
            self._making.join()
        if self.classes is not None:
            with suppress(OSError):
                self.classes.unlink(missing_ok=True)

    def _make(self, java: Sequence[str], class_path: str) -> None:
        assert self.classes is not None
        if self._over.wait(MAKE_AFTER_SECONDS):
            return
        with suppress(OSError), tempfile.TemporaryDirectory(dir=self.file.parent, suffix=".part") as folder:
            listed, made = Path(folder, "classes"), Path(folder, "archive")
            listed.write_bytes(
                self.classes.read_bytes().rpartition(b"\n")[0] + b"\n"
            )  # Java still writes its last line
            options = [
                "-Xshare:dump",
                f"-XX:SharedClassListFile={listed}",
                f"-XX:SharedArchiveFile={made}",
                "-Xlog:disable",
            ]
            process = subprocess.Popen(
                ["nice", "-n", "19", *java, *options, "-cp", class_path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            while process.poll() is None:
                if self._over.wait(0.2):
                    process.kill()
            if process.wait() == 0 and made.stat().st_size:
                os.replace(made, self.file)
        with suppress(OSError):
            _tidy(self.file.parent)


def class_archive(identity: Sequence[object]) -> ClassArchive | None:
    """The archive of the starts that have this identity; None if there is none and none can be written."""
    name = hashlib.blake2b(repr(identity).encode(), digest_size=12).hexdigest()
    folder = base_folder() / "java"
    file = folder / f"{name}.jsa"
    try:
        if file.exists():
            return ClassArchive(file, None)
        folder.mkdir(parents=True, exist_ok=True)
        handle, classes = tempfile.mkstemp(dir=folder, suffix=".classes")
        os.close(handle)
    except OSError:
        return None
    return ClassArchive(file, Path(classes))


def _tidy(folder: Path) -> None:
    """Keep the newest archives, and remove lists that a process left behind when it was killed."""
    for file in sorted(folder.glob("*.jsa"), key=lambda file: file.stat().st_mtime)[:-ARCHIVES_MAX]:
        file.unlink()
    for file in folder.glob("*.classes"):
        if time.time() - file.stat().st_mtime > _LEFT_BEHIND_SECONDS:
            file.unlink()
