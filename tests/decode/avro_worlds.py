"""Random Avro schemas, records of them in every form that Avro allows, readers' schemas to resolve to, and damage."""

from __future__ import annotations

import random
import struct
from typing import Any

from lakebed.decode.typed.avro_schema import number

PRIMITIVES = ("boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL = (
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    *({"type": "long", "logicalType": name} for name in ("time-micros", "timestamp-millis", "local-timestamp-nanos")),
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
    {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 3},
    {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"},
    {"type": "int", "connect.type": "int16"},
    {"type": "fixed", "size": 5, "logicalType": "decimal", "precision": 11, "scale": 0},
    {"type": "fixed", "size": 17, "logicalType": "decimal", "precision": 38, "scale": 38},
    {"type": "fixed", "size": 16, "logicalType": "uuid"},
    {"type": "fixed", "size": 12, "logicalType": "duration"},
)
WHOLE = (0, 1, -1, 63, -64, 64, 2**31 - 1, -(2**31), 2**31, 2**53 + 1, 2**62 + 1, 2**63 - 1, -(2**63))
TEXTS = ("", "a", "é€😀", "x" * 40, "0123456789abcdef", "\x00")
PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("double", "float"),
    "float": ("double",),
    "string": ("bytes",),
}
DEFAULTS: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": -7,
    "long": 2**40,
    "float": 0.5,
    "double": -2.25,
    "bytes": "\xff\x00",
    "string": "né",
}


class World:
    """Makes schemas of one seed. ``logical``: also with logical types."""

    def __init__(self, seed: int, *, logical: bool = True) -> None:
        self.rng = random.Random(seed)
        self.logical = logical
        self.names = 0
        self.named: list[str] = []

    # -- schemas ----------------------------------------------------------------------------------------------------------

    def record(self, level: int = 0) -> dict[str, Any]:
        fields = [self.field(level) for _ in range(self.rng.randrange(1, 7))]
        return {"type": "record", "name": self.name("R"), "fields": fields}

    def field(self, level: int) -> dict[str, Any]:
        return {"name": self.name("f"), "type": self.type(level + 1)}

    def name(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def type(self, level: int) -> Any:
        rng = self.rng
        leaf = rng.random() < 0.5 or level > 4
        if leaf and self.logical and rng.random() < 0.4:
            kind = dict(rng.choice(LOGICAL))
            return {**kind, "name": self.name("L")} if kind["type"] == "fixed" else kind
        if leaf:
            return rng.choice(PRIMITIVES)
        match rng.randrange(8):
            case 0:
                return {"type": "array", "items": self.item(level + 1)}
            case 1:
                return {"type": "map", "values": self.item(level + 1)}
            case 2:
                kind = {"type": "enum", "name": self.name("E"), "symbols": list("ABCDE"[: rng.randrange(1, 6)])}
            case 3:
                kind = {"type": "fixed", "name": self.name("F"), "size": rng.randrange(4)}
            case 4:
                kind = self.record(level)
            case 5:
                return self.union(level)
            case 6 if self.named:
                return rng.choice(self.named)
            case _:
                return ["null", self.record(level + 1) if rng.random() < 0.5 else rng.choice(PRIMITIVES)]
        self.named.append(kind["name"])
        return kind

    def item(self, level: int) -> Any:
        """A type that takes a byte at least."""
        match self.rng.randrange(5 if level < 5 else 2):
            case 0:
                return self.rng.choice(PRIMITIVES)
            case 1:
                return ["null", self.rng.choice(PRIMITIVES)]
            case 2:
                record = self.record(level)
                return {**record, "fields": [{"name": "first", "type": "boolean"}, *record["fields"]]}
            case 3:
                return {"type": "array", "items": self.item(level + 1)}
            case _:
                return {"type": "map", "values": self.item(level + 1)}

    def union(self, level: int) -> list[Any]:
        names = ("null", *PRIMITIVES)
        branches: list[Any] = self.rng.sample([name for name in names if name != "bytes"], self.rng.randrange(1, 5))
        if self.rng.random() < 0.5:
            branches.append(self.record(level + 1))
        return branches

    # -- bytes ------------------------------------------------------------------------------------------------------------

    def encoded(self, kind: Any, named: dict[str, Any]) -> bytes:
        """A random value of the type, in a random one of its forms."""
        rng = self.rng
        if isinstance(kind, list):
            place = rng.randrange(len(kind))
            return number(place) + self.encoded(kind[place], named)
        if isinstance(kind, str):
            kind = named.get(kind, {"type": kind})
        match kind["type"]:
            case "null":
                return b""
            case "boolean":
                return rng.choice((b"\0", b"\1"))
            case "int":
                return self.whole(15 if "connect.type" in kind else 31)
            case "long":
                return self.whole(63)
            case "float":
                return struct.pack("<f", rng.choice((0.0, -0.0, 1.5, float("inf"), float("nan"), 3e38, 1e-45)))
            case "double":
                return struct.pack("<d", rng.choice((0.0, -0.0, 0.1, float("-inf"), float("nan"), 1e300, 5e-324)))
            case "string":
                raw = rng.choice(TEXTS).encode()
                if kind.get("logicalType") == "uuid":
                    raw = b"12345678-1234-5678-1234-567812345678"
                return number(len(raw)) + raw
            case "bytes":
                raw = rng.randbytes(rng.choice((0, 1, 4, 5, 16, 17, 30)))
                if kind.get("logicalType") == "decimal":
                    raw = self.unscaled(kind, rng.choice((4, 6, 20)))
                return number(len(raw)) + raw
            case "fixed":
                if kind.get("logicalType") == "decimal":
                    return self.unscaled(kind, kind["size"])
                return rng.randbytes(kind["size"])
            case "enum":
                return number(rng.randrange(len(kind["symbols"])))
            case "array":
                return self.blocks([self.encoded(kind["items"], named) for _ in range(rng.randrange(4))])
            case "map":
                keys = rng.sample(TEXTS, rng.randrange(4))
                pairs = [(key.encode(), self.encoded(kind["values"], named)) for key in keys]
                return self.blocks([number(len(key)) + key + value for key, value in pairs])
        return b"".join(self.encoded(each["type"], named) for each in kind["fields"])

    def unscaled(self, kind: dict[str, Any], size: int) -> bytes:
        limit = min(10 ** kind["precision"], 10**9)
        return self.rng.randrange(1 - limit, limit).to_bytes(size, "big", signed=True)

    def whole(self, bits: int) -> bytes:
        fitting = [value for value in WHOLE if -(1 << bits) <= value < 1 << bits]
        raw = number(self.rng.choice(fitting))
        if self.rng.random() < 0.05 and len(raw) < 5:  # more bytes than it needs
            raw = raw[:-1] + bytes([raw[-1] | 0x80, 0])
        return raw

    def blocks(self, items: list[bytes]) -> bytes:
        out, at = b"", 0
        while at < len(items):
            count = self.rng.randrange(1, len(items) - at + 1)
            block = b"".join(items[at : at + count])
            out += number(-count) + number(len(block)) + block if self.rng.random() < 0.5 else number(count) + block
            at += count
        return out + b"\0"

    def damaged(self, record: bytes) -> bytes:
        rng = self.rng
        for _ in range(rng.randrange(1, 4)):
            at, more = rng.randrange(len(record) + 1), rng.randrange(1, 4)
            match rng.randrange(5):
                case 0:
                    record = record[:at]
                case 1:
                    record = record[:at] + rng.randbytes(more) + record[at:]
                case 2:
                    record = record[:at] + rng.randbytes(more) + record[at + more :]
                case 3:
                    record = record[:at] + number(rng.choice(WHOLE)) + record[at + 1 :]
                case _:
                    record = record[:at] + b"\xff" * more + record[at + more :]
        return record

    # -- readers' schemas -------------------------------------------------------------------------------------------------

    def reader_of(self, kind: Any) -> Any:
        """A schema that most values of the type can be read as."""
        rng = self.rng
        if isinstance(kind, list):
            branches = [self.reader_of(branch) if isinstance(branch, dict) else branch for branch in kind]
            if rng.random() < 0.3:
                branches.pop(rng.randrange(len(branches)))
            order = (
                "null",
                *PRIMITIVES,
            )  # fastavro takes the first type that matches, also where a later one is the same
            branches.sort(key=lambda branch: order.index(branch) if isinstance(branch, str) and branch in order else -1)
            return branches or ["null"]
        if isinstance(kind, str):
            if kind in PROMOTIONS and rng.random() < 0.3:
                return rng.choice(PROMOTIONS[kind])
            return ["null", kind] if kind in PRIMITIVES and rng.random() < 0.1 else kind
        match kind["type"]:
            case "array":
                return {**kind, "items": self.reader_of(kind["items"])}
            case "map":
                return {**kind, "values": self.reader_of(kind["values"])}
            case "enum" if rng.random() < 0.5:
                symbols = ["Z", *kind["symbols"][1:]]
                return {**kind, "symbols": symbols, **({"default": "Z"} if rng.random() < 0.5 else {})}
            case "record":
                return {**kind, "fields": self.reader_fields(kind["fields"])}
        return kind

    def reader_fields(self, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rng, out = self.rng, []
        for each in fields:
            if rng.random() < 0.15 and "name" not in repr(each["type"]):  # what others name stays defined
                continue
            changed = {**each, "type": self.reader_of(each["type"])}
            if rng.random() < 0.15:
                changed = {**changed, "name": self.name("g"), "aliases": [each["name"]]}
            out.append(changed)
        for _ in range(rng.randrange(2)):
            name = rng.choice(PRIMITIVES)
            out.append({"name": self.name("d"), "type": name, "default": DEFAULTS[name]})
        if rng.random() < 0.2:
            default: Any = {"x": [1, -2], "y": {"k": 0.5}}
            inner = [
                {"name": "x", "type": {"type": "array", "items": "int"}},
                {"name": "y", "type": {"type": "map", "values": "double"}},
            ]
            made = {"type": "record", "name": self.name("D"), "fields": inner}
            out.append({"name": self.name("d"), "type": made, "default": default})
        return out


def named_types(kind: Any, out: dict[str, Any] | None = None) -> dict[str, Any]:
    """All named types that a schema defines."""
    out = {} if out is None else out
    if isinstance(kind, list):
        for branch in kind:
            named_types(branch, out)
    elif isinstance(kind, dict):
        if "name" in kind and kind["type"] in ("record", "enum", "fixed"):
            out[kind["name"]] = kind
        for each in kind.get("fields", ()):
            named_types(each["type"], out)
        for inner in ("items", "values"):
            if inner in kind:
                named_types(kind[inner], out)
    return out
