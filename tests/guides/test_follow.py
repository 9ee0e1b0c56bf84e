"""A page that is wrong is told so, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides.follow import Circumstances, Reader
from tests.guides.pages import blocks_of, commands_of

SIMULATION = "lakebed simulate --days 0.01 --rate 10"


def follow(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    page = folder / "page.md"
    page.write_text("\n".join(lines) + "\n")
    Reader(folder, Circumstances(), monkeypatch).follow(str(page))


def console(*lines: str) -> tuple[str, ...]:
    return ("```console", *lines, "```")


@pytest.mark.parametrize(
    "lines",
    [
        console("$ lakebed simulat --days 1"),
        console("$ lakebed status lake/nowhere"),
        console("$ false"),
        console(f"$ {SIMULATION}", "flushes   sediments", "───────────────────"),
        console("$ echo a b", "b a"),
        ("```python", "1 / 0", "```"),
        ("```yaml", "table: {path: ./t}", "source: {kind: kafko}", "```"),
        ("```sql", "select 1", "```"),
        ("```toml", "a = 1", "```"),
    ],
    ids=lambda lines: lines[1],
)
def test_what_does_not_work_fails(lines: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((Exception, SystemExit)):
        follow(tmp_path, monkeypatch, *lines)


def test_what_works_leaves_its_files_to_what_comes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(
        tmp_path,
        monkeypatch,
        *console(f"$ {SIMULATION}", "settles   9", "merges    1"),
        *console(
            "$ export NAME=Ada",
            "$ cat > a.txt <<'END'",
            "$NAME",
            "END",
            "$ cat a.txt \\",
            "    && echo $NAME",
            "$NAME",
            "Ada",
        ),
        "Two rows, `rows.jsonl`:",
        *("```json", '{"id": 1}', '{"id": 2}', "```"),
        *("```python", "assert len(open('rows.jsonl').readlines()) == 2", "number = 1", "```"),
        *("- with an indent", "  ```python", "  assert number == 1", "  ```"),
    )


def test_a_command_ends_where_the_next_one_begins() -> None:
    [block] = blocks_of(
        "page.md", "\n".join(console("$ a \\", "  b", "said", "$ c <<'X'", "$ no command", "X", "", "^C"))
    )
    first, second = commands_of(block)
    assert (first.text, first.shown, first.where) == ("a \\\n  b", ("said",), "page.md:2")
    assert (second.text, second.shown) == ("c <<'X'\n$ no command\nX", ("", "^C"))
    assert second.is_interrupted
