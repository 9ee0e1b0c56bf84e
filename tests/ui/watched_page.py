"""A page in a browser whose every complaint, and every request to anybody but loopback, fails the test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from playwright.sync_api import Browser, Page

TIMEOUT_MS = 120_000


@contextmanager
def watched_page(chromium: Browser, expected: Sequence[str]) -> Iterator[Page]:
    """``expected``: parts of what a browser logs of itself about answers that the tests of the page cause."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(TIMEOUT_MS)
    wrong: list[str] = []
    opened.on("console", lambda message: message.type in ("error", "warning") and wrong.append(message.text))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda request: request.url.startswith("http://127.0.0.1:") or wrong.append(request.url))
    yield opened
    context.close()
    assert not [text for text in wrong if not any(each in text for each in expected)]
