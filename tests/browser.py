"""A headless Chromium over its DevTools pipe: just enough to look at a page, without a driver."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions",
    "--remote-debugging-pipe",
)  # fmt: skip
_PATIENCE = 60.0


def find_chromium() -> str | None:
    """The browser's path; None if there is none on this machine."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def open_page(profile: Path) -> Iterator["Page"]:
    """Starts a browser with a fresh profile and one empty page, and ends it afterwards."""
    chromium = find_chromium()
    assert chromium
    # The browser reads commands from its descriptor 3 and writes answers to its descriptor 4.
    command_read, command_write = _pipe()
    answer_read, answer_write = _pipe()
    wrapper = f'exec "$@" 3<&{command_read} 4>&{answer_write}'
    arguments = [chromium, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", wrapper, "chromium", *arguments],
        pass_fds=(command_read, answer_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_read)
    os.close(answer_write)
    try:
        yield Page(command_write, answer_read)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(command_write)
        os.close(answer_read)


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are clear of the browser's two."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in low)
    for one in low:
        os.close(one)
    return high


class Page:
    """One tab. `problems` and `requests` gather what the page complains about and asks for."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @property
    def problems(self) -> list[str]:
        """Errors and warnings on the console, and exceptions nobody caught."""
        found = []
        for event in self.events:
            inner = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(inner["exceptionDetails"]))
            if event["method"] == "Log.entryAdded":
                found.append(inner["entry"]["text"])
            if event["method"] == "Runtime.consoleAPICalled":
                found.append(json.dumps(inner["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for, without those whose content is inside the address."""
        sent = [one for one in self.events if one["method"] == "Network.requestWillBeSent"]
        urls = [one["params"]["request"]["url"] for one in sent]
        return [url for url in urls if not url.startswith("data:")]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def load(self, address: str) -> None:
        """Opens an address and waits until all of it is there."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def resize(self, width: int, height: int = 900) -> None:
        """Sets the size of the window's inside."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def colour_scheme(self, scheme: str) -> None:
        """Prefers light or dark."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """The page as a picture."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            chunk = os.read(self._answers, 1 << 20)
            assert chunk, "the browser has gone"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
