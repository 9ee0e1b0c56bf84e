"""The page of table events has every type with its fields, and its text."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

from lakebed.listeners.event_types import EVENT_TYPES, TableEvent, kind_of_event

PAGE = (Path(__file__).resolve().parents[2] / "docs/events.md").read_text()
COMMON = [each.name for each in fields(TableEvent)]


def row(event: type[TableEvent]) -> str:
    own = ", ".join(f"`{each.name}`" for each in fields(event) if each.name not in COMMON)
    commented = re.findall(r"^    (\w+): [^#\n]+# (.+)$", inspect.getsource(event), re.MULTILINE)
    said = "; ".join(f"`{name}`: {comment}" for name, comment in commented)
    text = " ".join((inspect.getdoc(event) or "").split()) + (f" {said}." if said else "")
    return f"| `{kind_of_event(event)}` | {own} | {text.replace('``', '`')} |"


def test_the_page_has_each_type_with_its_fields_and_what_they_are() -> None:
    rows = re.findall(r"^\| `\w+` \|[^|\n]*\|[^|\n]*\|$", PAGE, re.MULTILINE)
    assert rows == [row(event) for event in EVENT_TYPES]


def test_the_page_has_the_fields_of_all_events() -> None:
    assert re.findall(r"^\| `(\w+)` \| [^|\n]*\|$", PAGE, re.MULTILINE) == COMMON
