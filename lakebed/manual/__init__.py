"""The documentation and the example pipelines, as files of the package: whoever has only the wheel has them too.

The folder is laid out like the repository (``docs``, ``examples``, ``README.md``, ``CHANGELOG.md``), so links between
pages work in both. In the repository its entries are symbolic links.
"""

from __future__ import annotations

from pathlib import Path

from lakebed.errors import InvalidInput
from lakebed.settings import suggest

FOLDER = Path(__file__).parent
_DOCS = FOLDER / "docs"
_EXAMPLES = FOLDER / "examples"


def pages() -> dict[str, Path]:
    """Every page of the documentation by its name, such as ``runbook`` or ``guides/faq``."""
    found = sorted(_DOCS.glob("*.md")) + sorted(_DOCS.glob("*/*.md"))
    return {path.relative_to(_DOCS).with_suffix("").as_posix(): path for path in found}


def examples() -> dict[str, Path]:
    """Every example pipeline by its name."""
    return {path.stem: path for path in sorted(_EXAMPLES.glob("*.yml"))}


def title(path: Path) -> str:
    """The first line of a page or an example, without its mark."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def text(path: Path, section: str = "") -> str:
    """A page, or the section of it whose link is ``#section``. Raises InvalidInput if the page has none such."""
    content = path.read_text(encoding="utf-8")
    if not section:
        return content
    sections = _sections(content)
    if section not in sections:
        raise InvalidInput(f"{path.name} has no section {section!r}{suggest(section, sections)}")
    return sections[section]


def _sections(content: str) -> dict[str, str]:
    """The sections of a page by their links; one holds those below it."""
    headings: list[tuple[int, int, str]] = []
    lines = content.splitlines(keepends=True)
    fenced = False
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        marks = len(line) - len(line.lstrip("#"))
        if marks and not fenced and line[marks : marks + 1] == " ":
            headings.append((number, marks, anchor(line[marks:])))
    found: dict[str, str] = {}
    for index, (start, depth, link) in enumerate(headings):
        ends = (number for number, marks, _ in headings[index + 1 :] if marks <= depth)
        found.setdefault(link, "".join(lines[start : next(ends, len(lines))]))
    return found


def anchor(heading: str) -> str:
    """What a link to a heading of a page ends with."""
    kept = (character for character in heading.strip().lower() if character.isalnum() or character in "_- ")
    return "".join(kept).replace(" ", "-")
