"""A headless Chromium for tests of interactive pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

from tests.waiting import PATIENCE

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""The browser of this machine, or None."""


@contextmanager
def chromium(width: int, height: int) -> Iterator[Page]:
    """Yield a page in a window of this size, without network; errors of its scripts fail the test."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            timeout=1000 * PATIENCE,
        )
        page = browser.new_context(
            viewport={"width": width, "height": height}, offline=True
        ).new_page()
        page.set_default_timeout(1000 * PATIENCE)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        yield page
        browser.close()
    assert not errors, "\n".join(errors)
