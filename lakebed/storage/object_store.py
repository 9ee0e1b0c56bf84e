"""Opens the client of an object store, for the log and for parts; whoever has no object store needs no client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.errors import MissingPrerequisite
from lakebed.storage.roots import S3Root, parse_root

if TYPE_CHECKING:
    from lakebed.storage.s3.objects import S3Objects


def open_objects(place: S3Root) -> S3Objects:
    """The objects below a root in an object store. Raises MissingPrerequisite without the store's client."""
    try:
        from lakebed.storage.s3.objects import S3Objects  # only those who use S3 need boto3
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"{place} needs boto3: pip install 'lakebed[s3]'") from error
    return S3Objects(place)


def require_answer(path: str, patience_seconds: float) -> None:
    """Raises StoreUnavailable if the object store of a path does not answer. This process waits no longer for one from now on."""
    place = parse_root(path)
    if isinstance(place, S3Root):
        objects = open_objects(place)
        from lakebed.storage.s3.client import be_impatient

        be_impatient(patience_seconds)
        objects.require_answer()
