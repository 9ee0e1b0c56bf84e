"""Parses the root that a user gives for a table, once, so that every store and every reader uses the same place.

1. ``s3://bucket/prefix`` (also spelled ``s3a://`` or ``s3n://``, as Spark users do) is a prefix in a bucket.
2. Anything without a scheme, and ``file:`` in any number of slashes, is a local path; it becomes absolute. As in Spark,
   ``%`` stands for itself: only paths *inside* a log are percent-encoded.
3. Every other scheme is refused.

A new object store is added here, by its scheme, and in ``object_store``, which opens the client that sends its requests.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from lakebed.errors import InvalidInput, Unsupported

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):(.*)$", re.DOTALL)
_BUCKET = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{2,62}$")


@dataclass(frozen=True, slots=True)
class LocalRoot:
    """An absolute folder of this machine (or of a file system mounted on it)."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class S3Root:
    """A bucket and a prefix in it; the prefix is empty or has no slash at either end."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    @property
    def spark_root(self) -> str:
        """The root as Spark spells it."""
        return f"s3a{str(self).removeprefix('s3')}"

    def key(self, name: str) -> str:
        """The object key of a relative name."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def name(self, key: str) -> str:
        """The relative name of an object key below this root."""
        return key[len(self.prefix) + 1 :] if self.prefix else key


def parse_root(root: str | os.PathLike[str]) -> LocalRoot | S3Root:
    """The place that a root refers to. Raises InvalidInput for an empty or broken one, Unsupported for an unknown scheme."""
    text = os.fspath(root)
    if not text or "\0" in text:
        raise InvalidInput(f"the table path {text!r} is empty or holds a NUL; give a folder or s3://bucket/prefix")
    match = _SCHEME.match(text)
    if match is None or os.path.exists(text):
        return _local(text)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        if not rest.startswith("/"):
            raise InvalidInput(f"the table path {text!r} is relative; after file: it must begin with a slash")
        if rest.startswith("//") and not rest.startswith("///") and not rest.startswith("//localhost/"):
            raise InvalidInput(f"the table path {text!r} names a host; a local path is written file:///folder")
        return _local("/" + rest.removeprefix("//localhost").lstrip("/"))
    if scheme in ("s3", "s3a", "s3n"):
        bucket, _, prefix = rest.removeprefix("//").partition("/")
        if not rest.startswith("//") or not _BUCKET.match(bucket):
            raise InvalidInput(f"the table path {text!r} names no valid bucket; it is written s3://bucket/prefix")
        parts = [part for part in prefix.split("/") if part]
        if any(part in (".", "..") for part in parts):
            raise InvalidInput(f"the table path {text!r} holds . or .., which have no meaning in an object key")
        return S3Root(bucket, "/".join(parts))
    if "//" not in rest[:2]:
        return _local(text)  # a colon in a file name is no scheme
    raise Unsupported(
        f"the table path {text!r} has the scheme {scheme}://; lakebed has stores for local paths and s3://", table=text
    )


def spark_path(path: str) -> str:
    """A path as Spark spells it: Spark knows S3 as ``s3a://`` only."""
    return re.sub(r"^s3n?://", "s3a://", path)


def _local(path: str) -> LocalRoot:
    return LocalRoot(os.path.abspath(os.path.expanduser(path)))


def local_file(path: str) -> str | None:
    """The file of a ``file://`` path, None for any other path."""
    return path.removeprefix("file://") if path.startswith("file://") else None
