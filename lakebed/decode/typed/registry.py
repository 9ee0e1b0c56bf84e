"""Schemas by their id or GUID, from a registry with Confluent's API, by confluent-kafka's client.

1.  A schema never changes under its id or GUID. So it is fetched once for a process and kept, the newest ``_SCHEMAS_KEPT_MAX`` of
    them.
2.  A request that fails is tried again, with pauses that grow, for a bounded time (by the client). Then a Retry is raised: the
    batch fails, nothing is lost, and the batch is tried again.
3.  An id that the registry does not have is an answer: its records can't be read. It is asked for again after a while.

No text that this module makes contains a secret.

**Wire format** of schema registries: a byte 0, the schema's id in 4 bytes, then the record. The ids of many records are read at
once, and records of one schema are one group. What is not of this form is named.

Confluent's serializers can also say the schema in a header of the record (``__value_schema_id``, ``__key_schema_id``): a byte 1
and the schema's GUID in 16 bytes, or a byte 0 and its id. Then the record has no header of its own. In Protobuf the message
indexes follow the GUID or id in both places.

**Message indexes** of Protobuf say which message of the schema a record is. Behind the id of the schema stand the number of
indexes and the indexes, as zigzag varints: the place of the message in the file, then of the message in it, and so on. A single
0 stands for the first message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.text import Unreadable
from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite, Retry
from lakebed.waits import waiting_for

_INDEXES_MAX = 64
FIRST = (0,)
_WHOLE = 1 << 30
"""More bytes than a record has; without an end, ``binary_slice`` fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SplitMessages:
    """``payloads`` are the messages' own bytes, one a record; empty where the record is in ``errors``."""

    payloads: pa.BinaryArray
    groups: Mapping[tuple[int, ...], np.ndarray[Any, Any]]
    """The numbers of the records of each message, ascending."""
    errors: Mapping[int, str] = field(default_factory=dict)


def split_messages(values: pa.BinaryArray) -> _SplitMessages:
    """``values``: the records' bytes behind the id; none is null."""
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1]
    data = np.frombuffer(values.buffers()[2] or b"\0", np.uint8)
    filled = offsets[1:] > offsets[:-1]
    plain = filled & (data[np.minimum(offsets[:-1], len(data) - 1)] == 0)
    if plain.all():
        return _SplitMessages(payloads=pc.binary_slice(values, 1, _WHOLE), groups={FIRST: np.arange(count)})
    headers = np.ones(count, np.int32)
    rows: dict[tuple[int, ...], list[int]] = {FIRST: np.flatnonzero(plain).tolist()}
    errors: dict[int, str] = {}
    for row in np.flatnonzero(~plain).tolist():
        encoded = values[row].as_py()
        try:
            indexes, headers[row] = _indexes(encoded)
            rows.setdefault(indexes, []).append(row)
        except Unreadable as error:
            errors[row], headers[row] = str(error), len(encoded)
    groups = {indexes: np.array(sorted(numbers), np.int64) for indexes, numbers in rows.items() if numbers}
    payloads = [value[header:] for value, header in zip(values.to_pylist(), headers.tolist(), strict=True)]
    return _SplitMessages(payloads=pa.array(payloads, pa.binary()), groups=groups, errors=errors)


def message_in(encoded: bytes) -> tuple[int, ...]:
    """The message that a header says, from the bytes behind the schema. Raises ``Unreadable``."""
    indexes, end = _indexes(encoded)
    if end < len(encoded):
        raise Unreadable("not a Protobuf record of a registry: its header is longer than its message indexes")
    return indexes


def _indexes(encoded: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes at the beginning, and how many bytes they take. Raises ``Unreadable``."""
    count, at = _varint(encoded, 0)
    if count == 0:
        return FIRST, at
    if not 0 < count <= _INDEXES_MAX:
        raise Unreadable(f"not a Protobuf record of a registry: {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(encoded, at)
        if index < 0:
            raise Unreadable(f"not a Protobuf record of a registry: message index {index}")
        indexes.append(index)
    return tuple(indexes), at


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at == len(encoded):
            break
        byte = encoded[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
    raise Unreadable("not a Protobuf record of a registry: its message indexes are cut off")


HEADER_BYTES = 5
MAGIC = 0
_GUID_BYTES = 17
_GUID_MAGIC = 1
"""More bytes than a record has."""

SchemaName = int | str
"""The id of a schema, or its GUID."""
Rows = np.ndarray[Any, Any]
"""Numbers of records, in order."""


@dataclass(frozen=True, slots=True)
class _Framed:
    """``groups``: the records of each schema id; ``payload``: all records without headers; ``errors``: why others have no id."""

    groups: Mapping[int, Rows]
    payload: pa.BinaryArray
    errors: Mapping[int, str]


def framed(values: pa.BinaryArray) -> _Framed:
    """``values`` has no nulls."""
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    good = lengths >= HEADER_BYTES
    starts = starts if good.all() else starts[good]
    good[good] = data[starts] == MAGIC
    rows = np.flatnonzero(good)
    starts = offsets[:-1][rows]
    ids = np.zeros(len(rows), np.int64)
    for place in range(1, HEADER_BYTES):
        ids = ids << 8 | data[starts + place]
    errors = {int(row): _not_framed(values[int(row)].as_py()) for row in np.flatnonzero(~good)}
    return _Framed(_grouped(ids, rows), pc.binary_slice(values, HEADER_BYTES, _WHOLE), errors)


def named_in(header: bytes) -> tuple[SchemaName, bytes]:
    """The schema that a header names, and the bytes behind its name. Raises ``Unreadable``."""
    if header[:1] == bytes([_GUID_MAGIC]) and len(header) >= _GUID_BYTES:
        return str(UUID(bytes=header[1:_GUID_BYTES])), header[_GUID_BYTES:]
    if header[:1] == bytes([MAGIC]) and len(header) >= HEADER_BYTES:
        return int.from_bytes(header[1:HEADER_BYTES]), header[HEADER_BYTES:]
    raise Unreadable(
        f"its header with the id of its schema can't be read: {header[:_GUID_BYTES].hex() or 'it is empty'}"
    )


def _grouped(ids: Rows, rows: Rows) -> dict[int, Rows]:
    if not len(ids):
        return {}
    if (ids == ids[0]).all():
        return {int(ids[0]): rows}
    order = np.argsort(ids, kind="stable")
    ids, rows = ids[order], rows[order]
    firsts = np.flatnonzero(np.diff(ids)) + 1
    return {int(ids[first]): some for first, some in zip([0, *firsts], np.split(rows, firsts), strict=True)}


def _not_framed(value: bytes) -> str:
    if len(value) < HEADER_BYTES:
        return f"it has {len(value)} bytes, too few for the header of a schema registry (a byte 0 and an id of 4 bytes)"
    return (
        f"it begins with the byte {value[0]}, not with the header of a schema registry (a byte 0 and an id of 4 bytes)"
    )


_SCHEMAS_KEPT_MAX = 1_000
_REFERENCES_MAX = 256
"""Of one schema, those of its references too."""
ID_MAX = (1 << 31) - 1
"""A registry does not understand a larger one: its answer would look like that of something else."""
UNKNOWN_SECONDS = 10.0  # how long an unknown id is not asked for again
_REGISTRIES_KEPT_MAX = 16
_NOT_FOUND = (40401, 40402, 40403)
"""The registry's own codes: no such subject, version or schema. A 404 without them comes from something else."""
_NUMBERS = ("timeout", "cache.capacity", "max.retries", "retries.wait.ms", "retries.max.wait.ms")
_SECRETS = ("user.info", "password", "secret", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """Where the registry is. ``config``: further settings of confluent-kafka's client, as they are.

    ``timeout_seconds`` is for one request; up to three more follow, in about as much time again. Raises InvalidInput.
    """

    url: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        for url in self.url.split(","):
            if not url.strip().startswith(("http://", "https://")):
                raise InvalidInput("the url must begin with http:// or https://")
            if "@" in url.split("//", 1)[1].split("/")[0]:
                raise InvalidInput(
                    "the url has a user name in it; put that into config, as basic.auth.user.info: 'user:password'"
                )
        if "url" in self.config:
            raise InvalidInput("config has 'url'; it is a setting of its own")
        if not self.timeout_seconds > 0:
            raise InvalidInput(f"timeout_seconds is {self.timeout_seconds}; it must be more than 0")

    def client_config(self) -> dict[str, Any]:
        """The settings of the client."""
        given: dict[str, Any] = {
            "timeout": self.timeout_seconds,
            "max.retries": 3,
            "retries.wait.ms": 500,
            "retries.max.wait.ms": 4_000,
        }
        if "bearer.auth.token" in self.config:
            given |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.logical.cluster": ""}
        for name, value in self.config.items():
            given[name] = _number(name, value) if name in _NUMBERS else value
        if given.get("ssl.ca.location") == "false":
            given["ssl.ca.location"] = False
        return given | {"url": self.url}

    def without_secrets(self, text: str) -> str:
        """A text of the client's with the values of secret settings masked."""
        for name, value in self.config.items():
            if any(part in name for part in _SECRETS):
                for secret in (value, *value.split(":", 1)[1:]):
                    text = text.replace(secret, "***") if secret else text
        return text

    @property
    def key(self) -> str:
        """The same text for the same settings."""
        return json.dumps([self.url, dict(self.config), self.timeout_seconds], sort_keys=True)


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidInput(f"config: {name} is {value!r}; it must be a number") from None


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema and the texts of those that it refers to, by the name used there; a schema comes after those it needs."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


class Registry:
    """The schemas of one registry. Not picklable: each process has its own (``registry_of``)."""

    def __init__(self, settings: RegistrySettings) -> None:
        """Makes no connection. Raises InvalidInput for settings that the client refuses, MissingPrerequisite without it."""
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ModuleNotFoundError as error:
            package = "confluent-kafka" if error.name == "confluent_kafka" else error.name
            raise MissingPrerequisite(
                f"a schema registry needs {package}, which is not installed: pip install 'lakebed[registry]'"
            ) from None
        self._settings = settings
        self._schemas: dict[SchemaName, RegisteredSchema] = {}
        self._unknown: dict[SchemaName, tuple[float, str]] = {}
        try:
            self._client = SchemaRegistryClient(settings.client_config())
        except (ValueError, TypeError, OSError) as error:  # OSError: a file of certificates
            raise InvalidInput(
                f"the registry's client refuses config: {settings.without_secrets(str(error))}"
            ) from None

    def schema(self, name: SchemaName) -> RegisteredSchema | str:
        """The schema of this id or GUID, or why there is none.

        Raises Retry if the registry does not answer, and InvalidInput if it refuses the caller.
        """
        found = self._schemas.get(name)
        if found is not None:
            return found
        if isinstance(name, int) and name > ID_MAX:
            return f"schema id {name}: no registry gives ids above {ID_MAX}"
        asked = self._unknown.get(name)
        if asked is not None and time.monotonic() - asked[0] < UNKNOWN_SECONDS:
            return asked[1]
        answer = self._fetched(name)
        kept: dict[SchemaName, Any] = self._unknown if isinstance(answer, str) else self._schemas
        if len(kept) >= _SCHEMAS_KEPT_MAX:
            kept.clear()
            self._client.clear_caches()
        kept[name] = (time.monotonic(), answer) if isinstance(answer, str) else answer
        return answer

    def check(self) -> None:
        """Asks the registry for something small. Raises as ``schema`` does."""
        answer = self._asked(lambda: self._client.get_schema(0), "schema id 0")
        if isinstance(answer, str) and not answer.startswith(_ABSENT):
            raise Retry(answer)

    def latest(self, subject: str) -> RegisteredSchema | str:
        """The newest schema of a subject, or why there is none. Raises as ``schema``."""
        answer = self._asked(lambda: self._client.get_version(subject, "latest"), f"subject {subject!r}")
        if isinstance(answer, str):
            return f"subject {subject!r}: {answer}"
        return self._whole(answer.schema, f"subject {subject!r}")

    def _fetched(self, name: SchemaName) -> RegisteredSchema | str:
        what, client = text_of(name), self._client
        fetch = client.get_schema if isinstance(name, int) else client.get_schema_by_guid
        answer = self._asked(partial(fetch, name), what)
        return f"{what}: {answer}" if isinstance(answer, str) else self._whole(answer, what)

    def _whole(self, schema: Any, what: str) -> RegisteredSchema | str:
        references: dict[str, str] = {}
        problem = self._refer(schema, references, ())
        if problem is not None:
            return f"{what}: {problem}"
        return RegisteredSchema(schema.schema_type or "AVRO", schema.schema_str or "", references)

    def _refer(self, schema: Any, found: dict[str, str], above: tuple[str, ...]) -> str | None:
        """Adds the schemas that one refers to, needed ones first. Returns why that is not possible."""
        for reference in schema.references or ():
            if reference.name in above:
                return f"its references go in a circle, by {reference.name!r}"
            if reference.name in found:
                continue
            if len(found) + len(above) >= _REFERENCES_MAX:
                return f"it refers to more than {_REFERENCES_MAX} schemas"
            subject, version = reference.subject, reference.version
            version_of = partial(self._client.get_version, subject, version, deleted=True)
            answer = self._asked(version_of, f"version {version} of subject {subject!r}")
            if isinstance(answer, str):
                return f"its reference {reference.name!r} (subject {subject!r}, version {version}): {answer}"
            problem = self._refer(answer.schema, found, (*above, reference.name))
            if problem is not None:
                return problem
            found[reference.name] = answer.schema.schema_str or ""
        return None

    def _asked(self, question: Any, wanted: str) -> Any:
        """The client's answer, or a text if the registry does not have what is wanted."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        where = f"the schema registry at {self._settings.url}"
        try:
            with waiting_for(f"{wanted} from {where}"):
                return question()
        except SchemaRegistryError as error:
            what = self._settings.without_secrets(str(error.error_message))[:200]
            if error.error_code in _NOT_FOUND:
                return f"{_ABSENT}: {what}"
            if error.http_status_code in (401, 403):
                raise InvalidInput(
                    f"{where} refuses the client (HTTP {error.http_status_code}): {what}; check registry.config"
                ) from None
            more = "; is the url right?" if error.http_status_code == 404 else ""
            raise Retry(
                f"{where} does not answer as one (HTTP {error.http_status_code}), asked for {wanted}: {what}{more}"
            ) from None
        except (LakebedError, MemoryError):
            raise
        except Exception as error:  # of the HTTP client or of the bytes of the answer
            what = self._settings.without_secrets(str(error))[:200] or type(error).__name__
            raise Retry(f"{where} can't be reached: {what}") from None


def text_of(name: SchemaName) -> str:
    """How messages call a schema."""
    return f"schema id {name}" if isinstance(name, int) else f"schema {name}"


_ABSENT = "the schema registry does not have it"
_registries: dict[str, Registry] = {}


def registry_of(settings: RegistrySettings) -> Registry:
    """The registry of this process with these settings. Raises as ``Registry`` does."""
    found = _registries.get(settings.key)
    if found is None:
        if len(_registries) >= _REGISTRIES_KEPT_MAX:
            _registries.clear()
        found = _registries[settings.key] = Registry(settings)
    return found
