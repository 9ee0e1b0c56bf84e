"""Golden files of the planner: a table, what is asked, and the expected plans, as text.

A file is a list of cases. A case begins with a line ``# title`` and holds blocks. A block is a command with its arguments, lines
of input, a line ``----``, and the expected output up to a blank line.

``define [unordered] [partition_by=region] [property=text …]``: a table; properties without their ``lakebed.`` prefix. Input::

    name low..high size [rows=1000] [dead=0] [vector=40B] [level=0] [blocks=a..b] [deletes=0] [written=HH:MM] [region=x]
        [version=1]
    tail name low..high size [rows=1000] [written=HH:MM]
    for n in 1..9: flush-{n} {n}..{10000-n} 1MB

``?`` in place of ``low..high``: no bounds. ``version``: of the sort key. Without ``blocks`` a part's block is the number in its
name.

``plan [at=12:00] [claimed=a,b] [in_flight=1MB] [reads=a:7,b:1]``: what the planner says. Hours may be above 24.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lakebed.log.actions import ChangePart, Part
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.snapshot import Snapshot
from lakebed.planning.plan import MergePlan, Planning, SettlePlan
from lakebed.planning.planner import plan
from lakebed.settings import parse_settings
from tests.planning.tables import MB, change_part, part, table

FOLDER = Path(__file__).parent / "testdata"
NAMES_MAX = 6


@dataclass(frozen=True, slots=True)
class Block:
    command: str
    lines: tuple[str, ...]
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    blocks: tuple[Block, ...]


def cases(file: Path) -> list[Case]:
    found: list[Case] = []
    for text in re.split(r"^# ", file.read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = text.partition("\n")
        blocks = []
        for block in re.split(r"\n\n+", body.strip("\n")):
            asked, _, expected = block.partition("----")
            command, *lines = asked.strip("\n").splitlines()
            blocks.append(Block(command, tuple(lines), tuple(expected.strip("\n").splitlines())))
        found.append(Case(title, tuple(blocks)))
    return found


def answered(case: Case) -> Case:
    """The case with what the planner says in place of what is expected."""
    snapshot, blocks = None, []
    for block in case.blocks:
        command, *arguments = block.command.split()
        if command == "define":
            snapshot = _define(arguments, block.lines)
            output: list[str] = []
        else:
            assert command == "plan" and snapshot is not None, block.command
            output = list(_lines(_plan(snapshot, arguments)))
        blocks.append(replace(block, expected=tuple(output)))
    return replace(case, blocks=tuple(blocks))


def text_of(found: list[Case]) -> str:
    """The text of a file."""
    return "\n".join(
        f"# {case.title}\n"
        + "\n".join("\n".join([block.command, *block.lines, "----", *block.expected]) + "\n" for block in case.blocks)
        for case in found
    )


def _define(arguments: list[str], lines: tuple[str, ...]) -> Snapshot:
    named = _named(argument for argument in arguments if argument != "unordered")
    partition_by = tuple(filter(None, named.pop("partition_by", "").split(",")))
    properties = {f"lakebed.{name}": text for name, text in named.items()}
    if "unordered" not in arguments:
        properties.setdefault("lakebed.keys", '["key"]')
    for name in ("lakebed.keys", "lakebed.sort_key"):
        if name in properties and not properties[name].startswith("["):
            properties[name] = json.dumps(properties[name].split(","))
    items = [_item(line) for line in _repeated(lines)]
    return table(
        [item for item in items if isinstance(item, Part)],
        parse_settings(properties),
        [item for item in items if isinstance(item, ChangePart)],
        partition_by,
    )


def _repeated(lines: tuple[str, ...]) -> Iterator[str]:
    for line in lines:
        if found := re.fullmatch(r"for n in (\d+)\.\.(\d+): (.*)", line):
            for number in range(int(found[1]), int(found[2]) + 1):
                yield re.sub(r"\{(.*?)\}", lambda each, n=number: str(eval(each[1], {"n": n})), found[3])
        else:
            yield line


def _item(line: str) -> Part | ChangePart:
    in_tail, (name, keys, size, *more) = line.startswith("tail "), line.removeprefix("tail ").split()
    named = _named(more)
    fields: dict[str, Any] = {each: int(named[each]) for each in ("rows", "dead", "level", "deletes") if each in named}
    if "written" in named:
        fields["modified_ms"] = _ms(named["written"])
    low, high = (None, None) if keys == "?" else map(int, keys.split(".."))
    if in_tail:
        assert low is not None and high is not None
        return change_part(name, low, high, _bytes(size), **fields)
    if "blocks" in named:
        fields["min_block"], fields["max_block"] = map(int, named["blocks"].split(".."))
    if "vector" in named:
        fields["deletion_vector"] = DeletionVector(
            storage="u", path_or_inline=name, offset=0, bytes=_bytes(named["vector"]), dead_rows=fields["dead"]
        )
    if "region" in named:
        fields["partition_values"] = {"region": named["region"]}
    if "version" in named:
        fields["sort_key_version"] = int(named["version"])
    return part(name, low, high, _bytes(size), **fields)


def _plan(snapshot: Snapshot, arguments: list[str]) -> Planning:
    named = _named(arguments)
    reads = {
        path: int(times) for path, times in (each.split(":") for each in named.get("reads", "").split(",") if each)
    }
    claimed = set(filter(None, named.get("claimed", "").split(",")))
    return plan(snapshot, claimed, _ms(named.get("at", "12:00")), _bytes(named.get("in_flight", "0MB")), reads)


def _lines(planning: Planning) -> Iterator[str]:
    for one in planning.plans:
        match one:
            case SettlePlan():
                yield f"settle {_names(one.inputs)}: {one.rows_in:,} rows, {_size(one.bytes_in)}"
            case MergePlan():
                where = "".join(f" in {name}={value}" for name, value in one.partition)
                yield f"{one.kind.value}{where} {_names(one.inputs)}"
                yield (
                    f"  to level {one.level}: depth {one.depth_before} to {one.depth_after}, "
                    f"{_size(one.bytes_in)} to {_size(one.bytes_out)}"
                )
        yield f"  {one.why}"
    for refusal in planning.refusals:
        yield f"left {refusal.count:,}: {refusal.why}"
    yield f"depth {planning.depth_max}, backlog {_size(planning.backlog_bytes)}"


def _names(paths: tuple[str, ...]) -> str:
    if len(paths) <= NAMES_MAX:
        return " ".join(paths)
    return f"{paths[0]} {paths[1]} … {paths[-1]} ({len(paths)} parts)"


def _named(arguments: Any) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in arguments)


def _ms(text: str) -> int:
    hours, minutes = map(int, text.split(":"))
    return (hours * 60 + minutes) * 60_000


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"([\d.]+)(MB|KB|B)", text).groups()  # type: ignore[union-attr]
    return int(float(number) * {"MB": MB, "KB": 1024, "B": 1}[unit])


def _size(size: int) -> str:
    return f"{size / MB:.1f}".removesuffix(".0") + "MB"
