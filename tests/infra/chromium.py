"""A real headless Chromium for the tests of the page, driven by Playwright.

The browser is one on PATH, or else Debian's package ``chromium-headless-shell`` with what this machine lacks of the libraries it
needs, unpacked under ``.build/``: nothing is installed. Its profile is new each time, and it talks to nobody but the page.

    with browser() as chromium:
        page = chromium.new_page()
        page.goto(url)
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.infra.downloads import fetch_once, libraries_of, unpack_packages

PACKAGES = ("chromium-headless-shell", "fonts-liberation")
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--force-color-profile=srgb", "--font-render-hinting=none",
)  # fmt: skip


def chromium() -> tuple[Path, dict[str, str]]:
    """The browser's program, and the environment that it needs."""
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return Path(found), {}
    root = fetch_once("chromium", " ".join(PACKAGES).encode(), _unpack)
    return root / "usr" / "lib" / "chromium" / "chromium-headless-shell", {
        "LD_LIBRARY_PATH": libraries_of(root),
        "FONTCONFIG_FILE": str(root / "fonts.conf"),
    }


def _unpack(staging: Path) -> None:
    missing = f"none of {', '.join(PROGRAMS)} is on PATH: install Chromium or Chrome"
    unpack_packages(PACKAGES, staging, missing)
    # Only these fonts, so that pictures are the same on every machine.
    (staging / "fonts.conf").write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        '<dir prefix="relative">usr/share/fonts</dir><cachedir prefix="xdg">fontconfig</cachedir>'
        "<alias><family>monospace</family><prefer><family>Liberation Mono</family></prefer></alias>"
        '<match target="pattern"><edit name="family" mode="append_last"><string>Liberation Sans</string></edit></match>'
        "</fontconfig>"
    )


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser until the block ends."""
    program, environment = chromium()
    with tempfile.TemporaryDirectory(prefix="lakebed-chromium-") as home, sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=program,
            args=list(ARGUMENTS),
            env={**os.environ, **environment, "HOME": home, "XDG_CACHE_HOME": home, "XDG_CONFIG_HOME": home},
        )
        try:
            yield launched
        finally:
            launched.close()
