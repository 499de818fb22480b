"""A headless Chromium driven by Playwright: a page, what it complained about and asked for."""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def find_chromium() -> str | None:
    """The browser's path; None if there is none on this machine, or nothing to drive it."""
    if importlib.util.find_spec("playwright") is None:
        return None
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def open_browser() -> Iterator["Browser"]:
    """Starts the machine's own browser with a fresh profile, and ends it afterwards."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=find_chromium(), args=_FLAGS)


class Page:
    """One tab. `problems` and `requests` gather what the page complains about and asks for."""

    def __init__(self, tab: "Tab") -> None:
        self.tab = tab
        self.problems: list[str] = []
        self.requests: list[str] = []
        tab.on("console", lambda message: self.problems.append(message.text))
        tab.on("pageerror", lambda error: self.problems.append(str(error)))
        tab.on("request", lambda request: self._note(request.url))

    def _note(self, address: str) -> None:
        if not address.startswith("data:"):  # whose content is inside the address
            self.requests.append(address)

    def load(self, address: str) -> None:
        """Opens an address and waits until all of it is there."""
        self.problems.clear()
        self.requests.clear()
        self.tab.goto(address, wait_until="load")

    def resize(self, width: int, height: int = 900) -> None:
        self.tab.set_viewport_size({"width": width, "height": height})

    def colour_scheme(self, scheme: str) -> None:
        self.tab.emulate_media(color_scheme=scheme)

    def evaluate(self, script: str) -> Any:
        return self.tab.evaluate(script)
