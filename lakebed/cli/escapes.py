"""Makes texts of data and errors safe for a terminal.

A terminal executes control characters: they move the cursor, hide or rewrite what was printed, set the title, or make the
terminal answer as if a person typed. Characters that change the direction of writing make one text look like another. All of
them are printed as JSON escapes, such as ``\\u001b``, so a line of JSON keeps its meaning.
"""

from __future__ import annotations

import re

_COMMANDS = r"\x00-\x1f\x7f-\x9f"
_DIRECTIONS = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_NO_CHARACTERS = r"\ud800-\udfff"  # half a pair, which no stream can encode
_UNSAFE = re.compile(f"[{_COMMANDS}{_DIRECTIONS}{_NO_CHARACTERS}]")
_UNSAFE_IN_LINES = re.compile(f"(?![\n\t])[{_COMMANDS}{_DIRECTIONS}{_NO_CHARACTERS}]")


def shown(text: str) -> str:
    """The text in one line, with control characters escaped."""
    return _UNSAFE.sub(_spelled, text)


def shown_lines(text: str) -> str:
    """The same for a text of several lines; tabs stay too."""
    return _UNSAFE_IN_LINES.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
