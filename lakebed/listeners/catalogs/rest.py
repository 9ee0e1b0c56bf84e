"""Entries in a REST catalog of Iceberg: a table is registered with its newest metadata, and again when there is newer.

Such a catalog has no parameters of an entry, but the metadata says all that they would: where the table is, its id, and as of
which version the metadata is.

Registering a name again (``overwrite``) is newer than many catalogs. One that does not know it can't follow without the setting
``replace``: then the entry is removed and made again. For a moment there is none, and what was granted on it may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.iceberg.metadata import FOLDER
from lakebed.listeners.catalogs.entry import Entry, Name, Parameters, Unavailable, is_newer, marks_of, require_ours
from lakebed.listeners.targets import Catalog

_TIMEOUT_SECONDS = 10.0


class RestClient:
    """A REST catalog, by PyIceberg."""

    def __init__(self, target: Catalog) -> None:
        """Ask for the catalog's configuration. Raises MissingPrerequisite, Unavailable."""
        try:
            import pyiceberg.exceptions  # only those who use a REST catalog need its client
            import requests
            from pyiceberg.catalog.rest import RestCatalog
        except ModuleNotFoundError as error:
            raise MissingPrerequisite(
                "a REST catalog needs PyIceberg's client: pip install 'lakebed[catalogs]'"
            ) from error

        class Bounded(RestCatalog):
            def _create_session(self) -> requests.Session:
                session = super()._create_session()
                session.request = partial(session.request, timeout=_TIMEOUT_SECONDS)  # type: ignore[method-assign]
                return session

        self._errors = pyiceberg.exceptions
        self._no_answer = (
            requests.RequestException,
            OSError,
            self._errors.ServerError,
            self._errors.ServiceUnavailableError,
            self._errors.TooManyRequestsError,
            self._errors.UnauthorizedError,
            self._errors.AuthorizationExpiredError,
            self._errors.OAuthError,
        )
        self._url = target.url
        config = target.resolved()
        self._replaces = config.pop("replace", "no") == "yes"
        try:
            self._catalog = Bounded("lakebed", uri=target.url, **config)
        except Exception as error:  # of the library, of any kind
            raise Unavailable(f"{type(error).__name__}: {error}") from error

    def ensure(self, name: Name, entry: Entry) -> bool:
        """See ``CatalogClient``."""
        at = (name.database, name.table)
        with self._answering(name):
            try:
                before = self._catalog.load_table(at)
            except self._errors.NoSuchTableError:
                self._catalog.create_namespace_if_not_exists(at[:-1])
                self._register(at, name, entry)
                return True
            require_ours(_marks(before), name, entry)
            if before.metadata_location == entry.metadata_location or is_newer(_marks(before), entry):
                return False
            self._register_again(at, name, entry)
        return True

    def drop(self, name: Name, is_ours: Callable[[Parameters], bool]) -> None:
        """See ``CatalogClient``."""
        at = (name.database, name.table)
        with self._answering(name), suppress(self._errors.NoSuchTableError):
            if is_ours(_marks(self._catalog.load_table(at))):
                self._catalog.drop_table(at)

    def close(self) -> None:
        """Let go of connections."""
        self._catalog.close()

    def _register(self, at: tuple[str, str], name: Name, entry: Entry) -> None:
        try:
            self._catalog.register_table(at, entry.metadata_location)
        except self._errors.TableAlreadyExistsError as error:
            raise InvalidInput(
                f"{self._url} has {name} and can't load it, as where the metadata that it names was deleted meanwhile; whose "
                "it is can't be told: drop it there without its files (no purge), then it is registered again"
            ) from error

    def _register_again(self, at: tuple[str, str], name: Name, entry: Entry) -> None:
        said = ""
        try:
            after = self._catalog.register_table(at, entry.metadata_location, overwrite=True)
            if after.metadata_location == entry.metadata_location:
                return
        except self._no_answer:
            raise
        except Exception as error:  # catalogs have many ways to say that they do not know it
            said = f" ({type(error).__name__})"
        if not self._replaces:
            raise InvalidInput(
                f"{self._url} does not let {name} be registered again{said}, so its readers stay at an earlier version; "
                "--config replace=yes removes the entry each time and makes it again"
            )
        self._catalog.drop_table(at)
        self._catalog.register_table(at, entry.metadata_location)

    @contextmanager
    def _answering(self, name: Name) -> Iterator[None]:
        """Raises Unavailable if the catalog does not answer, or nobody, and InvalidInput for what it says of one table."""
        try:
            yield
        except self._no_answer as error:
            raise Unavailable(str(error) or type(error).__name__) from error
        except InvalidInput:
            raise
        except Exception as error:  # of the library, of any kind
            raise InvalidInput(f"{self._url} refuses {name}: {type(error).__name__}: {error}") from error


def _marks(table: Any) -> dict[str, str]:
    """What the parameters of an entry would be, by its metadata; none if that is not lakebed's."""
    location, metadata = str(table.metadata.location), table.metadata
    if not location.endswith(f"/{FOLDER}"):
        return {}
    version = (metadata.current_snapshot_id or 0) - 1  # ids of snapshots are versions + 1
    return marks_of(location.removesuffix(f"/{FOLDER}"), str(metadata.table_uuid), version)
