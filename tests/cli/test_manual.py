"""The wheel alone is enough to read the documentation and to start from an example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest

from lakebed import manual
from lakebed.cli import main
from tests.infra.downloads import REPOSITORY, lakebed_wheel


def broken_links(folder: Path) -> list[str]:
    """Relative links of the Markdown files below a folder that lead to no file, or to no section of one."""
    broken = []
    for page in sorted({*folder.glob("*.md"), *folder.glob("docs/*.md"), *folder.glob("docs/*/*.md")}):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in link:
                continue
            file, _, section = unquote(link).partition("#")
            target = Path(os.path.normpath(page.parent / file)) if file else page
            inside = target.is_relative_to(folder) and target.exists()
            if not inside or (section and not has_section(target, section)):
                broken.append(f"{page.relative_to(folder)}: {link}")
    return broken


def has_section(page: Path, section: str) -> bool:
    return section in [manual.anchor(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)]


def test_every_link_of_a_page_leads_to_a_file_that_the_package_has() -> None:
    assert broken_links(manual.FOLDER) == []


def test_no_page_stands_in_the_repository_twice() -> None:
    pages = [path for path in manual.FOLDER.iterdir() if path.suffix != ".py" and path.name != "__pycache__"]
    assert {path.name for path in pages if path.is_symlink()} == {"CHANGELOG.md", "README.md", "docs", "examples"}
    assert all(path.is_symlink() for path in pages)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text("# Page\n[a](other.md) [b](#nothing) [c](#page) [d](../../outside.md)")
    assert broken_links(tmp_path) == [
        "docs/page.md: other.md",
        "docs/page.md: #nothing",
        "docs/page.md: ../../outside.md",
    ]


def test_docs_without_a_page_lists_all_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["runbook"] == "Runbook"
    assert lines["guides/getting-started"] == "Getting started"


def test_docs_prints_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("runbook", "docs/runbook.md"):
        assert main(["docs", name]) == 0
        assert capsys.readouterr().out == (REPOSITORY / "docs/runbook.md").read_text()


def test_docs_prints_one_section_with_those_below_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n## One, two\na\n### Three\n```\n# no heading\n## One\n```\n## Four\nb\n")
    assert manual.text(page, "one-two") == "## One, two\na\n### Three\n```\n# no heading\n## One\n```\n"
    assert manual.text(page, "four") == "## Four\nb\n"
    assert manual.text(page, "page") == page.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("docs", "runbok"), "there is no page 'runbok'; did you mean 'runbook'?"),
        (("docs", "runbook#lakebedtailolt"), "no section 'lakebedtailolt'; did you mean 'lakebedtailold'?"),
        (("docs", "../README"), "there is no page '../README'"),
        (("docs", "examples/x"), "there is no example 'examples/x'"),
    ],
)
def test_what_the_package_does_not_have_is_named(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("name", manual.examples())
def test_an_example_is_printed_as_it_is_and_is_valid(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inbox" / "products").mkdir(parents=True)
    assert main(["docs", f"examples/{name}"]) == 0
    file = tmp_path / f"{name}.yml"
    file.write_text(capsys.readouterr().out)
    assert file.read_text() == (REPOSITORY / f"examples/{name}.yml").read_text()
    assert main(["validate", str(file)]) == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_wheel_works_in_an_empty_folder_without_the_repository(tmp_path: Path) -> None:
    installed, here = tmp_path / "installed", tmp_path / "here"
    here.mkdir()
    with zipfile.ZipFile(lakebed_wheel()) as wheel:
        wheel.extractall(installed)
    for part in installed.glob("*.data/purelib/*"):  # where a wheel with compiled parts has the rest
        part.rename(installed / part.name)
    environment = {**os.environ, "PYTHONPATH": str(installed)}

    def lakebed(*arguments: str) -> str:
        code = "import sys, lakebed.cli; print(lakebed.__file__, file=sys.stderr); sys.exit(lakebed.cli.main())"
        command = [sys.executable, "-P", "-c", code, *arguments]
        done = subprocess.run(command, cwd=here, env=environment, check=True, capture_output=True, text=True)
        assert done.stderr.startswith(str(installed)), "it is the repository's package that ran"
        return done.stdout

    assert broken_links(installed / "lakebed/manual") == []
    (here / "orders.yml").write_text(lakebed("docs", "examples/orders"))
    assert "order_id" in lakebed("validate", "orders.yml")
    assert lakebed("docs", "runbook#lakebedtailold").startswith("## LakebedTailOld")
    lakebed("export", "dashboards", "boards")
    assert (
        str(here / "boards/lakebed-manual/docs/runbook.md#lakebedtailold")
        in (here / "boards/prometheus/alerts.yaml").read_text()
    )


def test_the_license_file_is_the_one_that_the_package_names() -> None:
    assert 'license = "Apache-2.0"' in (REPOSITORY / "pyproject.toml").read_text()
    assert (REPOSITORY / "LICENSE").read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]
