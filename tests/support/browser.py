"""A headless Chromium for tests, driven through its debugging pipe: real mouse and keyboard events, no network."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
KEYS = {"ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, "Escape": 27, "Tab": 9}
PATIENCE = 30.0  # seconds


class Browser:
    """One page at a time; `failures` are the errors and the requests of the page that is open."""

    def __init__(self) -> None:
        assert BINARY is not None
        # a child of the browser may write for a moment after its parent's end: then the folder stays
        self._home = tempfile.TemporaryDirectory(prefix="browser", ignore_cleanup_errors=True)
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()

        def as_three_and_four() -> None:
            first, second = os.dup(commands), os.dup(answers)  # out of the way of what they will be
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [BINARY, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={self._home.name}", "--hide-scrollbars",
             "--force-device-scale-factor=1"],
            preexec_fn=as_three_and_four, start_new_session=True, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._rest, self._number, self.failures = b"", 0, list[str]()
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # its children, too
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._home.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._from, 1 << 16)
            assert data, "the browser has ended"
            self._rest += data
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, about = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.failures.append(str(about["exceptionDetails"].get("exception", about["exceptionDetails"])))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.failures.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = about["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.failures.append(f"asked the network for {url}")

    def open(self, file: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        nothing = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.send("Network.emulateNetworkConditions", **nothing)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.failures.clear()
        self.send("Page.navigate", url=file.absolute().as_uri())
        self.wait("document.documentElement?.dataset.ready === ''")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}; {self.failures}"
            time.sleep(0.05)

    def texts(self, selector: str) -> list[str]:
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.textContent)")

    def count(self, selector: str) -> int:
        return self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def _middle(self, selector: str, at: tuple[float, float]) -> dict[str, float]:
        box = self.run(
            f"(() => {{ const each = document.querySelector({json.dumps(selector)});"
            " each.scrollIntoView({block: 'nearest', inline: 'nearest'}); const box = each.getBoundingClientRect();"
            " return [box.left, box.top, box.width, box.height]; })()"
        )
        return {"x": box[0] + box[2] * at[0], "y": box[1] + box[3] * at[1]}

    def move(self, selector: str, at: tuple[float, float] = (0.5, 0.5)) -> dict[str, float]:
        """Move the mouse over an element, to a fraction of its width and height."""
        place = self._middle(selector, at)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
        return place

    def click(self, selector: str, at: tuple[float, float] = (0.5, 0.5), *, shift: bool = False) -> None:
        place = self.move(selector, at)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, modifiers=8 * shift, **place)

    def press(self, key: str, times: int = 1) -> None:
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        for _ in range(times):
            text = {"text": "\r"} if key == "Enter" else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", **code, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
