"""A headless Chromium, spoken to over two pipes: enough of its protocol to look at a page as a person would.

https://chromedevtools.github.io/devtools-protocol/: messages are JSON, each ended by a zero byte; the browser
reads file descriptor 3 and writes 4.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from select import select
from typing import Any, Self

from patience import LIMIT_S, wait_for

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking", "--no-first-run"),
    *("--disable-sync", "--disable-component-update", "--no-default-browser-check"),
)


def found() -> str | None:
    """Return the path of a browser, if there is one."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab of a browser with an empty profile in `folder`."""

    def __init__(self, folder: Path):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [str(found()), *_OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        # The shell puts the pipes where the browser looks for them, whatever their numbers are here.
        line = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        environment = {**os.environ, "HOME": str(folder)}
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", line, *command],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._count, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        (tab,) = [each for each in self._targets() if each["type"] == "page"]
        self._session = self.tell("Target.attachToTarget", targetId=tab["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.tell(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come before it are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, page: Path | str) -> None:
        """Show a file or an address and wait until it has loaded; its events are the only ones kept."""
        self.events.clear()
        self.tell("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, script: str) -> Any:
        """Evaluate a JavaScript expression, a promise included, and return what it is worth."""
        answer = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression holds."""
        wait_for(lambda: self.value(condition))

    def show(
        self, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = "screen"
    ) -> None:
        """Be a screen of this size, with this wish for colours, or a printer."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.tell("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        known = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.tell("Input.dispatchKeyEvent", type="keyDown", **known, **({"text": text} if text else {}))
        self.tell("Input.dispatchKeyEvent", type="keyUp", **known)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page."""
        answer = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for, but for files inside itself."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        addresses = [str(event["params"]["request"]["url"]) for event in sent]
        return [address for address in addresses if not address.startswith("data:")]

    def complaints(self) -> list[Any]:
        """Return errors and warnings of the console, and exceptions."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event["params"] for event in self.events if event.get("method") in kinds]

    def _targets(self) -> list[dict[str, Any]]:
        while True:
            found: list[dict[str, Any]] = self.tell("Target.getTargets")["targetInfos"]
            if any(each["type"] == "page" for each in found):
                return found
            time.sleep(0.05)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select([self._read], [], [], LIMIT_S)
            assert ready, "the browser does not answer"
            got = os.read(self._read, 1 << 20)
            assert got, "the browser has ended"
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer
