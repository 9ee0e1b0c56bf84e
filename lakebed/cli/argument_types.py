"""What arguments of the command are read as: numbers within bounds, and ports."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Literal


def positive(text: str) -> float:
    """A number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def up_to(most: float) -> Callable[[str], float]:
    """Numbers above 0 up to this one."""

    def number(text: str) -> float:
        if (value := positive(text)) > most:
            raise argparse.ArgumentTypeError(f"{text} is more than {most:,.0f}")
        return value

    return number


def count(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def ratio(text: str) -> float:
    """A number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def port_or_file(text: str) -> int | Literal["file"] | None:
    """A port, None for off, or ``file`` for the port in the pipeline file."""
    if text == "off":
        return None
    if text == "file":
        return "file"
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a port, nor 'off' or 'file'")
    return int(text)


def some_port(text: str) -> int:
    """A port; 0 is any."""
    port = port_or_file(text)
    if not isinstance(port, int):
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return port
