"""Names of columns in the texts of options. A name that has the sign between two of them is quoted with backticks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lakebed.errors import InvalidInput

_QUOTED = re.compile(r"`(?:[^`]|``)+`")


def pairs(texts: Sequence[str], sign: str, what: str, *, form: str) -> dict[str, str]:
    """``name:type`` or ``name=text``, by the name as it is written. Raises InvalidInput, which shows ``form``."""
    out: dict[str, str] = {}
    for text in texts:
        name, *rest = pieces(text, sign, 1)
        if not rest or not name.strip():
            raise InvalidInput(f"{what} is {text!r}; write {form}")
        if name.strip() in out:
            raise InvalidInput(f"{what} names {name.strip()!r} twice")
        out[name.strip()] = rest[0].strip()
    return out


def pieces(text: str, sign: str, cuts: int = -1) -> list[str]:
    """The text cut at a sign, but not within backticks. ``cuts``: at most so many, from the left."""
    ends = [len(piece) for piece in without_names(text).split(sign, cuts)]
    out, start = [], 0
    for length in ends:
        out.append(text[start : start + length])
        start += length + len(sign)
    return out


def without_names(text: str) -> str:
    """The text with backticks in place of the names that are quoted with them; as long as before."""
    return _QUOTED.sub(lambda quoted: "`" * len(quoted[0]), text)


def plain(name: str) -> str:
    """The name without its backticks, if it is quoted."""
    return name[1:-1].replace("``", "`") if _QUOTED.fullmatch(name) else name
