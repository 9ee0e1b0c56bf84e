"""Texts of data and errors made safe for a terminal.

A terminal obeys control characters: it moves the cursor, hides or rewrites what was printed, sets its title, answers as if
typed. Characters that turn the direction of writing make a text look like another. All of them are shown as ``\\u001b``, the
spelling of JSON, so that a line of JSON stays what it was.
"""

from __future__ import annotations

import re

_COMMANDS = r"\x00-\x1f\x7f-\x9f"
_DIRECTIONS = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_NO_CHARACTERS = r"\ud800-\udfff"  # half a pair, which no stream can encode
_UNSAFE = re.compile(f"[{_COMMANDS}{_DIRECTIONS}{_NO_CHARACTERS}]")
_UNSAFE_IN_LINES = re.compile(f"(?![\n\t])[{_COMMANDS}{_DIRECTIONS}{_NO_CHARACTERS}]")


def shown(text: str) -> str:
    """The text in one line, control characters spelled out."""
    return _UNSAFE.sub(_spelled, text)


def shown_lines(text: str) -> str:
    """The same for a text of several lines; tabs stay too."""
    return _UNSAFE_IN_LINES.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
