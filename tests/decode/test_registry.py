"""Schemas come from a registry by the id in each record; what the registry can't give is an error or a reason, never a guess."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakebed
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.slices import UNFORESEEN
from lakebed.decode.typed.registry import RegisteredSchema, Registry, RegistrySettings, framed
from lakebed.errors import InvalidInput, Retry
from lakebed.ingest.batch_writer import WriteTask
from lakebed.parts.changes import write_spec_of
from tests.decode.avro_events import encoded
from tests.decode.avro_events import framed as with_id
from tests.decode.records import RecordChanges, records
from tests.decode.schema_registry import SchemaRegistry
from tests.internals import log_of
from tests.worlds import examples

QUICK = {"retries.wait.ms": "1", "retries.max.wait.ms": "2"}
COLUMNS = pa.schema([pa.field("id", pa.int64(), False), pa.field("note", pa.string())])
TABLE = DecoderSchema(COLUMNS, ("id",))
OLD = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "note", "type": ["null", "string"]}, {"name": "id", "type": "long"}],
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def settings_of(registry: SchemaRegistry, **more: str) -> RegistrySettings:
    return RegistrySettings(url=registry.url, config=QUICK | more, timeout_seconds=2)


def decode(registry: SchemaRegistry, values: list[bytes | None], keys: list[bytes | None] | None = None) -> Decoded:
    reader = decoder("avro", TABLE, {"registry": settings_of(registry)})
    return pickle.loads(pickle.dumps(reader)).decode(records(values, keys))


def rows(decoded: Decoded) -> list[tuple[Any, ...]]:
    return [(row["id"], row["note"], row["_lakebed_op"]) for row in decoded.changes.to_pylist()]


def reasons(decoded: Decoded) -> dict[int, str]:
    return dict(zip(*(decoded.quarantined[name].to_pylist() for name in ("offset", "reason")), strict=True))


def test_records_of_several_schemas_in_one_slice_are_read_each_by_its_own_and_keep_their_order(registry: Any) -> None:
    old, new, key = registry.register(OLD), registry.register(NEW), registry.register('"long"')
    values = [with_id(old, encoded(OLD, {"id": 1})), with_id(new, encoded(NEW, {"id": 2, "note": "a"})), None] * 3
    decoded = decode(registry, values, [None, None, with_id(key, encoded("long", 9))] * 3)
    assert rows(decoded) == [(1, None, "u"), (2, "a", "u"), (9, None, "d")] * 3
    assert len(decoded.quarantined) == 0


def test_a_schema_is_asked_for_once_by_all_decoders_of_a_process(registry: Any) -> None:
    old = registry.register(OLD)
    for _ in range(3):
        decode(registry, [with_id(old, encoded(OLD, {"id": 1}))] * 5)
    assert len(registry.requests) == 1


def test_what_is_not_of_the_wire_format_or_of_no_known_schema_is_quarantined_with_the_reason(registry: Any) -> None:
    old, text = registry.register(OLD), registry.register("syntax = 'proto3'; message A {}", "PROTOBUF")
    broken = registry.register("{not a schema", "AVRO")
    good = with_id(old, encoded(OLD, {"id": 1}))
    values = [
        good,
        b"\1" + good[1:],
        good[:4],
        b"",
        with_id(77, b"\2"),
        with_id(text, b"\2"),
        with_id(broken, b"\2"),
        good,
    ]
    found = reasons(decode(registry, values))
    assert found == {
        1: "it begins with the byte 1, not with the header of a schema registry (a byte 0 and an id of 4 bytes)",
        2: "it has 4 bytes, too few for the header of a schema registry (a byte 0 and an id of 4 bytes)",
        3: "it has 0 bytes, too few for the header of a schema registry (a byte 0 and an id of 4 bytes)",
        4: "schema id 77: the schema registry does not have it: Schema not found",
        5: f"schema id {text} is a schema of PROTOBUF, but the format reads AVRO",
        6: found[6],
    }
    assert found[6].startswith(f"schema id {broken} can't be used: ")
    assert rows(decode(registry, values)) == [(1, None, "u")] * 2


def test_a_key_whose_schema_is_unknown_quarantines_its_tombstone(registry: Any) -> None:
    found = reasons(decode(registry, [None, None], [with_id(9, b"\2"), b"plain text"]))
    assert found[0] == "message key: schema id 9: the schema registry does not have it: Schema not found"
    assert found[1].startswith("message key: it begins with the byte 112")


def test_very_many_unknown_ids_are_asked_for_once_each_and_all_quarantined(registry: Any) -> None:
    old = registry.register(OLD)
    values = [with_id(1000 + number % 500, b"\2") for number in range(3000)]
    values.append(with_id(old, encoded(OLD, {"id": 5})))
    decoded = decode(registry, values)
    assert rows(decoded) == [(5, None, "u")]
    assert len(decoded.quarantined) == 3000
    assert len(registry.requests) == 501


def test_a_registry_that_fails_for_a_moment_is_asked_again(registry: Any) -> None:
    old = registry.register(OLD)
    registry.failing = 2
    assert rows(decode(registry, [with_id(old, encoded(OLD, {"id": 1}))])) == [(1, None, "u")]
    assert len(registry.requests) == 3


def test_a_registry_that_is_down_fails_the_batch_after_a_bounded_number_of_requests_and_nothing_is_lost(
    registry: Any,
) -> None:
    old = registry.register(OLD)
    registry.failing = 100
    reader = decoder("avro", TABLE, {"registry": settings_of(registry)})
    table = records([with_id(old, encoded(OLD, {"id": 1})), b"bad"])
    with pytest.raises(
        Retry,
        match=r"the schema registry at http://127\.0\.0\.1:\d+/registry\d+ does not answer as one "
        r"\(HTTP 503\), asked for schema id 1: ",
    ):
        reader.decode(table)
    assert len(registry.requests) == 4
    registry.failing = 0
    assert rows(reader.decode(table)) == [(1, None, "u")]


def test_a_registry_that_is_not_there_fails_the_batch() -> None:
    with SchemaRegistry() as gone:
        pass
    reader = decoder("avro", TABLE, {"registry": settings_of(gone)})
    with pytest.raises(Retry, match="can't be reached"):
        reader.decode(records([with_id(1, b"\2")]))


@pytest.mark.parametrize("body", [b"<html>a proxy</html>", b"", b"[]", b'{"schema": '])
def test_an_answer_that_is_no_registrys_fails_the_batch_and_quarantines_nothing(registry: Any, body: bytes) -> None:
    registry.failing, registry.failure = 1, (200, body)
    with pytest.raises(Retry, match="the schema registry at"):
        decode(registry, [with_id(1, b"\2")])


def test_a_page_that_is_missing_is_not_a_schema_that_is_missing(registry: Any) -> None:
    registry.failing, registry.failure = 1, (404, b"<html>no such page</html>")
    with pytest.raises(Retry, match="is the url right"):
        decode(registry, [with_id(1, b"\2")])


def test_credentials_are_sent_and_a_refusal_ends_the_stream_without_showing_them(registry: Any) -> None:
    old = registry.register(OLD)
    registry.authorization = "Basic " + base64.b64encode(b"ann:geheim").decode()
    given = {"basic.auth.user.info": "ann:geheim"}
    assert isinstance(Registry(settings_of(registry, **given)).schema(old), RegisteredSchema)
    wrong = settings_of(registry, **{"basic.auth.user.info": "ann:wrongpass"})
    with pytest.raises(InvalidInput, match=r"refuses the client \(HTTP 401\).*check registry.config") as caught:
        Registry(wrong).schema(old)
    assert "wrongpass" not in str(caught.value) and "wrongpass" not in repr(wrong)


def test_an_id_that_no_registry_gives_is_not_asked_for(registry: Any) -> None:
    found = reasons(decode(registry, [with_id(2**31, b"\2"), with_id(2**32 - 1, b"\2")]))
    assert found[0] == "schema id 2147483648: no registry gives ids above 2147483647" and len(found) == 2
    assert registry.requests == []


def test_a_secret_that_the_registry_repeats_is_masked(registry: Any) -> None:
    registry.failing = 4
    registry.failure = (500, b'{"error_code": 50001, "message": "no user ann:geheim with geheim"}')
    with pytest.raises(Retry, match=r"no user \*\*\* with \*\*\*"):
        Registry(settings_of(registry, **{"basic.auth.user.info": "ann:geheim"})).schema(1)


def test_an_unknown_id_is_not_asked_for_again_by_the_next_records(registry: Any) -> None:
    for _ in range(3):
        assert len(decode(registry, [with_id(5, b"\2")]).quarantined) == 1
    assert len(registry.requests) == 1


def test_a_bearer_token_needs_no_further_setting(registry: Any) -> None:
    old = registry.register(OLD)
    registry.authorization = "Bearer t0ken"
    assert isinstance(Registry(settings_of(registry, **{"bearer.auth.token": "t0ken"})).schema(old), RegisteredSchema)


def test_schemas_that_a_schema_refers_to_come_with_it_those_needed_first(registry: Any) -> None:
    registry.register('{"type":"enum","name":"Colour","symbols":["RED"]}', subject="colour")
    registry.register('{"type":"record","name":"Car","fields":[]}', references=[("Colour", "colour", 1)], subject="car")
    number = registry.register(
        '{"type":"array","items":"Car"}', references=[("Car", "car", 1), ("Colour", "colour", 1)]
    )
    found = Registry(settings_of(registry)).schema(number)
    assert isinstance(found, RegisteredSchema) and list(found.references) == ["Colour", "Car"]


def test_a_reference_that_is_missing_or_circular_is_the_reason(registry: Any) -> None:
    number = registry.register("{}", references=[("A", "nowhere", 1)])
    assert "reference 'A' (subject 'nowhere', version 1)" in str(Registry(settings_of(registry)).schema(number))
    circular = registry.register("{}", references=[("B", "b", 1)], subject="b")
    assert "circle" in str(Registry(settings_of(registry)).schema(circular))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"url": "localhost:8081"}, "must begin with http"),
        ({"url": "http://ann:geheim@host"}, "user name in it"),
        ({"url": "http://host", "config": {"no.such": "1"}}, "the registry's client refuses config: .*no.such"),
        ({"url": "http://host", "config": {"timeout": "soon"}}, "must be a number"),
        (
            {"url": "https://host", "config": {"ssl.ca.location": "/no/such/file"}},
            "the registry's client refuses config",
        ),
        ({"url": "http://host", "timeout_seconds": 0}, "more than 0"),
    ],
)
def test_settings_that_can_not_be_used_are_refused_at_once(values: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        Registry(RegistrySettings(**values))
    assert "geheim" not in str(caught.value)


def test_ids_are_read_also_from_a_part_of_an_array_and_beyond_the_sign() -> None:
    values = pa.array([b"xxxxxxx", with_id(7, b"a"), with_id(2**32 - 1, b""), with_id(7, b"bc")], pa.binary())
    frames = framed(values[1:])
    assert {number: some.tolist() for number, some in frames.groups.items()} == {7: [0, 2], 2**32 - 1: [1]}
    assert frames.payload.to_pylist() == [b"a", b"", b"bc"]


def test_either_a_registry_or_a_file_says_what_the_schemas_are() -> None:
    with pytest.raises(InvalidInput, match="set either 'registry' or 'schema_file'"):
        decoder("debezium-avro", TABLE, {})
    with pytest.raises(InvalidInput, match="has no option 'decimal_text'"):
        decoder("avro", TABLE, {"decimal_text": "auto"})


def test_a_task_that_meets_a_registry_that_is_down_fails_and_the_batch_that_is_run_again_has_every_record(
    registry: Any, tmp_path: Any
) -> None:
    table = lakebed.create(tmp_path / "t", COLUMNS, keys=["id"])
    old = registry.register(OLD)
    batch = records([with_id(old, encoded(OLD, {"id": 1})), b"bad", with_id(old, encoded(OLD, {"id": 2}))])
    changes = RecordChanges(decoder("avro", TABLE, {"registry": settings_of(registry)}))
    task = WriteTask(write_spec_of(log_of(table).refresh()), table.path, changes)
    registry.failing = 4
    with pytest.raises(Retry, match="schema registry"):
        task.write(task.stream(iter(batch.to_batches())))
    written = task.write(task.stream(iter(batch.to_batches())))
    assert [part.rows for part in (*written.parts, *written.quarantined)] == [2, 1]


def test_whatever_the_bytes_are_each_record_becomes_one_thing(registry: Any) -> None:
    old, new = registry.register(OLD), registry.register(NEW)
    good = [with_id(old, encoded(OLD, {"id": 1})), with_id(new, encoded(NEW, {"id": 2, "note": "a" * 20}))]
    reader = decoder("avro", TABLE, {"registry": settings_of(registry)})

    @examples(50)
    @given(st.lists(st.tuples(RECORDS, RECORDS), max_size=20))
    def each(drawn: list[Any]) -> None:
        values, keys = (
            ([mutated(one, good) for one in side] for side in zip(*drawn, strict=True)) if drawn else ([], [])
        )
        decoded = reader.decode(records(values, keys))
        assert len(decoded.changes) + len(decoded.quarantined) + decoded.ignored == len(values)
        assert all(decoded.quarantined["reason"].to_pylist())
        assert not any(reason.startswith(UNFORESEEN) for reason in decoded.quarantined["reason"].to_pylist())
        assert decoded.changes["id"].null_count == 0

    each()


RECORDS = st.one_of(
    st.none(), st.binary(max_size=12), st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 255))
)


def mutated(drawn: Any, good: list[bytes]) -> bytes | None:
    """Nothing, any bytes, or a good record with one byte changed or its end cut off."""
    if not isinstance(drawn, tuple):
        return drawn  # type: ignore[no-any-return]
    which, place, byte = drawn
    value = good[which]
    return value[:place] + bytes([byte]) + value[place + 1 :] if byte else value[:place]
