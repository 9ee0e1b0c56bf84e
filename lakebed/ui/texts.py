"""Makes texts from elsewhere fit to be shown: bounded, without credentials, and valid in JSON."""

from __future__ import annotations

import re
from typing import Any

_TEXT_MAX = 300
_HIDDEN = "***"
_LOOKED_AT = 8_000  # much more than is shown, so a secret that is cut in two here is never shown
_ITEMS_MAX = 50
_SECRET = r"passw|secret|token|credential|signature|api[._-]?key|access[._-]?key"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_SURROGATE = re.compile("[\udc80-\udcff]")
_USER_OF_URL = re.compile(r"(://)[^/\s@]{1,2000}@")
_SECRET_VALUE = re.compile(rf"((?:{_SECRET})[\w.-]{{0,40}}[\"']?\s?[=:]\s?)([\"']?)[^\s\"',&;}}]+", re.IGNORECASE)


def cut(text: str, most: int = _TEXT_MAX) -> str:
    """The text, cut off if it has more than ``most`` characters."""
    return utf8(text if len(text) <= most else text[: most - 1] + "…")


def utf8(text: str) -> str:
    """The text, with U+FFFD in place of bytes of a path that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if _SURROGATE.search(text) else text


def blotted(text: str) -> str:
    """The text without the user of a URL, and without values whose names suggest that they are secret."""
    return _SECRET_VALUE.sub(rf"\1\2{_HIDDEN}", _USER_OF_URL.sub(rf"\1{_HIDDEN}@", text[:_LOOKED_AT]))


def shown(value: Any) -> Any:
    """A value of a commit as JSON: texts without credentials, and everything bounded."""
    match value:
        case str():
            return cut(blotted(value))
        case dict():
            items = list(value.items())[:_ITEMS_MAX]
            return {cut(str(name)): _HIDDEN if _SECRET_NAME.search(str(name)) else shown(item) for name, item in items}
        case list() | tuple():
            return [shown(item) for item in value[:_ITEMS_MAX]]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case None | bool() | int() | float():
            return value
        case _:
            return cut(blotted(str(value)))
