"""Headless Chromium of the attention page's tests, on a page of a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.browser import Browser


class ServiceBrowser(Browser):
    """Browser that counts a request to any other service as a failure."""

    def __init__(self) -> None:
        super().__init__()
        self._own = "file:"

    def _note(self, event: dict[str, Any]) -> None:
        asks = event.get("method") == "Network.requestWillBeSent"
        if not (asks and event["params"]["request"]["url"].startswith((self._own, "blob:"))):
            super()._note(event)

    def visit(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """The page at an address, when it has asked what models there are."""
        self._own = url.partition("#")[0]
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send("Page.navigate", url="about:blank")  # or another part behind "#" would be the same page
        self.wait("location.href === 'about:blank'")
        self.failures.clear()
        self.send("Page.navigate", url=url)
        self.wait("document.documentElement?.dataset.ready === ''")

    def choose(self, selector: str, value: str) -> None:
        """An option of a list, as the keyboard does: focused, changed, told."""
        self.run(
            f"(() => {{ const list = document.querySelector({json.dumps(selector)}); list.focus();"
            f" list.value = {json.dumps(value)}; list.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
        )

    def type(self, selector: str, text: str) -> None:
        """Replace the content of a field."""
        self.click(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.send("Input.insertText", text=text)

    def drop(self, selector: str, file: Path) -> None:
        """Drop a file from the desktop onto an element."""
        place, data = self.move(selector), {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.send("Input.dispatchDragEvent", type=kind, data=data, **place)

    def whole(self, file: Path) -> None:
        """Save a screenshot of the whole page."""
        height = self.run("document.documentElement.scrollHeight")
        width = self.run("innerWidth")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.screenshot(file)
