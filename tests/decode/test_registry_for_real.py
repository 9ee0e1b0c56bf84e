"""What lakebed asks of a registry, and what a real one answers."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.typed.registry import ID_MAX, RegisteredSchema, Registry, RegistrySettings
from lakebed.errors import Retry
from lakebed.pipeline.draft import sample_of
from tests.decode.avro_events import encoded, framed
from tests.decode.records import records
from tests.decode.test_registry import COLUMNS, NEW, QUICK
from tests.infra.registry import RegistryServer

pytestmark = pytest.mark.slow


def test_a_registry_gives_schemas_says_what_it_lacks_and_is_waited_for_while_it_is_down(
    registry: RegistryServer,
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    number = client.register_schema("real.rows-value", Schema(json.dumps(NEW), "AVRO"))
    settings = RegistrySettings(url=registry.url, config=QUICK, timeout_seconds=5)
    known = Registry(settings)
    known.check()
    assert isinstance(known.schema(number), RegisteredSchema)
    assert "the schema registry does not have it" in str(known.schema(999_999))
    assert "the schema registry does not have it" in str(known.schema(ID_MAX))
    assert "no registry gives ids above" in str(known.schema(2**32 - 1))
    assert "the schema registry does not have it" in str(known.latest("no such subject/with a slash"))
    assert sample_of(registry.url, "real.rows", "avro").columns == {"note": "string", "id": "long"}

    reader = decoder("avro", DecoderSchema(COLUMNS, ("id",)), {"registry": settings})
    values = [framed(number, encoded(NEW, {"id": 1, "note": "a"})), framed(999_999, b"\2")]
    decoded = reader.decode(records(values))
    assert decoded.changes["id"].to_pylist() == [1] and len(decoded.quarantined) == 1

    registry.kill()
    try:
        with pytest.raises(Retry, match="can't be reached"):
            Registry(settings).schema(number)
        assert reader.decode(records(values[:1])).changes["id"].to_pylist() == [1]
    finally:
        registry.start()
    assert isinstance(Registry(settings).schema(number), RegisteredSchema)
