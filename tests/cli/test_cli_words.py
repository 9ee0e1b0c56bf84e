"""The words of the command: every text names commands and options that exist, every command has an example that is one, and
words of other systems lead to the right command.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lakebed.cli.command_line import GROUPS, TOPICS, command_parser
from lakebed.cli.parser import OTHER_WORDS, Parser
from tests.infra.downloads import REPOSITORY

TEXTS = ("lakebed", "docs", "deploy", "examples", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks")
KINDS = {".md", ".py", ".js", ".html", ".json", ".yml", ".yaml", ".txt", ".tpl", ".sh", ""}
NOUNS = {"tables", "commits", "merge"}
"""Words that may follow ``lakebed`` in a sentence, where it is the subject."""
OURS = re.compile(r"^[a-z][a-z-]*$")


def parsers(parser: Parser, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Every command that is no family, by its words."""
    if not parser.family():
        yield words, parser
    for name, each in parser.family().items():
        yield from parsers(each, (*words, name))


ROOT = command_parser()
ALL = dict(parsers(ROOT))


def spans(text: str) -> Iterator[str]:
    """What a text says in the words of the command: code in backticks, lines of a console, and arguments in quotation marks."""
    yield from re.findall(r"`(lakebed\s[^`]+)`", text)
    yield from re.findall(r"^\s*(?:\$ |# )?(?:\.venv/bin/)?(lakebed [a-z][^\n]*)", text, re.MULTILINE)
    # In a message: up to what can be no more of the command.
    yield from re.findall(
        r"(?<!from)(?<!python)[ (](lakebed [a-z]+(?:-[a-z]+)*(?: [a-z]+(?:-[a-z]+)*)?(?: --[a-z-]+)*)", text
    )


def wrong(span: str, *, is_code: bool) -> str | None:
    """What is wrong with a command in a text, if anything; in a sentence, only a word that once was one."""
    words = re.sub(r"\s+", " ", span).split(" ")[1:]
    parser, at = ROOT, 0
    while parser.family() and at < len(words) and words[at] in parser.family():
        parser, at = parser.family()[words[at]], at + 1
    if at == 0:
        word = words[0].strip(".,;:)")
        return f"no command {word!r}" if word in OTHER_WORDS.keys() - NOUNS or (is_code and OURS.match(word)) else None
    if parser.family() and at < len(words) and is_code and OURS.match(words[at]):
        return f"no command {words[at]!r}"
    for word in words[at:]:
        if word in ("|", "&&", ">", "#", "and", "or"):
            break
        option = re.match(r"\[?(--[a-z][a-z-]*)", word)
        if option and not parser.has_option(option[1]):
            return f"no option {option[1]}"
    return None


def texts() -> Iterator[tuple[str, str]]:
    for name in TEXTS:
        place = REPOSITORY / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and not path.is_symlink() and path.suffix in KINDS and "manual" not in path.parts:
                yield str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8", errors="replace")


def found(text: str) -> Iterator[str]:
    """The commands in a text that are none."""
    joined = re.sub(r"\"\s*\n\s*f?\"", "", text)  # a message of several lines in Python
    for span in spans(joined):
        is_code = f"`{span}" in joined or f"$ {span}" in joined
        if (reason := wrong(span, is_code=is_code)) is not None:
            yield f"{' '.join(span.split())}: {reason}"


def test_every_text_names_commands_and_options_that_exist() -> None:
    assert [f"{name}: {each}" for name, text in texts() for each in found(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "`lakebed vacuum t`",
        "$ lakebed show timeline t",
        "`lakebed clean t --onyl vacuum`",
        "see lakebed compactions",
        "`lakebed\ntoken x`",
    ],
)
def test_a_text_with_a_command_that_does_not_exist_is_found(text: str) -> None:
    assert list(found(text))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_has_a_short_help_with_an_example_that_is_one(words: tuple[str, ...]) -> None:
    text = ALL[words].format_help()
    [example] = re.findall(r"example:\n  lakebed (.*)\n", text)
    options, others = ROOT.parse_known_args(shlex.split(example))
    assert (options.parser, others) == (ALL[words], [])
    assert "stack trace" not in text and "exit codes" not in text


def test_help_lists_every_command_once_within_a_terminal() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted([*listed, "help"]) == sorted(ROOT.family())
    assert max(map(len, ROOT.format_help().splitlines())) <= 80
    assert len(ROOT.family()) <= 28


@pytest.mark.parametrize("topic", TOPICS)
def test_help_explains_a_topic_once(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    from lakebed.cli import main

    assert main(["help", topic]) == 0
    assert capsys.readouterr().out.startswith(TOPICS[topic].splitlines()[0])
    with pytest.raises(SystemExit, match="0"):
        main(["help", "show", "parts"])
    assert "lakebed show parts lake/orders" in capsys.readouterr().out


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_another_word_leads_to_a_command_that_exists(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert word not in ROOT.family()
    if OTHER_WORDS[word] != "docs examples":
        assert wrong(f"lakebed {OTHER_WORDS[word]}", is_code=True) is None
    with pytest.raises(SystemExit, match="2"):
        ROOT.parse_args([word, "lake"])
    assert f"`lakebed {word}` is `lakebed {OTHER_WORDS[word]}`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("show timeline t", "`lakebed show timeline` is `lakebed show commits`"),
        ("doctor t", "`lakebed doctor` is `lakebed verify --self`"),
        ("fleet run t", "`lakebed fleet` is `lakebed maintain`"),
        ("show partz t", "'partz' is none of figures, parts, "),
        ("show partz t", "did you mean parts?"),
        ("show lake/orders", "'lake/orders' is none of figures"),
        ("serve ui lake", "`lakebed serve ui` is `lakebed serve page`"),
        ("show", "name one of figures, parts"),
        ("clean t --only vacum", "did you mean vacuum?"),
    ],
)
def test_a_wrong_word_gets_the_right_one(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    from lakebed.cli import main

    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    assert said in capsys.readouterr().err


def completed(line: str) -> set[str]:
    """What a shell would offer at the end of a line."""
    program = "import sys; from lakebed.cli import main; sys.exit(main())"
    read, write = os.pipe()
    around = os.environ | {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": f"/dev/fd/{write}",
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", program], env=around, pass_fds=[write], check=True, stdin=subprocess.DEVNULL)
    os.close(write)
    with open(read) as answer:
        return {each.strip() for each in answer.read().split("\n")}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("lakebed qu", {"query", "quarantine"}),
        ("lakebed show cl", {"claims", "clustering"}),
        ("lakebed clean t --on", {"--only"}),
    ],
)
def test_a_shell_completes_a_command_a_sub_command_and_an_option(line: str, offered: set[str]) -> None:
    assert completed(line) == offered


def test_a_parser_waits_for_no_engine() -> None:
    program = (
        "import sys; from lakebed.cli.command_line import command_parser; command_parser();"
        "print([each for each in ('pyarrow', 'duckdb', 'pyspark', 'rich.console', 'yaml') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
