"""Where the events of a listener go, as its entry in the log says it; and where secrets are.

The log never has a secret, since everybody who reads the tables can read the log. It has the name of an environment variable of
the processes that deliver. The name begins with ``LAKEBED_SECRET_``, so that nobody who may add a listener can make a process
send its other variables somewhere. If NAME is not set but NAME_FILE is, the file there has the secret, as in containers.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.settings import suggest

_SECRET = re.compile(r"LAKEBED_SECRET_[A-Z0-9_]+")
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_URL_LENGTH_MAX = 2000
_KAFKA_CONFIG = frozenset({
    "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.pem", "ssl.certificate.pem",
    "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm", "client.id", "compression.type",
})  # fmt: skip
"""Settings of librdkafka that a listener may have. Others reach files of the host, or load code."""
_SECRET_CONFIG = frozenset({"sasl.password", "ssl.key.pem", "ssl.key.password"})
_REST_CONFIG = frozenset({"warehouse", "token", "credential", "scope", "oauth2-server-uri", "replace"})
_REST_SECRETS = frozenset({"token", "credential"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Each event is a POST."""

    url: str
    secret: str = ""  # the variable with the secret that signs; without one, requests are not signed

    def __post_init__(self) -> None:
        parts = _parts_of(self.url, "sign with a secret instead")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"the url {self.url!r} must begin with http:// or https:// and a host")
        if self.secret:
            _require_variable(self.secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopic:
    """Each event is a record, with the table's name as key."""

    servers: str  # host:port of brokers, separated by commas
    topic: str
    # of librdkafka (KAFKA_CONFIG), where ``${LAKEBED_SECRET_…}`` is a variable
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.servers or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", self.topic):
            raise InvalidInput(
                f"a listener of Kafka needs brokers and a topic; it has {self.servers!r}, {self.topic!r}"
            )
        _check_config(self.config, _KAFKA_CONFIG, _SECRET_CONFIG)

    def resolved(self) -> dict[str, str]:
        """The configuration with the values of variables. Raises MissingPrerequisite."""
        return _resolved(self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """A catalog of other programs, in which each table has an entry that follows it."""

    url: (
        str  # thrift://host:port (a metastore of Hive), glue://region (AWS), or http(s)://… (a REST catalog of Iceberg)
    )
    format: str = ""  # as what tables are entered: delta or iceberg; by default delta, but not in a REST catalog
    database: str = (
        "{schema}"  # in which database of the catalog, where ``{schema}`` is the first part of a table's name
    )
    # of a REST catalog, where ``${LAKEBED_SECRET_…}`` is a variable
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = _parts_of(self.url, "set credential instead")
        is_known = self.scheme in ("thrift", "glue", "http", "https") and "://" in self.url
        if not is_known or not (parts.hostname or self.scheme == "glue"):
            raise InvalidInput(
                f"{self.url!r} is no catalog: give thrift://HOST:PORT of a metastore of Hive, glue://REGION, or the url of a "
                "REST catalog of Iceberg"
            )
        allowed = ("iceberg",) if self.is_rest else ("delta", "iceberg")
        object.__setattr__(self, "format", self.format or allowed[0])
        if self.format not in allowed:
            raise InvalidInput(f"tables are entered there as {' or '.join(allowed)}, not as {self.format!r}")
        if not self.database.replace("{schema}", "s").replace("_", "a").isalnum():
            raise InvalidInput(f"{self.database!r} can't be a database: use letters, digits, _ and {{schema}}")
        _check_config(self.config, _REST_CONFIG if self.is_rest else frozenset(), _REST_SECRETS)

    @property
    def scheme(self) -> str:
        """Of the url: it says what the catalog is."""
        return self.url.partition("://")[0]

    @property
    def is_rest(self) -> bool:
        """Whether it is a REST catalog of Iceberg."""
        return self.scheme in ("http", "https")

    @property
    def is_iceberg(self) -> bool:
        """Whether tables are entered as Iceberg's."""
        return self.format == "iceberg"

    def resolved(self) -> dict[str, str]:
        """The configuration with the values of variables. Raises MissingPrerequisite."""
        return _resolved(self.config)


Target: TypeAlias = Webhook | KafkaTopic | Catalog


def _parts_of(url: str, instead: str) -> urllib.parse.SplitResult:
    """The parts of a url that has nothing secret. Raises InvalidInput; ``instead``: how else one shows who one is."""
    try:
        parts = urllib.parse.urlsplit(url)
        parts.port  # noqa: B018
    except ValueError as error:
        raise InvalidInput(f"the url {url!r} can't be read: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(f"the url of a listener must not have a user or a password; {instead}")
    if len(url) > _URL_LENGTH_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidInput(f"the url {url[:80]!r} is too long, or has characters that no url has")
    return parts


def _check_config(config: Mapping[str, str], allowed: frozenset[str], secrets: frozenset[str]) -> None:
    for name, value in config.items():
        if name not in allowed:
            raise InvalidInput(f"{name!r} can't be set for a listener{suggest(name, allowed)}")
        for reference in _REFERENCE.findall(value):
            _require_variable(reference)
        if name in secrets and not _REFERENCE.fullmatch(value):
            raise InvalidInput(f"{name} is a secret, and the log must not have it: set it to ${{LAKEBED_SECRET_…}}")


def _resolved(config: Mapping[str, str]) -> dict[str, str]:
    return {name: _REFERENCE.sub(lambda match: secret_of(match[1]), value) for name, value in config.items()}


def secret_of(variable: str) -> str:
    """The secret in a variable, or in the file that VARIABLE_FILE has. Raises MissingPrerequisite."""
    if (value := os.environ.get(variable)) is not None:
        return value
    if (file := os.environ.get(f"{variable}_FILE")) is not None:
        try:
            return Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise MissingPrerequisite(f"{variable}_FILE is {file!r}, which can't be read: {error}") from None
    raise MissingPrerequisite(f"set {variable} or {variable}_FILE where events are delivered: a listener needs it")


def _require_variable(name: str) -> None:
    if not _SECRET.fullmatch(name):
        raise InvalidInput(
            f"{name[:20]!r} can't be the variable of a secret: its name must begin with LAKEBED_SECRET_, and the secret itself "
            "must not be here"
        )
