"""A real headless Chromium, driven over its debugging pipe: pages from files, what they log, clicks, screenshots."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 120.0  # for an answer, on a machine that does much else


def found_chromium() -> str:
    """The browser's program. Skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"needs a Chromium in PATH ({', '.join(NAMES)}); on Debian: apt-get install chromium")
    return found


class Page:
    """One page. `messages`: what it logged, its exceptions, what its policy refused; `requests`: what it asked for."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.loaded = False
        browser.pages[session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.ask(method, params, self._session)

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Have this size, in pixels, and colours."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, place: Path | str) -> float:
        """Open a file or an address, and return the seconds until it has drawn itself."""
        self.loaded, started = False, time.monotonic()
        self.ask("Page.navigate", url=place.resolve().as_uri() if isinstance(place, Path) else place)
        while not self.loaded:
            self._browser.read()
        self.settle()
        return time.monotonic() - started

    def settle(self) -> None:
        """Wait until what is under way is drawn."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def wait_for(self, code: str) -> None:
        """Wait until an expression in the page is true."""
        ends = time.monotonic() + SECONDS
        while not self.js(code):
            assert time.monotonic() < ends, f"never true: {code}"
            time.sleep(0.02)

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": {"Escape": 27, "Enter": 13}[key]}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def js(self, code: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Send an event of the mouse: `mousePressed`, `mouseMoved`, `mouseReleased`."""
        held = int(kind != "mouseReleased")
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=held, clickCount=1)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag with the left button."""
        self.mouse("mousePressed", *start)
        self.mouse("mouseMoved", *end)
        self.mouse("mouseReleased", *end)
        self.settle()

    def screenshot(self, to: Path, *, whole: bool = False) -> None:
        """Write a PNG of what is in view, or of the whole page."""
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        to.write_bytes(base64.b64decode(answer["data"]))

    def see(self, event: dict[str, Any]) -> None:
        """Keep an event."""
        params = event["params"]
        if event["method"] == "Page.loadEventFired":
            self.loaded = True
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event["method"] == "Runtime.consoleAPICalled":
            self.messages.append(f"{params['type']}: {[one.get('value') for one in params['args']]}")
        elif event["method"] == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(params["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded":
            self.messages.append(params["entry"]["text"])
        elif event["method"] == "Page.javascriptDialogOpening":
            self.messages.append(f"dialog: {params['message']}")


class Browser:
    """The process. Messages are JSON, each ended by a zero byte."""

    def __init__(self, program: str, folder: Path) -> None:
        in_read, self._write = os.pipe()
        self._read, out_write = os.pipe()
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        # Chromium reads from 3 and writes to 4
        shell = f'exec "$@" 3<&{in_read} 4>&{out_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "-", *command],
            pass_fds=(in_read, out_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(in_read)
        os.close(out_write)
        self._number, self._rest = 0, b""
        self._answers: dict[int, dict[str, Any]] = {}
        self.pages: dict[str, Page] = {}

    def ask(self, method: str, params: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        number = self._number
        call = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(call).encode() + b"\0")
        while number not in self._answers:
            self.read()
        answer = self._answers.pop(number)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def read(self) -> None:
        """Read some messages. Fails if none arrives."""
        ready, _, _ = select.select([self._read], [], [], SECONDS)
        assert ready, "Chromium does not answer"
        data = os.read(self._read, 1 << 20)
        assert data, "Chromium has ended"
        *whole, self._rest = (self._rest + data).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif page := self.pages.get(message.get("sessionId", "")):
                page.see(message)

    def page(self) -> Page:
        """A new, empty page."""
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        return Page(self, self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(30)
        os.close(self._write)
        os.close(self._read)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the time of a block. Skips the test where none is installed."""
    program = found_chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, Path(folder))
        try:
            yield browser
        finally:
            browser.close()
