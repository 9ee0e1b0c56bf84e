"""Follows a page as a reader would: its commands, files and code, from top to bottom, in one folder.

1. A ``lakebed`` command runs in this process, through the function that the installed command calls; what else there is runs
   in a shell. One that never ends (``run`` without ``--duration``, ``fleet``, …) is a process of its own. It gets
   Ctrl-C where the page shows ``^C``, or at the end of the page, and must then end with 0. It takes any free port.
2. What a command prints must have the columns, or the first word of each line, that the page shows; digits count as equal, and
   lines that are indented, or are no more than ``…``, are not compared.
3. A file that the page names is written. A pipeline file is validated too, as ``lakebed validate`` does it; YAML without a name
   that is only a piece of one is put into the last whole one of the page.
4. Python runs in one namespace a page, which the test may fill beforehand.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakebed.cli import main
from lakebed.cli.command_line import command_parser
from lakebed.cli.commands.validate import validate
from tests.guides.pages import LANGUAGES, ROOT, Block, Command, blocks_of, commands_of
from tests.waiting import outcome, ran, wait_until, work_of

METRICS_PORT = frozenset({"run", "maintain"})
"""Commands whose port is that of the metrics."""
READY = ("running", "lakebed: metrics at", "lakebed: worker ", "http://")
_TO_SPARK = re.compile(
    r"""((load|save|parquet|forPath)\((spark, )?|"path", )"(?=\w)(?!s3)"""
)  # its JVM may be in another folder
LAKEBED = (sys.executable, "-c", "import sys; from lakebed.cli import main; sys.exit(main())")


@dataclass
class Circumstances:
    """What a page takes for granted.

    ``environment``: variables that are set; ``given``: names in its Python; ``instead``: what stands for a name of the page on
    this machine; ``sql``: runs its SQL; ``json``: takes its JSON; ``before`` and ``after``: called before and after a command;
    ``codes``: its exit code, where that is not 0; ``skips``: whether it is not run; ``installed``: the folder of the command
    ``lakebed`` that runs where a process is started, instead of this repository's. A command that the page has more than once is
    named ``command #2`` from the second time on.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    sql: Callable[[str], object] | None = None
    json: Callable[[Block, Any], object] | None = None
    before: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    after: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    skips: Callable[[Command], bool] = lambda command: False
    installed: Path | None = None


class Reader:
    """Somebody who does what a page says, in a folder."""

    def __init__(self, folder: Path, circumstances: Circumstances, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._around = circumstances
        self._monkeypatch = monkeypatch
        self._names: dict[str, Any] = dict(circumstances.given)
        self._pipeline: dict[str, Any] = {}
        self._going: list[_Going] = []
        self._seen: Counter[str] = Counter()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("LAKEBED_CACHE_DIR", str(folder / ".cache"))
        folders = [circumstances.installed or Path(sys.executable).parent, os.environ["PATH"]]
        monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
        for name, value in circumstances.environment.items():
            monkeypatch.setenv(name, value)

    def follow(self, page: str) -> None:
        """Do all that the page says. Raises AssertionError naming the line."""
        try:
            for block in blocks_of(page):
                self._take(block)
            for going in self._going:
                going.wait()
            for going in self._going:
                going.interrupt()
        finally:
            for going in self._going:
                going.kill()

    def _take(self, block: Block) -> None:
        assert block.language in LANGUAGES, f"{block}: nobody knows how to try {block.language!r}"
        match block.language:
            case "console":
                for command in commands_of(block):
                    if not self._around.skips(command):
                        self.run(command)
            case "python":
                self._python(block)
            case "yaml":
                self._yaml(block)
            case "sql":
                assert self._around.sql is not None, f"{block}: the page says no database for its SQL"
                self._around.sql(self._here(block.text))
            case "json":
                text = self._here(block.text)
                if block.file:
                    self._write(block.file, text)
                read = (
                    [json.loads(line) for line in text.splitlines()] if block.file.endswith("l") else json.loads(text)
                )
                if self._around.json is not None:
                    self._around.json(block, read)

    def run(self, command: Command) -> None:
        """Run a command and hold it against what the page shows."""
        text = self._here(command.text)
        shown = tuple(map(self._here, command.shown))
        self._seen[command.text] += 1
        key = command.text if self._seen[command.text] == 1 else f"{command.text} #{self._seen[command.text]}"
        if text.startswith("export "):
            name, _, value = shlex.split(text)[1].partition("=")
            self._monkeypatch.setenv(name, value)
            return
        arguments = _lakebed(text)
        endless = arguments is not None and is_endless(arguments)
        goes_on = endless and "--duration" not in (arguments or ())
        if not goes_on:  # two that go on start together
            for going in self._going:
                going.wait()
        self._around.before.get(key, lambda: None)()
        code: int | None
        if arguments is not None and goes_on:
            program = LAKEBED if self._around.installed is None else (str(self._around.installed / "lakebed"),)
            log = self._folder / f"going-{len(self._going)}.log"
            going = _Going(command, [*program, *_on_any_port(arguments)], log)
            self._going.append(going)
            if not command.is_interrupted:
                return
            going.wait()
            code, printed = going.interrupt(), going.printed()
        elif arguments is not None and endless:
            code, printed = _in_shell(shlex.join(["lakebed", *_on_any_port(arguments)]))
        elif arguments is not None:
            code, printed = _in_process(arguments)
        else:
            code, printed = _in_shell(text)
        assert code == self._around.codes.get(key, 0), f"{command}\nended with {code}:\n{printed}"
        compare(command, shown, printed)
        self._around.after.get(key, lambda: None)()

    def _python(self, block: Block) -> None:
        for going in self._going:
            going.wait()
        text = _TO_SPARK.sub(rf"\g<0>{self._folder}/", self._here(block.text))
        code = compile("\n" * block.line + text, str(ROOT / block.page), "exec")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, self._names)

    def _yaml(self, block: Block) -> None:
        document = yaml.safe_load(self._here(block.text))
        if (
            isinstance(document, dict)
            and "source" in document
            and not document.keys().isdisjoint({"table", "database"})
        ):
            self._pipeline = document
            file = block.file or "pipeline.yml"
            self._write(file, self._here(block.text))
        elif block.file:
            return self._write(block.file, self._here(block.text))
        else:
            assert self._pipeline, f"{block}: a piece of a pipeline file, and no whole one before it"
            file = f"piece-{block.line}.yml"
            self._write(file, yaml.safe_dump(_merged(self._pipeline, document), sort_keys=False))
        with contextlib.redirect_stdout(io.StringIO()) as said, _folder_of_files(self._pipeline):
            validate(file)
        assert "fine" in said.getvalue(), f"{block}: {said.getvalue()}"

    def _write(self, file: str, text: str) -> None:
        path = self._folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _here(self, text: str) -> str:
        for name, value in self._around.instead.items():
            text = text.replace(name, value)
        return text


class _Going:
    """A command that never ends by itself."""

    def __init__(self, command: Command, started: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        with log.open("wb") as out:
            # A group of its own, as a terminal's foreground job: Ctrl-C here must not reach the tests.
            self._process = subprocess.Popen(started, stdout=out, stderr=out, start_new_session=True)

    def printed(self) -> str:
        return self._log.read_text(errors="replace")

    def wait(self) -> None:
        """Until it is at work, and has printed what the page shows before ``^C``."""
        shown = self._command.shown
        wanted = shown[: shown.index("^C")] if "^C" in shown else ()

        def is_at_work() -> bool:
            assert self._process.poll() is None, f"{self._command}\nended by itself:\n{self.printed()}"
            return any(word in self.printed() for word in READY) and not _missing(wanted, self.printed())

        wait_until(
            is_at_work,
            lambda: f"{self._command}\nhas not printed {wanted}, but:\n{self.printed()}",
            moving=work_of(self._process.pid),
        )

    def interrupt(self) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        outcome(self._process)
        code = self._process.returncode
        assert code == 0, f"{self._command}\nended with {code}:\n{self.printed()}"
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def compare(command: Command, shown: tuple[str, ...], printed: str) -> None:
    """Raises AssertionError if a line, or a column, that the page shows is not among what was printed."""
    columns = _header(shown)
    if columns is not None:
        real = _header(tuple(printed.splitlines()))
        assert real is not None and set(columns) <= set(real), (
            f"{command}\nhas not the columns {columns}, but:\n{printed}"
        )
        return
    missing = _missing(shown, printed)
    assert not missing, f"{command}\nhas printed no line that begins with {missing}, but:\n{printed}"


def _missing(shown: tuple[str, ...], printed: str) -> list[str]:
    real = {_first_word(line) for line in printed.splitlines() if line.strip()}
    wanted = [_first_word(line) for line in shown if line.strip() and line[0] not in " …^"]
    return [word for word in wanted if word not in real]


def _first_word(line: str) -> str:
    """With the one after it, where the first is a time of day."""
    words = line.split()
    first = " ".join(words[:2]) if re.fullmatch(r"\d\d:\d\d:\d\d", words[0]) else words[0]
    return re.sub(r"[\d,.]+", "0", first)


def _header(lines: tuple[str, ...]) -> list[str] | None:
    """The columns of the first table that is printed."""
    for line, below in pairwise(lines):
        if below.startswith("───"):
            return line.split()
    return None


def _lakebed(text: str) -> list[str] | None:
    """The arguments of a command that is nothing but lakebed's."""
    words = shlex.split(text, comments=True)
    signs = shlex.shlex(text, posix=True, punctuation_chars=True)
    signs.whitespace_split = True
    has_shell = any(sign[0] in "();<>|&" for sign in signs)
    return words[1:] if words[0].removeprefix(".venv/bin/") == "lakebed" and not has_shell else None


def is_endless(arguments: list[str]) -> bool:
    """Whether the command goes on until it is stopped, and has a port. Those of ``events`` end as the pages show them."""
    if arguments[0] == "events" or arguments[0].startswith("-"):
        return False
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return bool(command_parser().parse_known_args(arguments)[0].runs_on)
        except SystemExit:
            return False


def _on_any_port(arguments: list[str]) -> list[str]:
    """The usual port may be taken here; one that the page names is the test's to replace."""
    option = "--metrics-port" if arguments[0] in METRICS_PORT else "--port"
    return arguments if option in arguments else [*arguments, option, "0"]


def _in_process(arguments: list[str]) -> tuple[int | None, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code: Any = main(arguments)
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue()


def _in_shell(text: str) -> tuple[int, str]:
    shell = ["bash", "-o", "pipefail", "-c", text]
    done = ran(shell, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


@contextlib.contextmanager
def _folder_of_files(pipeline: Mapping[str, Any]) -> Iterator[None]:
    """The folder that files come from is there: a page may show the file first, and make the folder then."""
    folder = pipeline["source"].get("folder")
    path = Path(folder) if folder and "://" not in folder else None
    is_missing = path is not None and not path.exists()
    if path is not None and is_missing:
        path.mkdir()
    yield
    if path is not None and is_missing:
        path.rmdir()


def _merged(whole: Any, piece: Any) -> Any:
    if isinstance(whole, dict) and isinstance(piece, dict):
        return {**whole, **{key: _merged(whole.get(key), value) for key, value in piece.items()}}
    return piece
