"""Names of files: how they are spelled, which are hidden, which a pattern selects, and what folders named like partitions say.

A file has a URL, in the spelling of Spark: ``file:///in/a%20b.json``, ``s3a://bucket/in/a%20b.json``. The log of a table knows
files by it (``files_read``), and records have it as their topic. It is valid text, whatever bytes the name has.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from urllib.parse import quote, unquote_to_bytes

from lakebed.errors import InvalidInput

_PLAIN = re.compile(r"[A-Za-z0-9_\-.!~'()*:@&=+$,;/]+")
_GLOB = frozenset("*?[{")
_NULL = "__HIVE_DEFAULT_PARTITION__"


def quoted(path: str) -> str:
    """A path as it stands in a URL, in Spark's spelling: the log has digests of it. Letters of all scripts stay as they are."""
    if _PLAIN.fullmatch(path):
        return path
    return "".join(map(_quoted_character, path))


def unquoted(text: str) -> str:
    """The reverse of ``quoted``; bytes that are no UTF-8 become what the system's file names have in their place."""
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape") if "%" in text else text


def _quoted_character(character: str) -> str:
    if character < "\x80":
        return character if _PLAIN.fullmatch(character) else f"%{ord(character):02X}"
    is_space_or_control = unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cs")
    return quote(character.encode("utf-8", "surrogateescape")) if is_space_or_control else character


def shown(url: str) -> str:
    """A URL as people write the path, in messages."""
    path = unquoted(url).encode("utf-8", "backslashreplace").decode()
    return (
        "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path.replace("s3a://", "s3://", 1)
    )


def is_hidden(name: str) -> bool:
    """Whether Spark takes a file or a folder for one of another program: hidden, temporary, or about other files."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def has_pattern(text: str) -> bool:
    """Whether a text has a character that patterns have."""
    return not _GLOB.isdisjoint(text)


def pattern_of(glob: str) -> re.Pattern[str]:
    """A pattern of Hadoop's for names: ``*``, ``?``, ``[a-c]``, ``[^a]``, ``{one,other}``; a backslash before a character.

    Raises InvalidInput for a pattern that does not end what it begins.
    """
    out, depth, at = [], 0, 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "\\" and at < len(glob):
            out.append(re.escape(glob[at]))
            at += 1
        elif character in "*?":
            out.append(".*" if character == "*" else ".")
        elif character == "[":
            end = glob.find("]", at + 1 + (glob[at : at + 1] in ("^", "!")))
            if end < 0:
                raise InvalidInput(f"the pattern {glob!r} has a '[' without its ']'; write '\\[' for the character")
            inside = glob[at:end].replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"[^{inside[1:]}]" if inside[0] in "^!" else f"[{inside}]")
            at = end + 1
        elif character == "{":
            out.append("(?:")
            depth += 1
        elif character == "}" and depth:
            out.append(")")
            depth -= 1
        else:
            out.append("|" if character == "," and depth else re.escape(character))
    if depth:
        raise InvalidInput(f"the pattern {glob!r} has a '{{' without its '}}'; write '\\{{' for the character")
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as error:
        raise InvalidInput(f"the pattern {glob!r} can't be used: {error}") from None


def is_partition(name: str) -> bool:
    """Whether a folder is named like a partition: ``day=2026-01-31``."""
    column, sign, _ = name.partition("=")
    return bool(column and sign)


def partition_values(path: str) -> Mapping[str, str | None]:
    """What the folders of a path say, by column; ``path``: from the folder of the source on."""
    pairs = (unquoted(each).split("=", 1) for each in path.split("/")[:-1] if is_partition(each))
    return {column: None if value == _NULL else value for column, value in pairs}
