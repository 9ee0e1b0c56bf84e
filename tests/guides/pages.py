"""The fenced blocks of a Markdown page, and the commands of those that show a terminal.

1. A block has the language after its fence, and the name of a file if the line before it names one: ``orders.yml``:
2. In a ``console`` block a line that begins with ``$ `` is a command; ``\\`` at its end continues it, and so does what follows a
   ``<<'END'`` up to that word. The lines until the next command are what it prints. A line ``^C`` among them is Ctrl-C.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = frozenset({"", "console", "python", "yaml", "sql", "json"})
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
_FILE = re.compile(r"`([\w./-]+\.(?:ya?ml|json|jsonl))`[^`]*$")
_HERE = re.compile(r"<<'(\w+)'")
_BEGIN = re.compile(r"^\$ (.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """``line``: of the fence, from 1. ``file``: the name that the line before the block gives it, or nothing."""

    page: str
    line: int
    language: str
    text: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """``shown``: the lines that the page prints below it."""

    where: str
    text: str
    shown: tuple[str, ...]

    @property
    def is_interrupted(self) -> bool:
        return "^C" in self.shown

    def __str__(self) -> str:
        return f"{self.where}: $ {self.text}"


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    """All fenced blocks of a page (a path from the root of the repository), in order."""
    lines = (text if text is not None else (ROOT / page).read_text(encoding="utf-8")).splitlines()
    found, number = [], 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        number += 1
        if fence is None:
            continue
        start, indent = number, fence["indent"]
        while lines[number].rstrip() != f"{indent}```":
            number += 1
        before = next((line for line in reversed(lines[: start - 1]) if line.strip()), "")
        named = _FILE.search(before)
        body = "".join(line.removeprefix(indent) + "\n" for line in lines[start:number])
        found.append(Block(page, start, fence["language"], body, named[1] if named else ""))
        number += 1
    return found


def commands_of(block: Block) -> list[Command]:
    """The commands of a ``console`` block, in order."""
    commands: list[tuple[int, list[str], list[str]]] = []
    lines = block.text.splitlines()
    number = 0
    while number < len(lines):
        begins = _BEGIN.match(lines[number])
        if begins is None:
            if commands:
                commands[-1][2].append(lines[number])
        else:
            text = [begins[1]]
            commands.append((block.line + number + 1, text, []))
            until = _HERE.search(begins[1])
            while text[-1].endswith("\\") or (until and (len(text) == 1 or text[-1] != until[1])):
                number += 1
                text.append(lines[number])
        number += 1
    return [Command(f"{block.page}:{line}", "\n".join(text), tuple(shown)) for line, text, shown in commands]
