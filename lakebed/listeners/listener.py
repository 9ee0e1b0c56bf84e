"""What a listener is: where events go, of which tables, and of which kinds. As values, and as an entry of a log.

An entry never has a secret, since everybody who reads the tables can read the log. It has the name of an environment variable of
the processes that deliver. The name begins with ``LAKEBED_SECRET_``, so that nobody who may add a listener can make a process
send its other variables somewhere. If NAME is not set but NAME_FILE is, the file there has the secret, as in containers.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias, assert_never

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.listeners.event_types import KINDS, TableEvent
from lakebed.settings import suggest

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SECRET = re.compile(r"LAKEBED_SECRET_[A-Z0-9_]+")
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_URL_LENGTH_MAX = 2000
KAFKA_CONFIG = frozenset({
    "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.pem", "ssl.certificate.pem",
    "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm", "client.id", "compression.type",
})  # fmt: skip
"""Settings of librdkafka that a listener may have. Others reach files of the host, or load code."""
_SECRET_CONFIG = frozenset({"sasl.password", "ssl.key.pem", "ssl.key.password"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Each event is a POST to ``url``, signed with the secret in the variable ``secret``; "" does not sign."""

    url: str
    secret: str = ""

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidInput(f"the url {self.url!r} can't be read: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidInput(f"the url {self.url!r} must begin with http:// or https:// and a host")
        if parts.username is not None or parts.password is not None:
            raise InvalidInput("the url of a listener must not have a user or a password; sign with a secret instead")
        if len(self.url) > _URL_LENGTH_MAX or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise InvalidInput(f"the url {self.url[:80]!r} is too long, or has characters that no url has")
        if self.secret:
            _require_variable(self.secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopic:
    """Each event is a record of ``topic``, with the table's name as key. ``servers``: host:port of brokers, with commas;
    ``config``: of librdkafka (KAFKA_CONFIG), where ``${LAKEBED_SECRET_…}`` is a variable."""

    servers: str
    topic: str
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.servers or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", self.topic):
            raise InvalidInput(
                f"a listener of Kafka needs brokers and a topic; it has {self.servers!r}, {self.topic!r}"
            )
        for name, value in self.config.items():
            if name not in KAFKA_CONFIG:
                raise InvalidInput(f"{name!r} can't be set for a listener{suggest(name, KAFKA_CONFIG)}")
            for reference in _REFERENCE.findall(value):
                _require_variable(reference)
            if name in _SECRET_CONFIG and not _REFERENCE.fullmatch(value):
                raise InvalidInput(f"{name} is a secret, and the log must not have it: set it to ${{LAKEBED_SECRET_…}}")

    def resolved(self) -> dict[str, str]:
        """The configuration with the values of variables. Raises MissingPrerequisite."""
        return {name: _REFERENCE.sub(lambda match: secret_of(match[1]), value) for name, value in self.config.items()}


Target: TypeAlias = Webhook | KafkaTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Of which ``tables``, by patterns of names with ``*`` and ``?``, and of which ``kinds`` events are wanted; no kind: all."""

    tables: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.tables:
            raise InvalidInput("events of no table are wanted; '*' is all tables")
        for kind in self.kinds:
            if kind not in KINDS:
                raise InvalidInput(f"there are no events {kind!r}{suggest(kind, KINDS)}")

    def wants_table(self, name: str) -> bool:
        """Whether events of this table are wanted."""
        return any(fnmatchcase(name, pattern) for pattern in self.tables)

    def wants(self, event: TableEvent) -> bool:
        """Whether this event is wanted. ``resync`` and ``dropped`` always are: without them something is lost in silence."""
        return not self.kinds or event.kind in (*self.kinds, "resync", "dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener(Wanted):
    """Where events are sent, and which."""

    name: str
    target: Target

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(f"{self.name!r} can't be the name of a listener; use a-z, 0-9, - and _, 64 at most")
        Wanted.__post_init__(self)

    def to_json(self) -> dict[str, Any]:
        """As the log has it; without the name."""
        match self.target:
            case Webhook(url=url, secret=secret):
                target: dict[str, Any] = {"kind": "webhook", "url": url, "secret": secret}
            case KafkaTopic(servers=servers, topic=topic, config=config):
                target = {"kind": "kafka", "servers": servers, "topic": topic, "config": dict(config)}
            case _:
                assert_never(self.target)
        return {**target, "tables": list(self.tables), "kinds": list(self.kinds)}

    @staticmethod
    def of_json(name: str, value: Mapping[str, Any]) -> Listener:
        """The inverse of ``to_json``. Raises InvalidInput."""
        try:
            kind = value["kind"]
            if kind == "webhook":
                target: Target = Webhook(url=_text(value["url"]), secret=_text(value.get("secret", "")))
            elif kind == "kafka":
                config = {_text(key): _text(each) for key, each in value.get("config", {}).items()}
                target = KafkaTopic(servers=_text(value["servers"]), topic=_text(value["topic"]), config=config)
            else:
                raise InvalidInput(f"a listener is of the kind webhook or kafka, not {kind!r}")
            tables, kinds = value.get("tables", ["*"]), value.get("kinds", [])
            return Listener(name=name, target=target, tables=tuple(map(_text, tables)), kinds=tuple(map(_text, kinds)))
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"the listener {name} can't be read: {error!r} is missing or of the wrong type"
            ) from None


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


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
